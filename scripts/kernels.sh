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
