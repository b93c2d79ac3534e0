#!/usr/bin/env bash
# Runs tests on real Ray, on several versions side by side: each in a process and on a cluster of
# its own, because they wait more than they compute. What a version printed comes when all have
# ended, those that failed last.
#
#   scripts/test-ray.sh "2.35.0 2.60.0" [full]
set -euo pipefail
cd "$(dirname "$0")/.."
versions=${1:?usage: scripts/test-ray.sh VERSIONS [full]}
# Whole engines that are started on each change; TestFacts and the fake cluster have the cases.
quick=(
  'TestFacts/ray'
  'TestGeneration/ray/tp2$'                # a group by name; the answers of one rank
  'TestGeneration/ray/tp2pp2'              # two stages of two ranks, over two nodes
  'TestRanks/ray/tp4,external=false'       # over two nodes
  'TestBundleIndices/ray/3,2'
  'TestDevices/ray/half'
  'TestDeath/ray/child,load=true'
  'TestDeath/ray/actor,load=false'
  'TestDeathWhileStarting/ray/bridge,identify'
  'TestEnvironment/ray/sent'
  'TestNodes/ray-2.[5-9]/token'            # older versions have none
  'TestInsideActor/ray/skipped'
  'TestServe$/ray/start'                   # the program brings itself to the nodes, once
  'TestCUDA/ray-2.3'                       # workers become the program for GPUs, whatever Ray
  'TestServeKilled/ray/load'
  'TestServeStopped/ray/ready'
  'TestServeLosesRank'
  'TestServeRecovers'
  'TestServeRefuses/ray/another'
  'TestData$/ray/(kinds|fewer)'
  'TestJob/ray/batch$'
  'TestWeights/nodes'                      # new weights, a rank lost while it loads them
  'TestServeApp/Quick'                     # models behind one ingress, a replica lost, mistakes
)
packages=(./test/ray)
timeout=15m
run=$(IFS='|'; echo "${quick[*]}")
if [ "${2:-}" = full ]; then
  packages=(./internal/ray ./test/ray)
  timeout=60m
  run=.
fi
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
go=${GO:-go}
"$go" build -o "$logs/testlog" ./scripts/testlog
# Built once, or each run would build for itself.
"$go" test -run '^$' "${packages[@]}" >/dev/null

test_on() {
  local begun=$SECONDS code=0
  {
    EAGLERAY_RAY=$1 "$go" test -json -p 1 -count=1 -parallel 8 -timeout "$timeout" -run "$run" \
      "${packages[@]}"
    [ "$run" != . ] || EAGLERAY_RAY=$1 "$go" test -json -count=1 -run OnRay ./test/layouts
  } 2>&1 |
    "$logs/testlog" >"$logs/$1.log" || code=$?
  echo "Ray $1: $((SECONDS - begun)) s" >>"$logs/$1.log"
  return $code
}
pids=()
for v in $versions; do
  test_on "$v" &
  pids+=($!)
done
passed=() failed=()
for v in $versions; do
  if wait "${pids[0]}"; then passed+=("$v"); else failed+=("$v"); fi
  pids=("${pids[@]:1}")
done
for v in "${passed[@]}" "${failed[@]}"; do
  echo "--- Ray $v"
  cat "$logs/$v.log"
done
[ ${#failed[@]} -eq 0 ]
