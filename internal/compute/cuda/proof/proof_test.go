package proof_test

import (
	"slices"
	"testing"

	"github.com/eagleray/eagleray/internal/compute/cuda/double"
	"github.com/eagleray/eagleray/internal/compute/cuda/kernels"
	"github.com/eagleray/eagleray/internal/compute/cuda/proof"
)

// TestCases runs all cases on the machine, which looks for races and for what is undefined, and
// wants every kernel with a line in the table to be launched by a case that is about it.
func TestCases(t *testing.T) {
	cost := proof.Full
	if testing.Short() {
		cost = proof.Small
	}
	launched, err := proof.Run(t.Context(), proof.Options{Cost: cost, Seed: 7, Together: true,
		PTX:    true,
		Driver: &double.Driver{Check: true, Seed: 3, Threads: 2}}, func(f proof.Finding) {
		t.Logf("%s, %s: error %.2g of %.2g (%s)", f.Case, f.DType, f.Error, f.Tolerance, f.Output)
		if !f.Pass() {
			t.Errorf("%+v", f)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	about := map[kernels.ID]bool{}
	for _, c := range proof.Cases(cost) {
		for _, k := range c.Kernels {
			about[k] = true
		}
	}
	for _, k := range proof.Covered() {
		if launched[k] == 0 || !about[k] {
			t.Errorf("kernel %s was launched %d times; a case is about it: %v", k.Name(),
				launched[k], about[k])
		}
	}
	for k := range kernels.Count {
		if !slices.Contains(proof.Covered(), k) {
			t.Logf("kernel %s has no case yet", k.Name())
		}
	}
}

// TestCompare wants the machine to compute the same bits in another order of blocks and warps, and
// other bits of other numbers to be seen.
func TestCompare(t *testing.T) {
	if testing.Short() {
		t.Skip("TestProof of eagleray-cuda, stage silicon")
	}
	a := proof.Options{Driver: &double.Driver{Threads: 2}, PTX: true, Together: true}
	b := proof.Options{Driver: &double.Driver{Info: double.Small, Threads: 1, Seed: 11},
		PTX: true, Together: true}
	list, err := proof.Compare(t.Context(), a, b)
	if err != nil {
		t.Fatal(err)
	}
	if len(list) < len(proof.Covered()) {
		t.Errorf("%d kernels of %d", len(list), len(proof.Covered()))
	}
	for _, d := range list {
		if d.Units != 0 || d.Relative != 0 || d.Equal != d.Cases {
			t.Errorf("%+v", d)
		}
	}
}

// TestBits wants the same bits of rows on the machine, however they are computed.
func TestBits(t *testing.T) {
	if testing.Short() {
		t.Skip("TestProof of eagleray-cuda, stage bits")
	}
	n := 0
	err := proof.Bits(t.Context(), proof.Options{Driver: &double.Driver{Threads: 2}, PTX: true},
		func(s proof.Sameness) {
			n++
			if s.Differ != "" || s.Ways < 7 {
				t.Errorf("%+v", s)
			}
		})
	if err != nil || n != 22 {
		t.Errorf("%d results, %v", n, err)
	}
}
