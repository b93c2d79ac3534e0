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

// levels are the rooms of the house (docs/architecture.md), lowest first. A package may import
// packages of lower levels, and of its own room. The longest name counts: executor/launch is no
// part of executor.
var levels = [][]string{
	{"answer", "chattemplate", "constrain", "futex", "half", "jsonx", "kvcache", "layout", "logging", "memory", "offheap", "parent", "rlhf/state",
		"sample", "status", "tracing",
		"store", "transcripts", "web"},
	{"batch", "config", "fixtures", "hub", "machine", "metrics", "ray", "spin", "step",
		"tokenizer"},
	{"compute", "grammars", "model/checkpoint", "queue", "schedule"},
	{"builtin", "collective", "model", "weights"},
	{"join", "kvtransfer", "runner"},
	{"executor/launch", "worker"},
	{"executor/launch/inproc", "executor/launch/process", "executor/verdict"},
	{"executor", "executor/launch/nodes", "executor/launch/rayactor"},
	{"engine"},
	{"router"},
	{"rlhf", "window"},
	{"attach", "bench", "doctor", "openai", "route", root},
	{"cmd", "deploy", "docs", "internal", "packaging", "scripts", "test"},
}

// pure are state machines and records: they import nothing of ours but what is named, and nothing
// that waits, reads a clock, or does I/O.
var pure = map[string][]string{
	"answer":     nil,
	"kvcache":    nil,
	"layout":     nil,
	"memory":     nil,
	"rlhf/state": nil,
	"sample":     nil,
	"constrain": {"constrain/cfg", "constrain/ebnf",
		"constrain/lark", "constrain/regex", "constrain/schema", "constrain/tag"},
	"constrain/cfg":    {"constrain/regex"},
	"constrain/ebnf":   {"constrain/cfg", "constrain/regex", "constrain/rules"},
	"constrain/lark":   {"constrain/cfg", "constrain/regex", "constrain/rules"},
	"constrain/rules":  {"constrain/cfg", "constrain/regex"},
	"constrain/regex":  nil,
	"constrain/schema": {"constrain/cfg", "constrain/regex"},
	"constrain/tag":    {"constrain/cfg", "constrain/regex"},
	"step":             {"constrain", "sample"},
	"schedule":         {"constrain", "kvcache", "sample", "step"},
}

// impure are packages of the standard library that wait, read a clock, or do I/O.
var impure = []string{"context", "io", "log", "math/rand", "net", "os", "runtime", "sync",
	"syscall", "time"}

// unreachable are packages that a package must not import, not even through others. (The sums of
// collective need the row operations of compute/cpu/vec, not the device.)
var unreachable = map[string][]string{
	"executor": {"builtin", "compute/cpu", "model", "model/checkpoint", "model/layers", "runner",
		"worker"},
	"model":  {"queue", "collective"},
	"queue":  {"queue/fanin", "queue/handshake", "queue/link", "queue/ring"},
	"runner": {"queue", "collective", "executor"},
}

// importers are the only packages that may import a room.
var importers = map[string][]string{
	"compute/cpu": {"collective", "compute/cpu", "model/layers", "runner"},
	"openai":      {"cmd", "openai"},
	"worker": {"executor/launch/inproc", "executor/launch/process",
		"executor/launch/rayactor"},
}

// within says whether a package is a room, or in it.
func within(pkg, room string) bool { return pkg == room || strings.HasPrefix(pkg, room+"/") }

func withinAny(pkg string, rooms []string) bool {
	return slices.ContainsFunc(rooms, func(r string) bool { return within(pkg, r) })
}

// level is where a package stands, and its room.
func level(pkg string) (at int, room string) {
	at = -1
	for i, rooms := range levels {
		for _, r := range rooms {
			if within(pkg, r) && len(r) > len(room) {
				at, room = i, r
			}
		}
	}
	return at, room
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
		at, room := level(pkg)
		if at < 0 {
			say(pkg, " has no level: give it one in internal/imports_test.go")
		}
		allowed, isPure := pure[pkg]
		for _, p := range imports {
			below, other := level(p)
			ours := g[p] != nil || below >= 0
			switch {
			case at >= 0 && below >= at && other != room:
				say(pkg, " → ", p, ": imports point downwards only")
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
		"queue → executor: imports point downwards only": {"queue": {"executor"}},
		"collective/tcp → model: imports point downwards only": {
			"collective/tcp": {"model"}},
		"pantry has no level: give it one in internal/imports_test.go": {"pantry": nil},
		"schedule → half: schedule is pure": {"schedule": {"fmt",
			"half"}},
		"kvcache → math/rand/v2: kvcache knows no I/O, clock or goroutine": {
			"kvcache": {"math/rand/v2"}},
		"engine → compute/cpu/gemm: only collective, compute/cpu, model/layers, runner import compute/cpu": {
			"engine": {"compute/cpu/gemm"}},
		"executor → join → step → model: executor must not depend on model": {
			"executor": {"join"}, "join": {"step"}, "step": {"model"}},
	} {
		if got := violations(g); !slices.Contains(got, want) {
			t.Errorf("%v instead of %q", got, want)
		}
	}
	link := imports{"queue/link": {"queue", "queue/handshake", "status", "net"}}
	if got := violations(link); len(got) > 0 {
		t.Errorf("%v", got)
	}
}
