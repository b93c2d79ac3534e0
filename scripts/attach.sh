#!/usr/bin/env bash
# Builds the program for GPUs and attaches it to an eagleray that was built for the same
# architecture. The flags are those of eagleray: so the two differ little.
#
#   scripts/attach.sh ARCH FILE
set -euo pipefail
arch=${1:?usage: scripts/attach.sh ARCH FILE} file=$(realpath "${2:?}")
cd "$(dirname "$0")/.."
export CGO_ENABLED=0
second=$(mktemp)
trap 'rm -f "$second"' EXIT
GOOS=linux GOARCH=$arch go build -trimpath -ldflags "-s -w" -o "$second" ./cmd/eagleray-cuda
env -u GOOS -u GOARCH go run -trimpath ./scripts/attach "$file" "$second"
