#!/usr/bin/env bash
# Prints the folder of the pinned ruff and mypy (requirements/lint.txt), which it installs once
# beside the environments of Ray. A machine that cannot install them is told so, and the exit code
# is 1.
set -euo pipefail
cd "$(dirname "$0")/.."
root=${EAGLERAY_VENV:-${XDG_CACHE_HOME:-$HOME/.cache}/eagleray/venv}
venv=$root/lint-$(sha256sum requirements/lint.txt | cut -c 1-12)
if [ ! -f "$venv/pins.txt" ]; then
  skip() { rm -rf "$venv"; echo "note: $1: Python is not checked"; exit 1; }
  python3 -c 'import venv, ensurepip' 2>/dev/null || skip "no python3 with venv"
  python3 -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-input \
    -r requirements/lint.txt >&2 ||
    skip "ruff and mypy could not be installed (see above)"
  cp requirements/lint.txt "$venv/pins.txt"
fi
echo "$venv/bin"
