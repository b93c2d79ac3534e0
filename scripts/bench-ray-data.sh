#!/usr/bin/env bash
# Answers the same rows by eagleray run-batch and by eagleray.data on a Ray of this machine, in
# turn, and prints how much of run-batch's throughput Ray Data has, the median of the rounds: rows a
# second from the first row's begin to the last one's end; of run-batch, what more it takes than for
# one row of one token. The whole times beside it have the starts of engines and actors in them. So
# are the CPU seconds of all processes, in milliseconds a row and by what they are: user and system,
# less those of one row, which other load changes less. Nothing else may run on the machine.
#
#   scripts/bench-ray-data.sh [VERSION...]      ROWS=4000 TOKENS=200 ROUNDS=3 MODEL=./Qwen3-0.6B
set -euo pipefail
cd "$(dirname "$0")/.."
[ -x bin/eagleray ] || make build
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export ROWS=${ROWS:-4000} TOKENS=${TOKENS:-200} ROUNDS=${ROUNDS:-3} MODEL=${MODEL:-}
export BLOCKS=${BLOCKS:-512 128 0}
export EAGLERAY_BINARY=$PWD/bin/eagleray PYTHONPATH=$PWD/python PYTHONDONTWRITEBYTECODE=1
export RAY_AUTH_MODE=disabled
versions=("$@")
[ $# -gt 0 ] || versions=(2.35.0 2.60.0)
for version in "${versions[@]}"; do
  hash=$(sha256sum "requirements/ray-$version.txt" | cut -c1-12)
  python=${EAGLERAY_VENV:-${XDG_CACHE_HOME:-$HOME/.cache}/eagleray/venv}/ray-$version-$hash/bin/python
  [ -x "$python" ] || { echo "no Ray $version: run make ray" >&2; exit 1; }
  "$python" scripts/bench_ray_data.py "$work"
done
