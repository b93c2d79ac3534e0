#!/usr/bin/env bash
# Compares parallel layouts on this machine, at equal numbers of threads in all: their throughput in
# turn, so that all meet the same weather, as medians beside the first one's.
#
#   scripts/bench-layouts.sh [ROUNDS] [bench throughput flags…]
#   scripts/bench-layouts.sh 5 --num-prompts 64 --input-len 64 --output-len 32
#   BACKEND=ray scripts/bench-layouts.sh 3 --ray-address 127.0.0.1:6379 --ray-python python3
#
# The model is Qwen2.5-0.5B's shape with random weights, unless MODEL names a folder. LAYOUTS lists
# them as tp,pp,pcp,threads of each rank; more threads in all than THREADS (2) are marked.
set -euo pipefail
cd "$(dirname "$0")/.."
rounds=${1:-5}
shift $(($# < 1 ? $# : 1))
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
model=${MODEL:-}
if [ -z "$model" ]; then
  model=$work/qwen2-0.5b
  mkdir "$model"
  cat >"$model/config.json" <<'JSON'
{"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_act": "silu", "hidden_size": 896,
 "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2,
 "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "tie_word_embeddings": true,
 "torch_dtype": "bfloat16", "vocab_size": 151936}
JSON
fi
layouts=${LAYOUTS:-1,1,1,2 2,1,1,1 1,2,1,1 1,1,2,1 2,2,1,1}

one() { # tp,pp,pcp,threads: a run, whose output tokens a second become a line of its table
  local tp pp pcp threads
  IFS=, read -r tp pp pcp threads <<<"$1"
  bin/eagleray bench throughput "$model" --load-format dummy --skip-tokenizer-init \
    --max-model-len 2048 --num-prompts 64 --input-len 64 --output-len 32 \
    --distributed-executor-backend "${BACKEND:-mp}" \
    -tp "$tp" -pp "$pp" -pcp "$pcp" --cpu-threads "$threads" "${@:2}" 2>"$work/log" |
    awk '/^Throughput/ { print $(NF - 2) }' >>"$work/$1" || { cat "$work/log" >&2; exit 1; }
}

for round in $(seq "$rounds"); do
  for layout in $layouts; do one "$layout" "$@"; done
  echo "round $round of $rounds" >&2
done
first=
for layout in $layouts; do
  median=$(sort -n "$work/$layout" | awk '{ v[NR] = $1 }
    END { print (v[int((NR + 1) / 2)] + v[int((NR + 2) / 2)]) / 2 }')
  first=${first:-$median}
  echo "$layout $median $first $(sort -n "$work/$layout" | paste -sd' ')"
done | awk 'BEGIN { print "tp pp pcp threads: output tokens/s (ratio to the first); all runs" }
  { split($1, d, ","); n = d[1] * d[2] * d[3] * d[4]
    more = ""
    if (n > '"${THREADS:-2}"') more = ", " n " threads in all"
    printf "%s %s %s %s: %.1f (%.3f)%s;", d[1], d[2], d[3], d[4], $2, $2 / $3, more
    for (i = 4; i <= NF; i++) printf " %s", $i; print "" }'
