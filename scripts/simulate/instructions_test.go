package main

import (
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/eagleray/eagleray/internal/compute/cpu/amx"
	"github.com/eagleray/eagleray/internal/compute/cpu/isa"
)

// TestBlocks holds the instructions that make blocks and panels for AMX to those of a CPU that has
// them.
func TestBlocks(t *testing.T) {
	if !isa.Available(isa.AMX) {
		t.Skip("this machine has no AMX")
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		var a, b, to, index vector
		row := make([]float32, 2*len(a))
		for i := range row {
			u := r.Uint32()
			if r.IntN(4) == 0 {
				u &= 0x80ffffff // around the smallest normal number
			}
			row[i] = math.Float32frombits(u)
			if i < len(a) {
				a[i] = u
			} else {
				b[i-len(a)] = u
			}
		}
		want := make([]uint16, amx.Block)
		amx.Round(want, row)
		instructions[[3]int{2, 3, 0x72}].run(nil, &to, b, a)
		compare(t, "VCVTNE2PS2BF16", &to, want)

		for i := range index {
			place := uint32(i%8*2 + i/8)
			index[i] = place | (16+place)<<16
		}
		amx.Pair(unsafe.Pointer(&want[0]), 0, unsafe.Pointer(&a[0]), 1, 0)
		instructions[[3]int{2, 1, 0x8d}].run(nil, &to, index, a)
		compare(t, "VPERMW", &to, want)
	}
}

func compare(t *testing.T, name string, to *vector, want []uint16) {
	t.Helper()
	for i, w := range want {
		if got := uint16(to[i/2] >> (i % 2 * 16)); got != w {
			t.Fatalf("%s: number %d is %#x instead of %#x", name, i, got, w)
		}
	}
}
