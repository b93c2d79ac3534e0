#!/usr/bin/env bash
# Builds what a release consists of, into bin/dist: for amd64 and arm64 an archive with the static
# binary, the manual and the completions, a Debian package, a container image for "docker load", and
# a Python wheel.
# It needs no Docker; nothing is published.
#
#   scripts/dist.sh          all of it
#   scripts/dist.sh share    only the manual and the completions, into bin/share, and the Python
#                            package without the binary and the certificates, into bin/python and
#                            bin/ca-certificates.crt
#
# VERSION is the release; without a tag it is 0.0.0-g and the commit. CERTIFICATES are the
# authorities that the image trusts, by default this machine's.
set -euo pipefail
cd "$(dirname "$0")/.."
export CGO_ENABLED=0
# need says in one line what is missing, before anything is built.
need() { # WHAT COMMAND...
  "${@:2}" >/dev/null 2>&1 || { echo "scripts/dist.sh needs $1" >&2; exit 1; }
}
need "Go (go.mod says which)" go version
need "git and a clone with a commit" git rev-parse HEAD
need "GNU tar" tar --sort=name -cf /dev/null -T /dev/null
need gzip gzip --version
nfpm=github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.43.0
commit=$(git rev-parse --short=12 HEAD)
tag=$(git describe --tags --exact-match --match 'v*' 2>/dev/null || true)
VERSION=${VERSION:-${tag:-0.0.0-g$commit}}
CERTIFICATES=${CERTIFICATES:-/etc/ssl/certs/ca-certificates.crt}
need "certificates of authorities: CERTIFICATES=$CERTIFICATES is no file" test -f "$CERTIFICATES"

build() { # ARCH FILE
  GOOS=linux GOARCH=$1 go build -trimpath -ldflags "-s -w -X main.release=$VERSION" -o "$2" \
    ./cmd/eagleray
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
  install -m 644 "$CERTIFICATES" bin/ca-certificates.crt
  mkdir -p bin/models
  rm -rf bin/python
  (cd python && find eagleray -name '*.py' -o -name py.typed) | while read -r file; do
    install -D -m 644 "python/$file" "bin/python/$file"
  done
}

OWNER=0:0
pack() { # FOLDER NAMES...: an archive that depends on nothing but the files and the commit
  tar -C "$1" --owner="${OWNER%:*}" --group="${OWNER#*:}" --numeric-owner --sort=name \
    --mtime="@$(git log -1 --format=%ct)" -cf - "${@:2}"
}

# image writes what packaging/Dockerfile describes, whose lines it reads, as "docker save" would.
# The layer is compressed in it, not the whole: buildah 1.28 reads no gzipped archive.
image() { # ARCH BINARY FILE
  local stage
  stage=$(mktemp -d)
  line() { sed -n "s/^$1 //p" packaging/Dockerfile; }
  install -D -m 755 "$2" "$stage/root/usr/bin/eagleray"
  install -D -m 644 "$CERTIFICATES" "$stage/root/etc/ssl/certs/ca-certificates.crt"
  mkdir -p "$stage/root/usr/share/eagleray"
  cp -r bin/python "$stage/root/usr/share/eagleray/python"
  mkdir -p "$stage/root/models"
  pack "$stage/root" etc usr >"$stage/layer.tar"
  OWNER=$(line USER) pack "$stage/root" models >"$stage/models.tar"
  tar -Af "$stage/layer.tar" "$stage/models.tar"
  cat >"$stage/config.json" <<END
{"os":"linux","architecture":"$1","created":"$(git log -1 --format=%cI)",
 "config":{"Env":["PATH=/usr/bin","$(line ENV)"],"User":"$(line USER)",
  "ExposedPorts":{"$(line EXPOSE)/tcp":{}},"Entrypoint":$(line ENTRYPOINT),"Cmd":$(line CMD)},
 "rootfs":{"type":"layers","diff_ids":["sha256:$(sha256sum "$stage/layer.tar" | cut -d' ' -f1)"]}}
END
  cat >"$stage/manifest.json" <<END
[{"Config":"config.json","RepoTags":["eagleray:${VERSION#v}-$1"],"Layers":["layer.tar.gz"]}]
END
  gzip -9n "$stage/layer.tar"
  pack "$stage" manifest.json config.json layer.tar.gz >"$3"
  rm -r "$stage"
}

[ "${1:-}" = share ] || need "Python 3.11 or newer, for the wheels" python3 -c "import tomllib"
share
[ "${1:-}" != share ] || exit 0
rm -rf bin/dist
mkdir -p bin/dist
for arch in amd64 arm64; do
  folder=bin/dist/eagleray_${VERSION#v}_linux_$arch
  mkdir "$folder"
  build $arch "$folder/eagleray"
  scripts/attach.sh $arch "$folder/eagleray"
  cp -r LICENSE README.md bin/share/man bin/share/completions "$folder"
  pack bin/dist "${folder##*/}" | gzip -9n >"$folder.tar.gz"
  ARCH=$arch VERSION=${VERSION#v} BINARY=$folder/eagleray \
    go run $nfpm package --config packaging/nfpm.yaml --packager deb --target bin/dist
  image $arch "$folder/eagleray" "${folder}_image.tar"
  env "VERSION=$VERSION" "BINARY_$arch=$folder/eagleray" scripts/wheel.sh $arch
  rm -r "$folder"
done
(cd bin/dist && sha256sum eagleray[_-]* >SHA256SUMS)
ls -l bin/dist
