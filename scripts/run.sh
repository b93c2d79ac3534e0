#!/usr/bin/env bash
# Serves the built-in model with two worker processes and asks it one question. On a terminal the
# server then keeps running until Ctrl-C; otherwise it is shut down and the script ends with its
# exit code.
set -euo pipefail
cd "$(dirname "$0")/.."
port=${PORT:-8000}
question=${QUESTION:-What does strings.Index do?}
url=http://127.0.0.1:$port

bin/eagleray serve -tp 2 --port "$port" &
server=$!
trap 'kill -TERM $server 2>/dev/null || true; wait $server || true' EXIT

for _ in $(seq 200); do
  kill -0 $server 2>/dev/null || { echo "the server ended before it was ready" >&2; exit 1; }
  if answer=$(echo "$question" | bin/eagleray chat --url "$url" 2>/dev/null); then break; fi
  sleep 0.05
done
[ -n "${answer:-}" ] || { echo "no answer within 10 seconds" >&2; exit 1; }
printf '\n> %s\n%s\n\n' "$question" "$answer"

if [ -t 1 ]; then
  echo "serving at $url: try   bin/eagleray chat --url $url   (Ctrl-C ends it)"
  trap - EXIT
  wait $server
else
  trap - EXIT
  kill -TERM $server
  wait $server
fi
