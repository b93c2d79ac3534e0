#!/usr/bin/env bash
# Compares models on Ray Serve with bare deployments that answer the same bytes after the same time,
# in turn and in one run, on a cluster whose node is this machine: how long replicas take to be
# ready, and how many requests a second they answer. Three nodes and a dashboard cost two cores more
# than the rest: one node is best.
#
#   scripts/bench-ray-serve.sh ADDRESS PYTHON [ROUNDS]
#   ray start --head
#   scripts/bench-ray-serve.sh 127.0.0.1:6379 ~/.cache/eagleray/venv/ray-2.60.0-*/bin/python 4
#
# NODE_IP is the node's address, if it is not ADDRESS's; LOADS are numbers of clients, STEP_MS is
# how long a step takes, PROMPTS how many requests each rate is of; ONLY is some of "starts streams
# answers". With QUIET=1 the bare deployments are without Serve's access log, which they have by
# default and models have not.
set -euo pipefail
cd "$(dirname "$0")/.."
address=${1:?usage: scripts/bench-ray-serve.sh ADDRESS PYTHON [ROUNDS]}
python=${2:?PYTHON of the Ray installation}
export PYTHONPATH=$PWD/python EAGLERAY_BINARY=${EAGLERAY_BINARY:-$PWD/bin/eagleray}
exec "$python" scripts/bench_ray_serve.py --address "$address" \
  --node-ip "${NODE_IP:-${address%:*}}" --rounds "${3:-4}" --clients ${LOADS:-16} \
  --step-ms "${STEP_MS:-1}" --prompts "${PROMPTS:-800}" ${ONLY:+--only $ONLY} ${QUIET:+--quiet}
