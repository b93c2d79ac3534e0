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
# The files are parts of a program that is to be small: three quarters of what gen made of them.
"$python" - ptx.tar.zst cubins.tar.zst <<'END'
import pathlib
import sys

import zstandard

for path in map(pathlib.Path, sys.argv[1:]):
    with path.open("rb") as file:
        data = zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(file).read()
    parameters = zstandard.ZstdCompressionParameters.from_level(
        22, source_size=len(data), window_log=26, enable_ldm=True
    )
    path.write_bytes(zstandard.ZstdCompressor(compression_params=parameters).compress(data))
END
