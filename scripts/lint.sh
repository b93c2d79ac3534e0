#!/usr/bin/env bash
# Looks for what tools find, and says how to mend each finding. All tools run: one look is enough.
set -uo pipefail
cd "$(dirname "$0")/.."
go=${GO:-go}
failed=()
out=$(mktemp)
trap 'rm -f "$out"' EXIT

# check NAME HOW-TO-MEND COMMAND...: a command that fails or, for gofmt, prints something.
check() {
  local name=$1 mend=$2
  shift 2
  if "$@" >"$out" 2>&1 && { [ "$name" != gofmt ] || [ ! -s "$out" ]; }; then return; fi
  failed+=("$name")
  echo "=== $name"
  cat "$out"
  echo "  mend: $mend"
}

sources=(cmd docs internal packaging scripts test ./*.go)
check gofmt "gofmt -w ${sources[*]}" gofmt -l "${sources[@]}"
check "go vet" "each line says where; go doc cmd/vet says what an analyzer looks for" \
  "$go" vet ./...
check staticcheck \
  "https://staticcheck.dev/docs/checks says what a code (SA4006, …) means and shows the cure" \
  "$go" tool staticcheck ./...
check prose "break a long line, by hand where gofmt and ruff format do not; for a word, name the \
request, the rank or the program that it stands for" "$go" run ./scripts/prose
check kernels "make kernels" ./scripts/kernels.sh -check
if tools=$(./scripts/lint-venv.sh); then
  ruff=$tools/ruff
  check "ruff check" "$ruff check --fix; https://docs.astral.sh/ruff/rules says what a code means" \
    "$ruff" check --quiet .
  check "ruff format" "$ruff format ." "$ruff" format --check .
  check mypy "each line says where; https://mypy.readthedocs.io/en/stable/error_codes.html says \
what a code means" \
    "$tools/mypy" --config-file python/pyproject.toml --cache-dir "${tools%/bin}/cache"
else
  echo "$tools"
fi
[ ${#failed[@]} -eq 0 ] || { echo; echo "failed: ${failed[*]}"; exit 1; }
