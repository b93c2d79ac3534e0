#!/usr/bin/env bash
# Builds what a release consists of, into bin/: static binaries for amd64 and arm64, archives of
# them with the manual and the completions, Debian packages. Nothing is published.
#
#   scripts/dist.sh          all of it
#   scripts/dist.sh share    only the manual and the completions, into bin/share
#
# VERSION is the release; without a tag it is 0.0.0~ and the commit.
set -euo pipefail
cd "$(dirname "$0")/.."
export CGO_ENABLED=0
nfpm=github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.43.0
commit=$(git rev-parse --short=12 HEAD)
tag=$(git describe --tags --exact-match --match 'v*' 2>/dev/null || true)
VERSION=${VERSION:-${tag:-0.0.0~$commit}}

build() { # ARCH FILE
  GOOS=linux GOARCH=$1 go build -trimpath -ldflags "-s -w -X main.release=$VERSION" -o "$2" ./cmd/eagleray
}

share() {
  rm -rf bin/share
  mkdir -p bin/share/man bin/share/completions
  build "$(go env GOHOSTARCH)" bin/share/eagleray
  bin/share/eagleray man bin/share/man
  gzip -9n bin/share/man/*.1
  for shell in bash zsh fish; do
    bin/share/eagleray completion $shell >bin/share/completions/eagleray.$shell
  done
  rm bin/share/eagleray
}

share
[ "${1:-}" != share ] || exit 0
rm -rf bin/dist
mkdir -p bin/dist
for arch in amd64 arm64; do
  folder=bin/dist/eagleray_${VERSION#v}_linux_$arch
  mkdir "$folder"
  build $arch "$folder/eagleray"
  cp -r LICENSE README.md bin/share/man bin/share/completions "$folder"
  tar -C bin/dist --owner=0 --group=0 --numeric-owner --sort=name --mtime="@$(git log -1 --format=%ct)" \
    -cf - "${folder##*/}" | gzip -9n >"$folder.tar.gz"
  ARCH=$arch VERSION=${VERSION#v} BINARY=$folder/eagleray \
    go run $nfpm package --config packaging/nfpm.yaml --packager deb --target bin/dist
  rm -r "$folder"
done
(cd bin/dist && sha256sum eagleray_* >SHA256SUMS)
ls -l bin/dist
