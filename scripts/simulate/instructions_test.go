package main

import (
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/eagleray/eagleray/internal/compute/cpu/amx"
	"github.com/eagleray/eagleray/internal/compute/cpu/isa"
	"github.com/eagleray/eagleray/internal/compute/cpu/vec"
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
		wides[[3]int{2, 1, 0x8d}].run(nil, &to, index, a)
		compare(t, "VPERMW", &to, want)
	}
}

// TestCodes holds TDPBSSD to that of a CPU that has it.
func TestCodes(t *testing.T) {
	if !isa.Available(isa.AMX) {
		t.Skip("this machine has no AMX")
	}
	r := rand.New(rand.NewPCG(3, 4))
	const depth = 64
	for range 100 {
		// A block of x of one span, with its scales, and half a panel of w twice.
		x := make([]int8, 4*amx.CodeRows+amx.CodeRows*depth)
		w := make([]int8, 32*depth)
		for i := range x {
			x[i] = int8(r.Uint32())
		}
		for i := range w {
			w[i] = int8(r.Uint32())
		}
		scales := unsafe.Slice((*float32)(unsafe.Pointer(&x[0])), amx.CodeRows)
		ones := make([]float32, 32)
		for i := range ones {
			ones[i], scales[i%len(scales)] = 1, 1
		}
		c := make([]float32, 32*amx.CodeRows)
		amx.MultiplyCodes(&amx.CodeCall{W: unsafe.Pointer(&w[0]), X: unsafe.Pointer(&x[0]),
			Scale: unsafe.Pointer(&ones[0]), Runs: 1, Spans: 1, Steps: 1, Depth: depth, Blocks: 1,
			C: unsafe.Pointer(&c[0]), CStride: 4 * 32, Flags: 1})
		full := tile{rows: 16, bytes: 64}
		sums, a, b := full, full, full
		for i := range amx.CodeRows {
			a.row[i] = *(*vector)(unsafe.Pointer(&x[4*amx.CodeRows+i*depth]))
			b.row[i] = *(*vector)(unsafe.Pointer(&w[i*128]))
		}
		dot("TDPBSSD", &sums, &a, &b, quads)
		for i := range amx.CodeRows {
			for j, sum := range sums.row[i] {
				if got := c[32*i+j]; got != float32(int32(sum)) {
					t.Fatalf("TDPBSSD: [%d, %d] is %d instead of %v", i, j, int32(sum), got)
				}
			}
		}
	}
}

// TestDoubles holds instructions of float64 to those of a CPU that has AVX-512.
func TestDoubles(t *testing.T) {
	if !isa.Available(isa.AVX512) {
		t.Skip("this machine has no AVX-512")
	}
	r := rand.New(rand.NewPCG(5, 6))
	number := func() float32 { return float32(math.Ldexp(r.NormFloat64(), r.IntN(60)-45)) }
	for range 1000 {
		var sums [16]float64
		var x [16]float32
		a := number()
		for i := range x {
			sums[i], x[i] = float64(number()), number()
		}
		want := sums
		vec.New(isa.AVX512).FixedAxpy(want[:], a, x[:], 1, 0)
		for half := range 2 {
			var from vector
			copy(from[:], unsafe.Slice((*uint32)(unsafe.Pointer(&x[8*half])), 8))
			got := *(*vector)(unsafe.Pointer(&sums[8*half]))
			var by, add, product vector
			for i := range 8 {
				by.setDouble(i, float64(a))
				add.setDouble(i, 1.5*(1<<22))
			}
			instructions[[3]int{1, 0, 0x5a}].run(nil, &product, vector{}, from)
			wides[[3]int{2, 1, 0xa8}].run(nil, &product, by, add)
			wides[[3]int{1, 1, 0x5c}].run(nil, &product, product, add)
			wides[[3]int{1, 1, 0x58}].run(nil, &got, got, product)
			for i := range 8 {
				if w := want[8*half+i]; got.double(i) != w {
					t.Fatalf("%v·%v to %v: %v instead of %v", a, x[8*half+i], sums[8*half+i],
						got.double(i), w)
				}
			}
		}
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
