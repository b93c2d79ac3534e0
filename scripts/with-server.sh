#!/usr/bin/env bash
# Runs a command whose last argument is the address of a server that is started for it, on a port
# that is free, and ended after it. A server that fails has its log printed.
#
#   scripts/with-server.sh [flags of serve] -- COMMAND...
set -euo pipefail
flags=()
while [ "$1" != -- ]; do flags+=("$1") && shift; done
shift
log=$(mktemp)
"${EAGLERAY_BINARY:-bin/eagleray}" serve "${flags[@]}" --port 0 2>"$log" &
server=$!
trap 'kill $server; wait $server || cat "$log"; rm "$log"' EXIT
while ! url=$(grep -o 'msg=ready.* url=[^ ]*' "$log"); do
  kill -0 $server
  sleep 0.2
done
"$@" "${url##* url=}"
