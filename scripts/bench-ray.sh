#!/usr/bin/env bash
# Compares mp and ray on this machine: two ranks of each in turn, so that both meet the same
# weather. Needs a cluster whose node is this machine.
#
#   scripts/bench-ray.sh ADDRESS PYTHON [ROUNDS] [serve flags…]
#   scripts/bench-ray.sh 127.0.0.1:6379 ~/.cache/eagleray/venv/ray-2.60.0-*/bin/python 4
#   scripts/bench-ray.sh 127.0.0.1:6379 python3 4 --model ./opt-125m \
#     --load-format dummy --skip-tokenizer-init --cpu-threads 1
#
# LOADS are the loads ("16" at once, "40/s" a rate), BENCH further flags of bench serve. A
# hypervisor that takes some percent of a run's time changes its figures by more than the two
# differ: the last lines allow for it, by a regression of the logarithms on the stolen time with one
# slope for both (analysis of covariance).
set -euo pipefail
cd "$(dirname "$0")/.."
address=${1:?usage: scripts/bench-ray.sh ADDRESS PYTHON [ROUNDS] [serve flags…]}
python=${2:?PYTHON of the Ray installation}
rounds=${3:-4}
shift $(($# < 3 ? $# : 3))
log=$(mktemp -d)
servers=() seed=0
trap 'kill -TERM "${servers[@]}" 2>/dev/null; rm -rf "$log"' EXIT

start() { # NAME flags…: a server, whose address comes into $log/NAME.url
  local name=$1 url
  shift
  bin/eagleray serve --port 0 -tp 2 --disable-uvicorn-access-log --disable-log-stats "$@" \
    2>"$log/$name" &
  servers+=($!)
  until url=$(grep -o 'url=http[^ ]*' "$log/$name"); do
    kill -0 "${servers[-1]}" 2>/dev/null || { cat "$log/$name" >&2; exit 1; }
    sleep 0.1
  done
  echo "${url#url=}" >"$log/$name.url"
}

ticks() { awk '/^cpu / { for (i = 2; i <= 9; i++) all += $i; print $9, all }' /proc/stat; }

# one NAME LOAD is a run, whose figures become a line of the table, the share of time that was
# stolen the last of them.
one() {
  local how before
  before=$(ticks)
  case $2 in
  */s) how="--request-rate ${2%/s}" ;;
  *) how="--max-concurrency $2" ;;
  esac
  # shellcheck disable=SC2086
  bin/eagleray bench serve --base-url "$(cat "$log/$1.url")" --random-input-len 128 \
    --random-output-len 32 --num-prompts 200 --num-warmups 8 --disable-tqdm --seed "$seed" \
    $how ${BENCH:-} |
    awk -v name="$1" -v load="$2" '/^Request throughput|^Mean (TTFT|TPOT)/ { v = v " " $NF }
      END { printf "%s %s%s", name, load, v }' >>"$log/table"
  echo "$before $(ticks)" | awk '{ printf " %.1f\n", 100 * ($3 - $1) / ($4 - $2) }' >>"$log/table"
  tail -n 1 "$log/table"
}

echo "executor, load, requests per second, mean TTFT (ms), mean TPOT (ms), stolen time (%)"
for round in $(seq "$rounds"); do
  # Both are up, an idle one costs nothing: the runs follow each other closely, and each goes first
  # as often.
  start mp --distributed-executor-backend mp "$@"
  start ray --distributed-executor-backend ray --ray-address "$address" --ray-python "$python" "$@"
  for load in ${LOADS:-16 40/s}; do
    # Other prompts than before, which the servers remember, and the same for both.
    seed=$((seed + 1))
    for name in $( ((round % 2)) && echo mp ray || echo ray mp); do one "$name" "$load"; done
  done
  kill -TERM "${servers[@]}"
  wait "${servers[@]}"
  servers=()
done

for load in $(printf '%s\n' ${LOADS:-16 40/s} | sort -u); do
  echo "ray / mp, load $load: requests per second, TTFT, TPOT"
  for column in 3 4 5; do
    awk -v load="$load" -v column="$column" '
      $2 == load { of[$1, n[$1]++] = $column }
      END { for (i = 0; i < n["mp"]; i++) print of["ray", i] / of["mp", i] }' "$log/table" |
      sort -g | awk '{ v[NR] = $1 }
        END { printf "%.3f ", (v[int((NR + 1) / 2)] + v[int(NR / 2) + 1]) / 2 }'
  done
  echo "median of the pairs"
  for column in 3 4 5; do
    awk -v load="$load" -v column="$column" '
      $2 == load {
        g[++n] = $1; x[n] = $6; y[n] = log($column); m[$1]++; sx[$1] += x[n]; sy[$1] += y[n]
      }
      END {
        for (i = 1; i <= n; i++) { d = x[i] - sx[g[i]] / m[g[i]]; xx += d * d; xy += d * y[i] }
        slope = xx > 0 ? xy / xx : 0
        stolen = sx["ray"] / m["ray"] - sx["mp"] / m["mp"]
        printf "%.3f ", exp(sy["ray"] / m["ray"] - sy["mp"] / m["mp"] - slope * stolen)
      }' "$log/table"
  done
  echo "with the same stolen time"
done
