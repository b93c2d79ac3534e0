#!/usr/bin/env bash
# Measures what docs/figures.md quotes and prints one table: the built-in model served by one
# process (uni) and by two ranks in processes of their own (mp). It needs bash, coreutils and
# bin/eagleray, and takes about two minutes.
#   PORT      port of the servers (default 8777)
#   PROMPTS   requests of the throughput run (default 200)
#   STARTS    starts that are timed (default 10)
#   IDLE      seconds over which idle CPU time is counted (default 20)
set -euo pipefail
cd "$(dirname "$0")/.."
port=${PORT:-8777} prompts=${PROMPTS:-200} starts=${STARTS:-10} idle=${IDLE:-20}
bin=bin/eagleray
[ -x $bin ] || { echo "$bin is not there: run make build" >&2; exit 1; }
work=$(mktemp -d)
server=
trap 'stop; rm -rf "$work"' EXIT

stop() {
  [ -n "$server" ] || return 0
  kill -TERM "$server" 2>/dev/null || true
  wait "$server" 2>/dev/null || true
  server=
}

start() { # flags of serve
  $bin serve --port "$port" --disable-uvicorn-access-log --disable-log-stats "$@" 2>"$work/log" &
  server=$!
}

# connect opens the server's socket as descriptor 3. The server listens before it loads its model,
# and answers when it is ready.
connect() {
  until exec 3<>"/dev/tcp/127.0.0.1/$port"; do
    kill -0 "$server" 2>/dev/null || { cat "$work/log" >&2; exit 1; }
    sleep 0.001
  done 2>/dev/null
}

# answer reads the head of an answer, which must be 200.
answer() {
  local line status
  read -r -u 3 status
  [[ $status == *" 200 "* ]] || { echo "the server answered $status" >&2; exit 1; }
  while read -r -u 3 line && [ "$line" != $'\r' ]; do :; done
}

health() { printf 'GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n' >&3; answer; }

first_token() {
  local body='{"prompt":"package main","max_tokens":2,"temperature":0,"stream":true}' line
  local request='POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n'
  request+='Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s'
  # shellcheck disable=SC2059
  printf "$request" ${#body} "$body" >&3
  answer
  while read -r -u 3 line && [[ $line != data:* ]]; do :; done
}

now() { echo "${EPOCHREALTIME/[.,]/}"; } # microseconds

# fixed prints a number of thousandths with one decimal place.
fixed() { printf '%d.%d' $(($1 / 1000)) $(($1 % 1000 / 100)); }

median() { sort -n | { mapfile -t v; echo "${v[$((${#v[@]} / 2))]}"; }; }

# family is the server and its workers.
family() { echo "$server" "$(cat "/proc/$server/task/"*/children 2>/dev/null || true)"; }

memory() { # file and key below /proc/PID: 1000 bytes of all processes together
  local sum=0 pid key value rest
  for pid in $(family); do
    while read -r key value rest; do
      [ "$key" != "$2:" ] || sum=$((sum + value))
    done <"/proc/$pid/$1"
  done
  echo $((sum * 1024 / 1000))
}

ticks() { # CPU time of all processes together
  local sum=0 pid stat
  for pid in $(family); do
    stat=$(<"/proc/$pid/stat")
    stat=(${stat##*) })
    sum=$((sum + stat[11] + stat[12]))
  done
  echo $sum
}

figure() { # file and key of a benchmark's JSON
  local line
  while read -r line; do
    [[ $line =~ ^\"$2\":\ ([0-9.e+-]+),?$ ]] && { printf '%.2f' "${BASH_REMATCH[1]}"; return; }
  done <"$1"
  echo "no $2 in $1" >&2
  exit 1
}

bench() {
  $bin bench serve --port "$port" --disable-tqdm --random-input-len 64 --random-output-len 32 \
    "$@" >/dev/null
}

measure() { # name and flags of serve: fills the column of that name
  local name=$1 i t0 before after
  shift
  echo "measuring $name ..." >&2
  for ((i = 0; i < starts; i++)); do
    t0=$(now)
    start "$@"
    connect
    health
    echo $(($(now) - t0)) >>"$work/$name.health"
    first_token
    echo $(($(now) - t0)) >>"$work/$name.token"
    exec 3>&-
    stop
  done
  column[$name.health]=$(fixed "$(median <"$work/$name.health")")
  column[$name.token]=$(fixed "$(median <"$work/$name.token")")
  start "$@"
  connect
  health
  exec 3>&-
  column[$name.rss]=$(fixed "$(memory status VmRSS)")
  column[$name.pss]=$(fixed "$(memory smaps_rollup Pss)")
  before=$(ticks)
  sleep "$idle"
  after=$(ticks)
  local spent=$((after - before))
  column[$name.idle]=$(printf '%d.%02d' $((spent / hz)) $((spent % hz * 100 / hz)))
  bench --num-prompts "$prompts" --num-warmups 20 --output-json "$work/many.json"
  column[$name.requests]=$(figure "$work/many.json" request_throughput)
  column[$name.output]=$(figure "$work/many.json" output_throughput)
  column[$name.ttft]=$(figure "$work/many.json" mean_ttft_ms)
  column[$name.tpot]=$(figure "$work/many.json" mean_tpot_ms)
  bench --num-prompts 20 --num-warmups 2 --max-concurrency 1 --output-json "$work/one.json"
  column[$name.single_ttft]=$(figure "$work/one.json" median_ttft_ms)
  column[$name.single]=$(figure "$work/one.json" median_tpot_ms)
  stop
}

hz=$(getconf CLK_TCK 2>/dev/null || echo 100)
declare -A column
measure uni
measure mp -tp 2

row() { printf '%-58s %10s %10s\n' "$1" "${column[uni.$2]}" "${column[mp.$2]}"; }
printf '\n%s, %s cores\n' "$($bin version)" "$(nproc)"
printf 'binary: %s MB\n\n' "$(fixed $(($(stat -L -c %s $bin) / 1000)))"
printf '%-58s %10s %10s\n' 'built-in model' uni 'mp -tp 2'
row "start to /health 200, median of $starts (ms)" health
row "start to first token, median of $starts (ms)" token
row 'resident memory when ready, all processes (MB)' rss
row 'the same, shared pages counted once (MB)' pss
row "CPU seconds in $idle idle seconds" idle
row "$prompts requests of 64/32 tokens at once: requests/s" requests
row '  output tokens/s' output
row '  mean TTFT (ms)' ttft
row '  mean TPOT (ms)' tpot
row 'one request at a time: median TTFT (ms)' single_ttft
row '  median TPOT (ms)' single
