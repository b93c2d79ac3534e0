#!/usr/bin/env bash
# Makes the virtual environment of requirements/NAME.txt, once, beside those of Ray, and prints its
# Python. Where there is no Python 3.11, or no package index, it prints nothing, and says so on
# standard error.
#
#   python=$(scripts/pinned-venv.sh rlhf)
set -euo pipefail
cd "$(dirname "$0")/.."
name=${1:?usage: scripts/pinned-venv.sh NAME}
root=${EAGLERAY_VENV:-${XDG_CACHE_HOME:-$HOME/.cache}/eagleray/venv}
mkdir -p "$root"
pins=requirements/$name.txt
venv=$root/$name-$(sha256sum "$pins" | cut -c 1-12)
# pins.txt is the last thing that an installation writes.
if [ ! -f "$venv/pins.txt" ]; then
  rm -rf "$venv"
  if python3.11 -m venv "$venv" >&2 &&
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-input -r "$pins" >&2
  then cp "$pins" "$venv/pins.txt"
  else rm -rf "$venv"; echo "note: no Python 3.11 with $pins: what needs it is skipped" >&2; exit 0
  fi
fi
echo "$venv/bin/python"
