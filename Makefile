# make run        build, serve the built-in model with two worker ranks, ask it one question
# make test       everything but real Ray, in two to five minutes
# make test-ray   every fact about Ray that is relied on, and whole engines, on two versions of Ray
# make test-clients  openai-python, openai-node, anthropic and the Python package against the built-in model
# make test-kubernetes  the chart and the manifests against Helm and published schemas (kubeconform)
# make test-isa   the tests of kernels of AVX-512 and AMX, simulated where the CPU lacks them (x86-64 with AVX2)
# make test-full  everything: all cases on real Ray, the long random walks, the race detector; before a release
# make race       the tests under the race detector, with the processes that they start and real Ray
# make lint       gofmt, go vet, staticcheck, ruff, mypy: each finding with how to mend it
# make kernels    PTX of the CUDA kernels, by pinned compilers; lint compares it
# make cross      the program for arm64, run by qemu's user emulation where that is installed
# make bench      the figures of the README (bin/eagleray-lab measures parts by themselves)
# make dist       archives, Debian packages, container images and Python wheels, in bin/dist

GO      ?= go
# The release of a tagged commit, else the commit and its date.
VERSION ?= $(shell exec 2>/dev/null; \
  v=$$(git describe --tags --exact-match --match 'v*' || git log -1 --abbrev=12 --format='commit %h of %cs'); \
  [ -z "$$v" ] || git diff --quiet HEAD || v="$$v, changed"; echo "$$v")
export CGO_ENABLED = 0
# One for all, so that programs, tests and linters share what was compiled.
export GOFLAGS := -trimpath $(GOFLAGS)

# The versions of Ray that the tests use.
RAY     ?= 2.35.0 2.60.0
# What test-isa runs.
ISATESTS = 'internal/compute/cpu/isa' 'internal/compute/cpu/amx' \
  'internal/compute/cpu/gemm -test.v -test.timeout=2h -test.run=Bits|Agree|Tiles|Conversions' \
  'internal/compute/cpu/vec -test.short' \
  'internal/compute/cpu/attention -test.short -test.timeout=2h -test.skip=LongContext|LatentBits' \
  'internal/rank/model -test.timeout=2h -test.run=TestGoldens/(llama|qwen3)-tiny/a(vx512|mx)'
FIXTURES = $${EAGLERAY_FIXTURES:-../shared/fixtures}
# Exits with 1 when it has read of a failure.
TESTLOG  = $(GO) run ./scripts/testlog
# Packages tested at a time: many tests wait (for processes to end, for deadlines) rather than compute.
TESTERS  ?= $(shell expr 3 \* $$(nproc))

.PHONY: build cross run test test-isa test-clients test-ray test-kubernetes test-full ray race lint kernels bench dist clean

build:
	$(GO) build -ldflags "-s -w -X 'main.release=$(VERSION)'" -o bin/ ./cmd/eagleray ./cmd/eagleray-lab ./cmd/eagleray-cuda
	$(GO) run ./scripts/attach bin/eagleray bin/eagleray-cuda

run: build
	./scripts/run.sh

# -short is for random walks and loops that test-full runs at length, and for ranks on a machine for PTX, which then
# compute two layers of their models. Without tables for debuggers a hundred test programs are linked in half the time;
# make lint vets them. Garbage is collected less often, which saves a sixth of the processor's time: test-full collects
# it as users' programs do. What takes longest comes first.
test: build
	@test -d "$(FIXTURES)" || echo "note: no fixtures at $(FIXTURES):" \
	  "skipping the comparisons with Hugging Face's tokenizers and jinja2, and the questions to the built-in model"
	GOGC=400 $(GO) test -json -short -vet=off -timeout 15m -ldflags "-s -w" -p $(TESTERS) \
	  ./internal/engine ./internal/rank/model ./cmd/eagleray ./test/ray ./... | $(TESTLOG)

test-ray: build ray
	./scripts/test-ray.sh "$(RAY)"

test-clients:
	GO=$(GO) ./scripts/test-clients.sh

# One instruction after the other: minutes.
test-isa:
	@case $$(uname -sm) in "Linux x86_64") $(GO) run ./scripts/simulate -all $(ISATESTS);; \
	*) echo "not run: the simulation of AVX-512 and AMX, which is of Linux on x86-64";; esac

# Helm takes minutes to build, once. -rewrite renders the chart anew into deploy/helm/rendered.
test-kubernetes:
	EAGLERAY_KUBERNETES=1 $(GO) test -count=1 -timeout 20m ./deploy

# Ray first: without clusters beside them the others are quick.
test-full: build cross ray
	./scripts/test-ray.sh "$(RAY)" full
	GO=$(GO) ./scripts/test-clients.sh
	$(MAKE) test-kubernetes
	./scripts/test-rlhf.sh
	./scripts/test-trl.sh
	./scripts/test-lm-eval.sh
	$(GO) test -json -count=1 -timeout 30m ./... | $(TESTLOG)
	$(MAKE) race

# Ray's pinned versions in virtual environments. A machine without Python 3.11 is told what it skips.
ray:
	@for v in $(RAY); do ./scripts/ray-venv.sh $$v || exit 1; done

# The race detector, which needs a C compiler: on the packages, on the programs that tests start as users do, with
# their ranks, and on what they start on Ray.
race: ray
	CGO_ENABLED=1 $(GO) test -json -race -short -timeout 60m ./... | $(TESTLOG)
	CGO_ENABLED=1 GOFLAGS="-race $$GOFLAGS" GO=$(GO) ./scripts/test-ray.sh "$(RAY)"

lint:
	./scripts/lint.sh

# PTX of the CUDA device's kernels, and the table of what they take, by the compilers in requirements/cuda.txt.
kernels:
	GO=$(GO) ./scripts/kernels.sh

cross:
	GOOS=linux GOARCH=arm64 $(GO) build -o bin/eagleray-arm64 ./cmd/eagleray
	@if q=$$(command -v qemu-aarch64-static || command -v qemu-aarch64); then set -e; \
	  $$q bin/eagleray-arm64 version; \
	  answer=$$($$q bin/eagleray-arm64 generate "What does os.Open do?"); echo "$$answer"; \
	  [ "$$answer" = "Open opens the named file for reading." ]; \
	else echo "not run: no qemu-aarch64 (Debian: apt-get install qemu-user-static)"; fi

bench: build
	./scripts/bench.sh

dist:
	./scripts/dist.sh

clean:
	rm -rf bin
