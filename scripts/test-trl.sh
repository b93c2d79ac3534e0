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
log=$(mktemp)
"${EAGLERAY_BINARY:-bin/eagleray}" serve --enable-rlhf --dtype float32 \
  --logprobs-mode processed_logprobs --port 0 2>"$log" &
server=$!
trap 'kill $server; wait $server || cat "$log"; rm "$log"' EXIT
while ! url=$(grep -o 'msg=ready.* url=[^ ]*' "$log"); do
  kill -0 $server
  sleep 0.2
done
PYTHONPATH=python HF_HUB_OFFLINE=1 "$python" examples/trl/train.py --url "${url##* url=}" "$@"
