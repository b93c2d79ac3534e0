#!/usr/bin/env bash
# Compiles the CUDA device's kernels with the pinned compilers of requirements/cuda.txt, which it
# installs once; with -check it compares with what there is instead. Where they cannot be installed
# it says so, and succeeds.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$(./scripts/pinned-venv.sh cuda)
[ -n "$python" ] || exit 0
tools=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
cd internal/compute/cuda/kernels
"${GO:-go}" run ./gen -tools "$tools" "$@"
[ $# -eq 0 ] || exit 0
# The files are parts of a program that is to be small: liblzma finds more than Go's encoder, and an
# instruction takes 16 bytes.
"$python" - ptx.tar.xz cubins.tar.xz <<'END'
import lzma
import pathlib
import sys

for path in map(pathlib.Path, sys.argv[1:]):
    aligned = {"lc": 0, "lp": 4, "pb": 4} if path.name.startswith("cubins") else {}
    lzma2 = {"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, **aligned}
    path.write_bytes(lzma.compress(lzma.decompress(path.read_bytes()), filters=[lzma2]))
END
