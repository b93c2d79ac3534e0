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
		instructions[[3]int{2, 1, 0x18d}].run(nil, &to, index, a)
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

// TestPairs runs the instructions that weave codes as package amx does, and wants its panels.
func TestPairs(t *testing.T) {
	if !isa.Available(isa.AMX) {
		t.Skip("this machine has no AMX")
	}
	run := func(key [3]int, to *vector, b, a vector) { instructions[key].run(nil, to, b, a) }
	r := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		th := &thread{}
		var codes, order, z0, z1, z2 vector
		for i := range codes {
			codes[i] = r.Uint32()
		}
		for i := range byte(64) { // two pairs of rows, four columns each, by turns
			from := i/8%2*32 + i%2*16 + i/16*4 + i%8/2
			order[i/4] |= uint32(from) << (i % 4 * 8)
		}
		run([3]int{2, 1, 0x8d}, &z0, order, codes)
		for i := range byte(64) {
			if got, want := z0.byte(i), codes.byte(order.byte(i)); got != want {
				t.Fatalf("VPERMB: byte %d is %#x instead of %#x", i, got, want)
			}
		}
		// Tables of integers, as in blocks_amd64.s.
		var low, high [2]vector
		for i := range 128 {
			number := math.Float32bits(float32(i)) >> 16
			low[i/64][i%64/4] |= number & 255 << (i % 4 * 8)
			high[i/64][i%64/4] |= number >> 8 << (i % 4 * 8)
		}
		run([3]int{2, 1, 0x1c}, &z1, vector{}, z0)
		z2 = z1
		run([3]int{2, 1, 0x75}, &z1, low[0], low[1])
		run([3]int{2, 1, 0x75}, &z2, high[0], high[1])
		th.z[2], th.z[0] = z2, z0
		var signs vector
		for i := range signs {
			signs[i] = 0x80808080
		}
		instructions[[3]int{3, 1, 0x25}].shift(th, 2, 0, signs, 0xf8)
		var first, second vector
		run([3]int{1, 1, 0x60}, &first, z1, th.z[2])
		run([3]int{1, 1, 0x68}, &second, z1, th.z[2])
		want := make([]uint16, 64)
		amx.PairInt8(unsafe.Pointer(&want[0]), 64, unsafe.Pointer(&codes[0]), 2, 0)
		compare(t, "the first pair", &first, want[:32])
		compare(t, "the second pair", &second, want[32:])
	}
}
