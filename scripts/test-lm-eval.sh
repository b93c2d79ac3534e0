#!/usr/bin/env bash
# Compares lm-evaluation-harness's figures of the built-in model, of requirements/trl.txt, by
# transformers, by LLM and by a server (scripts/lm_eval_agrees.py). A machine without Python 3.11 or
# the index is told what it skips.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$(scripts/pinned-venv.sh trl)
[ -n "$python" ] || exit 0
export EAGLERAY_BINARY=${EAGLERAY_BINARY:-$PWD/bin/eagleray}
export PYTHONPATH=python HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1
model=internal/rank/builtin/go-std-tiny
exec scripts/with-server.sh "$model" --served-model-name served --dtype float32 -- \
  "$python" scripts/lm_eval_agrees.py "$model"
