#!/usr/bin/env bash
# Compares mp and ray on this machine: two ranks of each in turn, so that both meet the same weather. Needs a cluster
# whose node is this machine.
#
#   scripts/bench-ray.sh ADDRESS PYTHON [ROUNDS] [serve flags…]
#   scripts/bench-ray.sh 127.0.0.1:6379 .venv/ray-2.60.0/bin/python 4
#   scripts/bench-ray.sh 127.0.0.1:6379 python3 4 --model ./opt-125m --load-format dummy --skip-tokenizer-init --cpu-threads 1
#
# LOADS are the loads ("16" at once, "40/s" a rate), BENCH further flags of bench serve.
set -euo pipefail
cd "$(dirname "$0")/.."
address=${1:?usage: scripts/bench-ray.sh ADDRESS PYTHON [ROUNDS] [serve flags…]} python=${2:?PYTHON of the Ray installation}
rounds=${3:-4}
shift $(($# < 3 ? $# : 3))
log=$(mktemp -d)
trap 'rm -rf "$log"' EXIT

one() { # NAME flags…
  local name=$1 server url load
  shift
  bin/eagleray serve --port 0 -tp 2 --disable-uvicorn-access-log --disable-log-stats "$@" 2>"$log/$name" &
  server=$!
  until url=$(grep -o 'url=http[^ ]*' "$log/$name"); do
    kill -0 $server 2>/dev/null || { cat "$log/$name" >&2; exit 1; }
    sleep 0.1
  done
  for load in ${LOADS:-16 40/s}; do
    case $load in
    */s) set -- --request-rate "${load%/s}" ;;
    *) set -- --max-concurrency "$load" ;;
    esac
    # shellcheck disable=SC2086
    bin/eagleray bench serve --base-url "${url#url=}" --random-input-len 128 --random-output-len 32 --num-prompts 200 \
      --num-warmups 8 --disable-tqdm "$@" ${BENCH:-} |
      awk -v name="$name" -v load="$load" '/^Request throughput|^Mean (TTFT|TPOT)/ { v = v "  " $0 } END { gsub(/ +/, " ", v); print name, load ":" v }'
  done
  kill -TERM $server
  wait $server
}

for _ in $(seq "$rounds"); do
  one mp --distributed-executor-backend mp "$@"
  one ray --distributed-executor-backend ray --ray-address "$address" --ray-python "$python" "$@"
done
