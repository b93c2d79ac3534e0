#!/usr/bin/env bash
# Builds the wheels of the Python package into bin/dist, each with the static binary of its
# platform: "pip install bin/dist/eagleray-*_x86_64.whl" needs nothing else. Nothing is published.
#
#   scripts/wheel.sh             for amd64 and arm64
#   scripts/wheel.sh amd64       for one of them
#
# VERSION is the release; without a tag it is 0.0.0-g and the commit. BINARY_amd64 and BINARY_arm64
# are programs that have been built already.
set -euo pipefail
cd "$(dirname "$0")/.."
export CGO_ENABLED=0
tag=$(git describe --tags --exact-match --match 'v*' 2>/dev/null || true)
VERSION=${VERSION:-${tag:-0.0.0-g$(git rev-parse --short=12 HEAD)}}
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
mkdir -p bin/dist
[ $# -gt 0 ] || set -- amd64 arm64
for arch; do
  given=BINARY_$arch
  binary=${!given:-}
  if [ -z "$binary" ]; then
    binary=bin/eagleray-wheel-$arch
    GOOS=linux GOARCH=$arch go build -trimpath -ldflags "-s -w -X main.release=$VERSION" \
      -o "$binary" ./cmd/eagleray
    scripts/attach.sh "$arch" "$binary"
  fi
  python3 scripts/wheel.py "$VERSION" "$arch" "$binary" bin/dist
done
