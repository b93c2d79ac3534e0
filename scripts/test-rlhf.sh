#!/usr/bin/env bash
# Runs examples/rlhf, which fails unless the reward of its model grows, and what tests have of
# torch's tensors, with the torch of requirements/rlhf.txt. A machine without Python 3.11 or the
# index is told what it skips.
#
#   scripts/test-rlhf.sh [--plot docs/images/rlhf.png]
set -euo pipefail
cd "$(dirname "$0")/.."
python=$(scripts/pinned-venv.sh rlhf)
[ -n "$python" ] || exit 0
export EAGLERAY_BINARY=${EAGLERAY_BINARY:-$PWD/bin/eagleray} PYTHONPATH=python
"$python" -m unittest python.tests.test_server_weights.TestServer.test_torch
exec "$python" examples/rlhf/train.py "$@"
