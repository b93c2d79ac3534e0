#!/usr/bin/env bash
# Makes the virtual environment of a pinned version of Ray, which the tests on real Ray use, from
# requirements/ray-VERSION.txt: ${EAGLERAY_VENV:-~/.cache/eagleray/venv}/ray-VERSION-HASH, where
# HASH is that of the pins, so that clones share it and changed pins make another. Does nothing when
# it is there; two runs at once wait for each other. On a machine without Python 3.11 or its venv
# module it says so in one line and succeeds: the tests skip themselves.
set -euo pipefail
version=${1:?usage: scripts/ray-venv.sh VERSION}
cd "$(dirname "$0")/.."
pins=requirements/ray-$version.txt
[ -f "$pins" ] || { echo "no $pins: Ray $version is not one of the pinned versions" >&2; exit 2; }
# internal/ray/raytest names the folder in the same way.
root=${EAGLERAY_VENV:-${XDG_CACHE_HOME:-$HOME/.cache}/eagleray/venv}
hash=$(sha256sum "$pins" | cut -c 1-12)
venv=$root/ray-$version-$hash
# The last thing that an installation writes.
stamp=$venv/pins.txt
cmp -s "$pins" "$stamp" && exit 0

skip() { echo "note: $1: tests on Ray $version are skipped"; exit 0; }
python=
for name in python3.11 python3; do
  if "$name" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then
    python=$name
    break
  fi
done
[ -n "$python" ] || skip "no python3 of version 3.11"
"$python" -c 'import venv, ensurepip' 2>/dev/null || skip "$python has no venv module"

mkdir -p "$root"
# The lock belongs to descriptor 9, which this shell keeps until it ends.
exec 9>"$venv.lock"
"$python" -c 'import fcntl; fcntl.flock(9, fcntl.LOCK_EX)'
cmp -s "$pins" "$stamp" && exit 0

echo "installing Ray $version into $venv (once)"
rm -rf "$venv"
"$python" -m venv "$venv"
# Twice: package indexes have bad moments. Without one this machine skips what needs Ray, as one
# without Python does.
install() {
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-input \
    -r "$pins" 9>&-
}
install || install || { rm -rf "$venv"; skip "Ray $version could not be installed (see above)"; }
cp "$pins" "$stamp"
