package proof

import (
	"bytes"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/compute/cuda/double"
	"github.com/eagleray/eagleray/internal/compute/cuda/kernels"
	"github.com/eagleray/eagleray/internal/compute/cuda/ptx"
)

// equivalent are barriers that no test finds missing: lanes of a warp pass them side by side with a
// shuffle, which the machine has them pass together; CUDA promises that of memory at the barrier
// only.
const equivalent = "bar.warp.sync"

var entries = regexp.MustCompile(`(?m)^\.visible \.entry (\w+)\(`)

// kernelAt is the kernel that a line of a file's PTX is of.
func kernelAt(t *testing.T, text []byte, line int) kernels.ID {
	at := 0
	for range line {
		at += bytes.IndexByte(text[at:], '\n') + 1
	}
	all := entries.FindAllSubmatch(text[:at], -1)
	name := string(all[len(all)-1][1])
	for k := range kernels.Count {
		if k.Name() == name {
			return k
		}
	}
	t.Fatalf("line %d is of kernel %s, which is not known", line, name)
	return 0
}

// TestMutants drops, one at a time, each barrier and group of copies that kernels have, and weakens
// each wait: the cases must fail, with one schedule of three at least.
func TestMutants(t *testing.T) {
	total, every := 0, 1
	if testing.Short() {
		every = 30
	}
	var survivors []string
	machines := []*double.Driver{{Threads: 2, Check: true}, {Threads: 2, Check: true, Seed: 1},
		{Threads: 2, Check: true, Seed: 2, Info: double.Small}}
	for _, file := range kernels.Files(9, 0) {
		if file == "peers" {
			continue // TestRankMutants
		}
		image, err := kernels.PTX(file)
		if err != nil {
			t.Fatal(err)
		}
		text := image[:len(image)-1]
		for i, m := range ptx.Mutants(text) {
			if strings.Contains(m.Name, "transpose") || strings.Contains(m.Name, "swap") ||
				strings.Contains(m.Name, equivalent) || i%every != 0 {
				continue
			}
			k := kernelAt(t, text, m.Line)
			total++
			if !found(t, machines, k, text, m.Source()) {
				survivors = append(survivors, k.Name()+": "+m.Name)
			}
		}
	}
	t.Logf("%d of %d mutants found; not: %q", total-len(survivors), total, survivors)
	if len(survivors) > 0 {
		t.Errorf("%d of %d mutants were not found", len(survivors), total)
	}
}

// found says whether the cases of a kernel fail with another text in the place of its file's.
func found(t *testing.T, machines []*double.Driver, k kernels.ID, text, mutant []byte) bool {
	for _, cost := range []Cost{Small, Full} {
		for _, drv := range machines {
			drv.Replace = func(loaded []byte) []byte {
				if bytes.Equal(loaded, text) {
					return mutant
				}
				return loaded
			}
			failed := false
			_, err := Run(t.Context(), Options{Driver: drv, PTX: true, Cost: cost,
				Only: []kernels.ID{k}, Together: true},
				func(f Finding) { failed = failed || !f.Pass() })
			if err != nil || failed {
				return true
			}
		}
	}
	return false
}

// alternates is where a kernel chooses between the places that a window has for each block: by the
// last bit of its epoch.
var alternates = regexp.MustCompile(`(and\.b64\s+%rd\d+, %rd\d+, )64;`)

// TestRankMutants weakens all that orders ranks: what is released and acquired, at which scope, the
// barriers beside it, and that two places of a window alternate. All of it is found missing.
func TestRankMutants(t *testing.T) {
	image, err := kernels.PTX("peers")
	if err != nil {
		t.Fatal(err)
	}
	text := image[:len(image)-1]
	type mutant struct {
		name   string
		line   int
		source func() []byte
	}
	var all []mutant
	for _, m := range ptx.Mutants(text) {
		all = append(all, mutant{m.Name, m.Line, m.Source})
	}
	places := alternates.FindAllSubmatchIndex(text, -1)
	for _, at := range places {
		source := slices.Concat(text[:at[3]], []byte("0;"), text[at[1]:])
		all = append(all, mutant{"one place", 1 + bytes.Count(text[:at[0]], []byte("\n")),
			func() []byte { return source }})
	}
	if n := len(entries.FindAll(text, -1)); len(places) != n {
		t.Errorf("%d kernels of %d alternate", len(places), n)
	}
	machines := []*double.Driver{{Check: true}, {Check: true, Seed: 1}, {Check: true, Seed: 2}}
	for i, m := range all {
		if testing.Short() && i%8 != 5 || strings.Contains(m.name, "swap") {
			continue
		}
		if k := kernelAt(t, text, m.line); !found(t, machines, k, text, m.source()) {
			t.Errorf("%s: %s was not found", k.Name(), m.name)
		}
	}
	t.Logf("%d mutants", len(all))
}
