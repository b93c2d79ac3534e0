#!/usr/bin/env bash
# Runs examples/trl against a server: TRL's own GRPOTrainer, of requirements/trl.txt, trains the
# built-in model for 20 steps. It fails unless the reward grows, and unless the server answers as
# transformers does with the weights of each step. A machine without Python 3.11 or the index is
# told what it skips.
#
#   scripts/test-trl.sh [--steps 20]
set -euo pipefail
cd "$(dirname "$0")/.."
python=$(scripts/pinned-venv.sh trl)
[ -n "$python" ] || exit 0
export PYTHONPATH=python HF_HUB_OFFLINE=1
exec scripts/with-server.sh --enable-rlhf --dtype float32 --logprobs-mode processed_logprobs -- \
  "$python" examples/trl/train.py "$@" --url
