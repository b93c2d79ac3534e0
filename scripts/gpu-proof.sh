#!/usr/bin/env bash
# Proves the CUDA backend on a GPU and prints one table: the stages of eagleray cuda proof, in calls
# of less than eight minutes, PyTorch's figures for the same shapes, and NVIDIA's sanitizer. What is
# not there is skipped, and named. Nothing of the GPU's settings is touched.
#
#   scripts/gpu-proof.sh [FOLDER] [flags of eagleray cuda proof…]
#   scripts/gpu-proof.sh                        on a GPU: ten minutes, results in bin/gpu-proof
#   scripts/gpu-proof.sh --driver machine       without a GPU: all stages, small, in a minute
#   scripts/gpu-proof.sh out --skip bench,soak
#   scripts/gpu-proof.sh --bundle proof.tgz     packs it for a GPU's machine that has no Go: there
#     tar xzf proof.tgz && PROGRAM=./eagleray-cuda scripts/gpu-proof.sh
#
# The folder has proof.jsonl (a stage a line), peers.jsonl, the sanitizer's logs and table.txt. The
# exit code is 1 when a stage failed, and 3 when no GPU can be used.
#   PROGRAM   "eagleray cuda", or eagleray-cuda, where there is no Go to build it
#   PYTHON    the Python with PyTorch (default python3)
#   SOAK      how long random batches run (default 1m; 2s on a machine)
set -euo pipefail
cd "$(dirname "$0")/.."
if [ "${1:-}" = --bundle ]; then
  [ $# -eq 2 ] || { echo "--bundle needs a file" >&2; exit 2; }
  CGO_ENABLED=0 "${GO:-go}" build -ldflags '-s -w' -o bin/ ./cmd/eagleray-cuda
  exec tar czf "$2" --exclude=full_logits.st scripts/gpu-proof.sh scripts/gpu_proof_peers.py \
    testdata/models -C bin eagleray-cuda
fi
out=bin/gpu-proof
if [ $# -gt 0 ] && [ "${1#-}" = "$1" ]; then
  out=$1
  shift
fi
driver=libcuda only='' without='' rest=()
while [ $# -gt 0 ]; do
  case $1 in
    --driver | --stage | --skip)
      [ $# -gt 1 ] || { echo "$1 needs a value" >&2; exit 2; }
      set -- "$1=$2" "${@:3}"
      continue
      ;;
    --driver=*) driver=${1#*=} ;;
    --stage=*) only=$only,${1#*=} ;;
    --skip=*) without=$without,${1#*=} ;;
    *) rest+=("$1") ;;
  esac
  shift
done
soak=${SOAK:-1m}
[ "$driver" = libcuda ] || soak=${SOAK:-2s}
mkdir -p "$out"
rm -f "$out"/{proof,peers}.jsonl "$out"/sanitizer-*.txt "$out"/table.txt
read -ra program <<<"${PROGRAM:-}"
if [ -z "${PROGRAM:-}" ]; then
  program=("$out/eagleray-cuda")
  CGO_ENABLED=0 "${GO:-go}" build -o "${program[0]}" ./cmd/eagleray-cuda
fi
flags=(--driver "$driver" --models testdata/models --soak "$soak"
  --output-json "$out/proof.jsonl" "${rest[@]}")
touch "$out/peers.jsonl"

: >"$out/skipped.txt"

# skip WHAT: tells it, once.
skip() {
  grep -qxF "skipped: $*" "$out/skipped.txt" || echo "skipped: $*" | tee -a "$out/skipped.txt" >&2
}

# chosen NAME: whether --stage and --skip leave a stage in.
chosen() {
  [[ ,$without, != *,$1,* ]] && { [ -z "$only" ] || [[ ,$only, == *,$1,* ]]; }
}

# run NAME…: runs those stages of a list that are chosen. A failure is in the table. Without a GPU
# nothing else is worth a try.
run() {
  local code=0 name list=''
  for name; do chosen "$name" && list=$list,$name; done
  [ -n "$list" ] || return 0
  timeout 480 "${program[@]}" proof "${flags[@]}" --peers "$out/peers.jsonl" --stage "${list#,}" \
    >/dev/null || code=$?
  case $code in 2 | 3) exit $code ;; esac
}

peers() {
  chosen bench || return 0
  [ "$driver" = libcuda ] || { skip "PyTorch: a machine executes kernels"; return 0; }
  command -v "${PYTHON:-python3}" >/dev/null || { skip "PyTorch: no Python"; return 0; }
  timeout 300 "${PYTHON:-python3}" scripts/gpu_proof_peers.py "$out/peers.jsonl" >&2 ||
    skip "PyTorch: it failed, or took more than five minutes"
}

sanitizer() {
  local tool
  chosen kernels || return 0
  [ "$driver" = libcuda ] || { skip "compute-sanitizer: a machine executes kernels"; return 0; }
  command -v compute-sanitizer >/dev/null || { skip "compute-sanitizer: not found"; return 0; }
  for tool in memcheck racecheck; do
    timeout 240 compute-sanitizer --tool $tool --target-processes all --error-exitcode 9 \
      --log-file "$out/sanitizer-$tool.txt" "${program[@]}" proof --driver libcuda --stage kernels \
      --small >/dev/null && echo "compute-sanitizer $tool: nothing found" >&2 ||
      { echo "compute-sanitizer $tool: see $out/sanitizer-$tool.txt" >&2; failed=1; }
  done
}

failed=0
run probe load ptx kernels silicon bits nccl models
sanitizer
peers
for name in cublaslt bench profile soak; do run $name; done
code=0
"${program[@]}" proof --show "$out/proof.jsonl" --peers "$out/peers.jsonl" |
  tee "$out/table.txt" || code=$?
cat "$out/skipped.txt"
[ $failed -eq 0 ] || exit 1
exit $code
