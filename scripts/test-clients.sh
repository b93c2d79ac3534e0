#!/usr/bin/env bash
# Runs clients against the built-in model: those that others wrote, openai-python and anthropic of
# requirements/clients.txt, openai-node of requirements/clients-node.json, installed once beside the
# environments of Ray; then the tests of this repository's own Python package. A machine without
# Python 3, Node or their registries is told what it skips.
set -euo pipefail
cd "$(dirname "$0")/.."
root=${EAGLERAY_VENV:-${XDG_CACHE_HOME:-$HOME/.cache}/eagleray/venv}
mkdir -p "$root"

pins=requirements/clients.txt
venv=$root/clients-$(sha256sum $pins | cut -c 1-12)
if [ ! -f "$venv/pins.txt" ]; then
  rm -rf "$venv"
  if python3 -m venv "$venv" &&
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-input -r $pins
  then cp $pins "$venv/pins.txt"
  else rm -rf "$venv"; echo "note: no Python with $pins: its clients are skipped"
  fi
fi
[ ! -f "$venv/pins.txt" ] || export EAGLERAY_CLIENTS=$venv/bin/python

pins=requirements/clients-node.json
node=$root/clients-node-$(sha256sum $pins | cut -c 1-12)
if [ ! -f "$node/pins.json" ]; then
  rm -rf "$node"
  mkdir "$node"
  cp $pins "$node/package.json"
  if command -v node >/dev/null && npm install --silent --no-audit --no-fund --prefix "$node"
  then cp $pins "$node/pins.json"
  else rm -rf "$node"; echo "note: no Node with $pins: its clients are skipped"
  fi
fi
[ ! -f "$node/pins.json" ] || export EAGLERAY_NODE_CLIENTS=$node

go=${GO:-go}
failed=0
"$go" test -count=1 ./internal/api -run 'Client' "$@" || failed=1
"$go" test -count=1 ./cmd/eagleray -run 'TestPythonPackage|TestFilesInPython' "$@" || failed=1
exit $failed
