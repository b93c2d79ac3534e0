package proof

import (
	"bytes"
	"regexp"
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
// each wait: the cases must fail, with one schedule of three at least. At most one of 20 may be
// overlooked: a function that begins with a barrier needs it in some of its places only.
func TestMutants(t *testing.T) {
	total, every := 0, 1
	if testing.Short() {
		every = 12
	}
	var survivors []string
	machines := []*double.Driver{{Threads: 2, Check: true}, {Threads: 2, Check: true, Seed: 1},
		{Threads: 2, Check: true, Seed: 2}}
	for _, file := range kernels.Files() {
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
			if !found(t, machines, k, text, m.Source) {
				survivors = append(survivors, k.Name()+": "+m.Name)
			}
		}
	}
	t.Logf("%d of %d mutants found; not: %q", total-len(survivors), total, survivors)
	if len(survivors) > max(1, total/20) {
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
			_, err := Run(t.Context(), Options{Driver: drv, Cost: cost, Only: []kernels.ID{k}},
				func(f Finding) { failed = failed || !f.Pass() })
			if err != nil || failed {
				return true
			}
		}
	}
	return false
}
