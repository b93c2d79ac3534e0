#!/usr/bin/env bash
# Runs examples/rlhf, which fails unless the reward of its model grows, and what tests have of
# torch's tensors, with the torch of requirements/rlhf.txt, in an environment that is made once
# beside those of Ray. A machine without Python 3.11 or the index is told what it skips.
#
#   scripts/test-rlhf.sh [--plot docs/images/rlhf.png]
set -euo pipefail
cd "$(dirname "$0")/.."
root=${EAGLERAY_VENV:-${XDG_CACHE_HOME:-$HOME/.cache}/eagleray/venv}
mkdir -p "$root"
pins=requirements/rlhf.txt
venv=$root/rlhf-$(sha256sum $pins | cut -c 1-12)
if [ ! -f "$venv/pins.txt" ]; then
  rm -rf "$venv"
  if python3.11 -m venv "$venv" &&
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-input -r $pins
  then cp $pins "$venv/pins.txt"
  else rm -rf "$venv"; echo "note: no Python 3.11 with $pins: examples/rlhf is skipped"; exit 0
  fi
fi
export EAGLERAY_BINARY=${EAGLERAY_BINARY:-$PWD/bin/eagleray} PYTHONPATH=python
"$venv/bin/python" -m unittest python.tests.test_server_weights.TestServer.test_torch
exec "$venv/bin/python" examples/rlhf/train.py "$@"
