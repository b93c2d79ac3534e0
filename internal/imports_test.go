// Package internal has no code of its own: its test holds the rule that imports point downwards.
package internal

import (
	"cmp"
	"errors"
	"go/build"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const (
	module = "github.com/eagleray/eagleray"
	root   = "(root)" // the public Go API
)

// rooms are the folders of internal (docs/tour.md) and the page's files, lowest first. The room of
// a package is the first part of its path: a package may import packages of its own room and of
// lower ones. All other packages of the module stand above.
var rooms = []string{"web", "sys", "compute", "text", "ray", "link", "ops", "rank", "group",
	"engine", "api"}

// pure are state machines and records: they import nothing of ours but what is named, and nothing
// that waits, reads a clock, or does I/O.
var pure = map[string][]string{
	"text/typed":        nil,
	"text/output":       {"text/typed"},
	"link/balance":      {"compute"}, // devices look up which copies compute a row
	"engine/kvcache":    {"compute/grouping", "link/step"},
	"engine/draft":      {"link/step"},
	"compute/grouping":  nil,
	"link/layout":       nil,
	"sys/memory":        nil,
	"engine/rlhf/state": nil,
	// What is handed over is what the scheduler pins and fetches.
	"engine/handover/state": {"engine/schedule"},
	"compute/sample":        nil,
	"text/constrain": {"text/constrain/cfg", "text/constrain/ebnf",
		"text/constrain/lark", "text/constrain/regex", "text/constrain/schema",
		"text/constrain/tag"},
	"text/constrain/cfg":   {"text/constrain/regex"},
	"text/constrain/ebnf":  {"text/constrain/cfg", "text/constrain/regex", "text/constrain/rules"},
	"text/constrain/lark":  {"text/constrain/cfg", "text/constrain/regex", "text/constrain/rules"},
	"text/constrain/rules": {"text/constrain/cfg", "text/constrain/regex"},
	"text/constrain/regex": nil,
	// jsonx reads a text that is in memory, as encoding/json does.
	"text/constrain/schema": {"sys/jsonx", "text/constrain/cfg", "text/constrain/regex",
		"text/typed"},
	"text/constrain/tag": {"text/constrain/cfg", "text/constrain/regex", "text/constrain/schema",
		"text/typed"},
	"link/step": {"text/constrain", "compute/sample"},
	"engine/schedule": {"text/constrain", "engine/kvcache", "engine/draft", "compute/grouping",
		"compute/sample", "link/step"},
}

// narrow are packages that import nothing of ours but what is named.
var narrow = map[string][]string{
	"api/wire": {"sys/jsonx"},
	"api/call": {"api/wire", "ops/store", "ops/tracing"},
}

// impure are packages of the standard library that wait, read a clock, or do I/O.
var impure = []string{"context", "io", "log", "math/rand", "net", "os", "runtime", "sync",
	"syscall", "time"}

// unreachable are packages that a package must not import, not even through others. (The sums of
// collective need the row operations of compute/cpu/vec, not the device.)
var unreachable = map[string][]string{
	"group/executor": {"rank/builtin", "compute/cpu", "rank/model", "rank/model/checkpoint",
		"rank/model/layers", "rank/runner", "rank/worker"},
	"api/server": {"engine", "api/generate"},
	// The typed request knows neither the transport nor how a dialect writes it, and a dialect no
	// other: pooling takes conversations as chat does.
	"api/generate":  {"api/server"},
	"api/openai":    {"api/anthropic", "api/responses", "api/pooling", "api/admin", "api/batch"},
	"api/anthropic": {"api/openai", "api/responses", "api/pooling", "api/admin", "api/batch"},
	"api/responses": {"api/openai", "api/anthropic", "api/pooling", "api/admin", "api/batch"},
	"api/pooling":   {"api/anthropic", "api/responses", "api/admin", "api/batch"},
	"api/admin":     {"api/generate"},
	"api/batch":     {"api/generate"},
	"rank/model":    {"link/queue", "link/collective"},
	"link/queue": {"link/queue/fanin", "link/queue/handshake", "link/queue/link",
		"link/queue/ring"},
	"rank/runner": {"link/queue", "link/collective", "group/executor"},
}

// importers are the only packages that may import a room.
var importers = map[string][]string{
	// A worker opens the device, and opening an engine asks what it will take of memory; the lab
	// measures its kernels.
	"compute/cpu": {"link/collective", "compute/cpu", "rank/model/layers", "rank/runner",
		"rank/worker", "engine/open", "cmd/eagleray-lab", "compute/cuda"},
	// The second program has what makes a program dynamic, and the machine that stands for GPUs.
	"compute/cuda":         {"compute/cuda", "rank/gpu", "engine/open", "cmd/eagleray-cuda"},
	"rank/gpu":             {"cmd/eagleray-cuda"},
	"compute/cuda/libcuda": {"compute/cuda/libcuda", "cmd/eagleray-cuda"},
	"compute/cuda/ptx": {"compute/cuda/ptx", "compute/cuda/double", "compute/cuda/proof",
		"cmd/eagleray-cuda"},
	"rank/worker": {"group/launch/inproc", "group/launch/invited", "rank/gpu"},
}

// within says whether a package is a room, or in it.
func within(pkg, room string) bool { return pkg == room || strings.HasPrefix(pkg, room+"/") }

func withinAny(pkg string, rooms []string) bool {
	return slices.ContainsFunc(rooms, func(r string) bool { return within(pkg, r) })
}

// level is how high a package stands.
func level(pkg string) int {
	room, _, _ := strings.Cut(pkg, "/")
	if at := slices.Index(rooms, room); at >= 0 {
		return at
	}
	return len(rooms)
}

// short is the name of a package within the module, "" for others.
func short(path string) string {
	if path == module {
		return root
	}
	rest, ours := strings.CutPrefix(path, module+"/")
	if !ours {
		return ""
	}
	return strings.TrimPrefix(rest, "internal/")
}

// graph lists the imports of every package, without those of tests. It reads the sources itself, so
// that go test runs it again when they change.
func graph(t *testing.T) map[string][]string {
	t.Helper()
	const top = ".."
	g := map[string][]string{}
	err := filepath.WalkDir(top, func(dir string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case !d.IsDir():
			return nil
		case dir != top && strings.ContainsAny(d.Name()[:1], "._"), d.Name() == "testdata":
			return filepath.SkipDir
		}
		p, err := build.ImportDir(dir, 0)
		if none := (*build.NoGoError)(nil); errors.As(err, &none) {
			return nil
		}
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(top, dir)
		if err != nil {
			return err
		}
		pkg := short(path.Join(module, filepath.ToSlash(rel)))
		g[pkg] = []string{}
		for _, i := range p.Imports {
			g[pkg] = append(g[pkg], cmp.Or(short(i), i))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// chain is a way of imports from one package to another, nil for none.
func chain(g map[string][]string, from, to string) []string {
	before := map[string]string{from: ""}
	for next := []string{from}; len(next) > 0; next = next[1:] {
		for _, p := range g[next[0]] {
			if _, seen := before[p]; seen {
				continue
			}
			before[p] = next[0]
			if p != to {
				next = append(next, p)
				continue
			}
			var way []string
			for ; p != ""; p = before[p] {
				way = append(way, p)
			}
			slices.Reverse(way)
			return way
		}
	}
	return nil
}

// violations are the imports that break a rule, one line each.
func violations(g map[string][]string) []string {
	var bad []string
	say := func(parts ...string) { bad = append(bad, strings.Join(parts, "")) }
	for pkg, imports := range g {
		at := level(pkg)
		allowed, isPure := pure[pkg]
		few, isNarrow := narrow[pkg]
		for _, p := range imports {
			below := level(p)
			ours := g[p] != nil || below < len(rooms)
			switch {
			case ours && below > at:
				say(pkg, " → ", p, ": imports point downwards only")
			case isNarrow && ours && !slices.Contains(few, p):
				say(pkg, " → ", p, ": ", pkg, " imports of ours ", strings.Join(few, ", "),
					" alone")
			case isPure && ours && !slices.Contains(allowed, p):
				say(pkg, " → ", p, ": ", pkg, " is pure")
			case isPure && !ours && withinAny(p, impure):
				say(pkg, " → ", p, ": ", pkg, " knows no I/O, clock or goroutine")
			}
			for guarded, by := range importers {
				if within(p, guarded) && !withinAny(pkg, by) {
					say(pkg, " → ", p, ": only ", strings.Join(by, ", "), " import ", guarded)
				}
			}
		}
		for _, to := range unreachable[pkg] {
			if way := chain(g, pkg, to); way != nil {
				say(strings.Join(way, " → "), ": ", pkg, " must not depend on ", to)
			}
		}
	}
	slices.Sort(bad)
	return bad
}

// TestImportsPointDownwards holds the rule on what is there.
func TestImportsPointDownwards(t *testing.T) {
	g := graph(t)
	if len(g) < 40 {
		t.Fatalf("%d packages are found", len(g))
	}
	for _, v := range violations(g) {
		t.Error(v)
	}
}

// TestViolationsAreFound breaks each kind of rule once.
func TestViolationsAreFound(t *testing.T) {
	type imports = map[string][]string
	for want, g := range map[string]imports{
		"link/queue → group/executor: imports point downwards only": {
			"link/queue": {"group/executor"}},
		"rank/model → engine: imports point downwards only": {"rank/model": {"engine"}},
		"engine/schedule → sys/half: engine/schedule is pure": {"engine/schedule": {"fmt",
			"sys/half"}},
		"engine/kvcache → math/rand/v2: engine/kvcache knows no I/O, clock or goroutine": {
			"engine/kvcache": {"math/rand/v2"}},
		"api/wire → engine: api/wire imports of ours sys/jsonx alone": {"api/wire": {"engine"}},
		"engine → compute/cpu/gemm: only link/collective, compute/cpu, rank/model/layers, " +
			"rank/runner, rank/worker, engine/open, cmd/eagleray-lab, " +
			"compute/cuda import compute/cpu": {
			"engine": {"compute/cpu/gemm"}},
		"group/executor → link/join → link/step → rank/model: group/executor must not depend on " +
			"rank/model": {
			"group/executor": {"link/join"}, "link/join": {"link/step"},
			"link/step": {"rank/model"}},
	} {
		if got := violations(g); !slices.Contains(got, want) {
			t.Errorf("%v instead of %q", got, want)
		}
	}
	link := imports{"link/queue/link": {"link/queue", "link/queue/handshake", "link/status", "net"}}
	if got := violations(link); len(got) > 0 {
		t.Errorf("%v", got)
	}
}
