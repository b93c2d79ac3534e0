# make run    build, serve the built-in model with two worker ranks, ask it one question
# make test   all tests
# make lint   gofmt, go vet, staticcheck
# make bench  the figures of the README

GO      ?= go
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
export CGO_ENABLED = 0

# The versions of Ray that the tests use; make test RAY= skips them.
RAY     ?= 2.35.0 2.60.0

.PHONY: build run test ray race lint bench clean

build:
	$(GO) build -trimpath -ldflags "-s -w -X main.version=$(VERSION)" -o bin/eagleray ./cmd/eagleray

run: build
	./scripts/run.sh

# The tests of whole engines on real Ray last longest, so they start first.
test: build ray
	@test -d "$${EAGLERAY_FIXTURES:-../shared/fixtures}" || echo "note: no fixtures at $${EAGLERAY_FIXTURES:-../shared/fixtures}:" \
	  "skipping the comparisons with Hugging Face's tokenizers and jinja2, and the 300 questions to the built-in model"
	$(GO) test -timeout 40m ./test/ray ./...

# Ray's pinned versions in virtual environments. A machine without Python 3.11 is told what it skips.
ray:
	@for v in $(RAY); do ./scripts/ray-venv.sh $$v || exit 1; done

# The race detector needs cgo; machines without a C compiler run the plain tests only.
race:
	CGO_ENABLED=1 $(GO) test -race -timeout 30m ./internal/...

lint:
	@test -z "$$(gofmt -l cmd internal *.go)" || { gofmt -l cmd internal *.go; echo "gofmt: the files above need formatting"; exit 1; }
	$(GO) vet ./...
	$(GO) tool staticcheck ./...

bench: build
	./scripts/bench.sh

clean:
	rm -rf bin
