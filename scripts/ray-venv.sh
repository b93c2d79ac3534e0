#!/usr/bin/env bash
# Makes .venv/ray-VERSION, the installation of Ray that the tests on real Ray use, from requirements/ray-VERSION.txt.
# Does nothing when it is there and up to date; two runs at once wait for each other. On a machine without Python
# 3.11 or its venv module it says so in one line and succeeds: the tests skip themselves.
set -euo pipefail
version=${1:?usage: scripts/ray-venv.sh VERSION}
cd "$(dirname "$0")/.."
pins=requirements/ray-$version.txt
venv=.venv/ray-$version
stamp=$venv/pins.txt
[ -f "$pins" ] || { echo "no $pins: Ray $version is not one of the pinned versions" >&2; exit 2; }
cmp -s "$pins" "$stamp" && exit 0

skip() { echo "note: $1: tests on real Ray are skipped"; exit 0; }
python=
for name in python3.11 python3; do
  if "$name" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then python=$name; break; fi
done
[ -n "$python" ] || skip "no python3 of version 3.11"
"$python" -c 'import venv, ensurepip' 2>/dev/null || skip "$python has no venv module"

mkdir -p .venv
# The lock belongs to descriptor 9, which this shell keeps until it ends.
exec 9>".venv/ray-$version.lock"
"$python" -c 'import fcntl; fcntl.flock(9, fcntl.LOCK_EX)'
cmp -s "$pins" "$stamp" && exit 0

echo "installing Ray $version into $venv (once)"
rm -rf "$venv"
"$python" -m venv "$venv"
# Twice: package indexes have bad moments. Without one this machine skips what needs Ray, as one without Python does.
install() { "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-input -r "$pins" 9>&-; }
install || install || { rm -rf "$venv"; skip "Ray $version could not be installed (see above)"; }
cp "$pins" "$stamp"
