package amx_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu/amx"
	"github.com/eagleray/eagleray/internal/compute/cpu/isa"
	"github.com/eagleray/eagleray/internal/sys/half"
)

func available(t *testing.T) {
	t.Helper()
	if !isa.Available(isa.AMX) {
		t.Skip("this machine has no AMX (see scripts/simulate)")
	}
}

// numbers are of all kinds, denormals and NaN included.
func numbers(r *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		u := r.Uint32()
		if r.IntN(4) == 0 {
			u &= 0x80ffffff // around the smallest normal number
		}
		x[i] = math.Float32frombits(u)
	}
	return x
}

// TestRound rounds rows of any length, and wants their places in blocks.
func TestRound(t *testing.T) {
	available(t)
	const block = amx.Block * amx.Block
	r := rand.New(rand.NewPCG(1, 2))
	for n := range 200 {
		row, dst := numbers(r, n), make([]uint16, (n/amx.Block+1)*block)
		amx.Round(dst[5*amx.Block:], row)
		for i, v := range row {
			got, want := dst[i/amx.Block*block+5*amx.Block+i%amx.Block], half.ToBF16(amx.Flushed(v))
			if got != want {
				t.Fatalf("%d numbers: %d, %x, is %#x instead of %#x", n, i, math.Float32bits(v),
					got, want)
			}
		}
	}
}

// TestPair weaves rows of which every number tells its place.
func TestPair(t *testing.T) {
	available(t)
	const pairs, step = 9, 128
	src := make([]uint16, 2*pairs*16)
	for row := range 2 * pairs {
		for i := range 16 {
			src[row*16+i%8*2+i/8] = uint16(row*16 + i)
		}
	}
	dst := make([]uint16, pairs*step/2)
	amx.Pair(unsafe.Pointer(&dst[0]), step, unsafe.Pointer(&src[0]), pairs, 0)
	for k := range pairs {
		for i := range 32 {
			if got, want := dst[k*step/2+i], uint16((2*k+i%2)*16+i/2); got != want {
				t.Fatalf("pair %d: number %d is %d instead of %d", k, i, got, want)
			}
		}
	}
}

// multiplied is one sum in the order of TDPBF16PS, of factors and products that are no denormals.
func multiplied(x, w []float32, sum float32) float32 {
	for at := 0; at < len(x); at += amx.Block {
		var chain [2]float64
		for k := at; k < min(at+amx.Block, len(x)); k++ {
			// The product is exact in float64, and the sum of small integers.
			chain[k%2] += float64(x[k]) * float64(w[k])
		}
		sum += float32(chain[0]) + float32(chain[1])
	}
	return sum
}

// TestMultiply multiplies small integers, whose sums are exact in any order, by numbers of rows,
// panels and steps around the sizes of tiles, and wants nothing beside them written.
func TestMultiply(t *testing.T) {
	available(t)
	const block = amx.Block * amx.Block
	r := rand.New(rand.NewPCG(3, 4))
	for range 400 {
		rows, panels, pairs, add := 1+r.IntN(100), 1+r.IntN(4), r.IntN(70), r.IntN(2)
		blocks := (pairs*2 + amx.Block - 1) / amx.Block
		x := make([]float32, rows*pairs*2)
		w := make([]float32, panels*amx.Block*pairs*2) // [column][step]
		for i := range x {
			x[i] = float32(r.IntN(9) - 4)
		}
		for i := range w {
			w[i] = float32(r.IntN(9) - 4)
		}
		packed := make([]uint16, (rows+31)/32*max(blocks, 1)*block)
		for i := range rows {
			amx.Round(packed[i/32*blocks*block+i%32*32:], x[i*pairs*2:(i+1)*pairs*2])
		}
		stride := pairs*amx.Block*2 + 64
		woven := make([]uint16, panels*stride+64)
		for c := range panels * amx.Block {
			for k := range pairs * 2 {
				woven[c/32*stride+k/2*64+c%32*2+k%2] = half.ToBF16(w[c*pairs*2+k])
			}
		}
		const margin = 3
		width := panels*amx.Block + margin
		sums := make([]float32, rows*width+margin)
		for i := range sums {
			sums[i] = float32(i % 7)
		}
		amx.Multiply(unsafe.Pointer(&woven[0]), 2*stride, panels, unsafe.Pointer(&packed[0]),
			blocks*amx.BlockBytes, pairs, rows, unsafe.Pointer(&sums[0]), width*4, add, 0,
			4*amx.Block)
		for i, got := range sums {
			row, col := i/width, i%width
			want := float32(i % 7)
			if row < rows && col < panels*amx.Block {
				want = multiplied(x[row*pairs*2:(row+1)*pairs*2],
					w[col*pairs*2:(col+1)*pairs*2], want*float32(add))
			}
			if got != want {
				t.Fatalf("%d rows, %d panels, %d pairs, add %d: [%d, %d] is %v instead of %v", rows,
					panels, pairs, add, row, col, got, want)
			}
		}
	}
}

// TestMultiplyPieces wants the sums of each of some pieces of K of one call that a call of its own
// makes.
func TestMultiplyPieces(t *testing.T) {
	available(t)
	r := rand.New(rand.NewPCG(5, 6))
	for range 50 {
		rows, pieces, blocks := 1+r.IntN(300), 2+r.IntN(7), 1+r.IntN(4)
		across := pieces * blocks
		x := make([]uint16, (rows+31)/32*across*amx.Block*amx.Block)
		w := make([]uint16, (across+blocks)*amx.Block*amx.Block)
		for _, s := range [][]uint16{x, w} {
			for i := range s {
				s[i] = half.ToBF16(float32(r.NormFloat64()))
			}
		}
		got := make([]float32, pieces*rows*amx.Block)
		want := make([]float32, len(got))
		multiply := func(piece, count int, c []float32) {
			amx.Multiply(unsafe.Pointer(&w[piece*blocks*amx.Block*amx.Block]),
				blocks*amx.BlockBytes, count,
				unsafe.Pointer(&x[piece*blocks*amx.Block*amx.Block]), across*amx.BlockBytes,
				blocks*amx.Block/2, rows, unsafe.Pointer(&c[piece*rows*amx.Block]),
				4*amx.Block, 0, blocks*amx.BlockBytes, rows*4*amx.Block)
		}
		multiply(0, pieces, got)
		for i := range pieces {
			multiply(i, 1, want)
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%d rows, %d pieces of %d blocks: other sums", rows, pieces, blocks)
		}
	}
}

// TestMultiplyCodes multiplies integers, with scales and offsets that keep their sums exact, by
// numbers of blocks, runs, spans and steps, and wants nothing beside them written.
func TestMultiplyCodes(t *testing.T) {
	available(t)
	const panel = 32
	r := rand.New(rand.NewPCG(5, 6))
	bytes := func(n int) []int8 {
		b := make([]int8, n+64)
		for i := range b {
			b[i] = int8(r.IntN(255) - 127)
		}
		return b[-uintptr(unsafe.Pointer(&b[0]))&63:]
	}
	for range 200 {
		blocks, runs, spans, steps := 1+r.IntN(4), 1+r.IntN(5), 1+r.IntN(3), 1+r.IntN(3)
		depth, rows := 8*(1+r.IntN(8)), amx.CodeRows*blocks
		span := 4*amx.CodeRows + amx.CodeRows*steps*depth
		run := 2*4*panel + spans*steps*depth*panel
		x, w := bytes(blocks*runs*spans*span), bytes(runs*run)
		sums := make([]float32, runs*rows)
		numbers := func(b []int8, at, n int) []float32 {
			return unsafe.Slice((*float32)(unsafe.Pointer(&b[at])), n)
		}
		for i := range blocks * runs * spans {
			for j := range amx.CodeRows {
				numbers(x, i*span, amx.CodeRows)[j] = float32(r.IntN(3))
			}
		}
		for i := range runs {
			for j := range 2 * panel {
				numbers(w, i*run, 2*panel)[j] = float32(r.IntN(5) - 2)
			}
		}
		for i := range sums {
			sums[i] = float32(r.IntN(9))
		}
		const margin = 3
		c := make([]float32, (panel+margin)*rows+margin)
		for i := range c {
			c[i] = float32(i % 7)
		}
		call := amx.CodeCall{W: unsafe.Pointer(&w[2*4*panel]), Skip: 2 * 4 * panel,
			Scale: unsafe.Pointer(&w[0]), ScaleStep: uintptr(run), X: unsafe.Pointer(&x[0]),
			XStride: uintptr(runs * spans * span), Runs: runs, Spans: spans, Steps: steps,
			Depth: depth, Blocks: blocks, C: unsafe.Pointer(&c[0]), CStride: 4 * (panel + margin),
			Sums: unsafe.Pointer(&sums[0]), SumStep: uintptr(4 * rows),
			Flags: amx.CodeWideScale | amx.CodeWideOffset}
		add, offset := r.IntN(2) > 0, r.IntN(2) > 0
		if add {
			call.Flags |= amx.CodeAdd
		}
		if offset {
			call.Offset = 4 * panel
		}
		amx.MultiplyCodes(&call)
		for i, got := range c {
			row, col := i/(panel+margin), i%(panel+margin)
			want := float32(i % 7)
			if row < rows && col < panel {
				if !add {
					want = 0
				}
				for at := range runs {
					var sum float32
					for s := range spans {
						block := x[((row/amx.CodeRows*runs+at)*spans+s)*span:]
						dot := 0
						for k := range steps * depth {
							v := block[4*amx.CodeRows+row%amx.CodeRows*steps*depth+k]
							dot += int(v) * int(w[at*run+2*4*panel+s*steps*depth*panel+
								k/4*4*panel+4*col+k%4])
						}
						sum += float32(dot) * numbers(block, 0, amx.CodeRows)[row%amx.CodeRows]
					}
					want += sum * numbers(w, at*run, panel)[col]
					if offset {
						want += sums[at*rows+row] * numbers(w, at*run+4*panel, panel)[col]
					}
				}
			}
			if got != want {
				t.Fatalf("%d blocks, %d runs of %d spans of %d steps of %d: [%d, %d] is %v, not %v",
					blocks, runs, spans, steps, depth, row, col, got, want)
			}
		}
	}
}

// TestUnpack looks random codes up.
func TestUnpack(t *testing.T) {
	available(t)
	r := rand.New(rand.NewPCG(7, 9))
	const runs, blocks, skip = 3, 5, 24
	var values [16]int8
	for i := range values {
		values[i] = int8(r.Uint32())
	}
	src := make([]byte, runs*(blocks*128+skip))
	for i := range src {
		src[i] = byte(r.Uint32())
	}
	dst := make([]int8, runs*blocks*256)
	amx.Unpack(unsafe.Pointer(&dst[0]), unsafe.Pointer(&src[0]), runs, blocks, skip, &values)
	for i, got := range dst {
		block, half, at := i/256, i/128%2, i%128
		code := src[block/blocks*(blocks*128+skip)+block%blocks*128+at] >> (4 * half) & 15
		if got != values[code] {
			t.Fatalf("number %d is %d, not %d", i, got, values[code])
		}
	}
}

// TestWeigh compares weights with those of float64, and wants none elsewhere: of any range, with
// infinities and NaN among the scores.
func TestWeigh(t *testing.T) {
	available(t)
	const block = amx.Block * amx.Block
	r := rand.New(rand.NewPCG(7, 8))
	for round := range 2000 {
		blocks := 1 + r.IntN(5)
		n := blocks * amx.Block
		from := r.IntN(n)
		until := from + 1 + r.IntN(n-from)
		scores := make([]float32, n)
		for i := range scores {
			scores[i] = float32(r.NormFloat64() * math.Exp(r.Float64()*6-2))
		}
		special := float32(math.Inf(-1))
		if round%10 == 0 {
			special = []float32{special, float32(math.Inf(1)), float32(math.NaN())}[r.IntN(3)]
			scores[from+r.IntN(until-from)] = special
		}
		all := append([]float32(nil), scores[from:until]...)
		dst := make([]uint16, (blocks-1)*block+amx.Block)
		for i := range dst {
			dst[i] = 0x1234
		}
		var scales []float32
		scale := func(int) float64 { return 1 }
		if round%2 == 1 {
			scales = make([]float32, n)
			for i := range scales {
				scales[i] = r.Float32()
			}
			scale = func(i int) float64 { return float64(scales[i]) }
		}
		top, sum := amx.Weigh(dst, scores, from, until, scales)
		want, greatest := 0., math.Inf(-1)
		for _, v := range all {
			greatest = max(greatest, float64(v))
		}
		for i, got := range dst {
			at := i / block * amx.Block
			k := i % block
			if k >= amx.Block {
				if got != 0x1234 {
					t.Fatalf("[%d, %d) of %d: wrote beside the row", from, until, n)
				}
				continue
			}
			at += k
			w := 0.
			if at >= from && at < until && !math.IsInf(greatest, -1) {
				w = math.Exp(float64(all[at-from]) - greatest)
			}
			want += w
			w *= scale(at)
			off := math.Abs(float64(half.FromBF16(got)) - w)
			if special == special && !math.IsInf(float64(special), 1) && !(off <= w/250+1e-37) {
				t.Fatalf("[%d, %d) of %d: weight %d is %v, not %v", from, until, n, at,
					half.FromBF16(got), w)
			}
		}
		if want != want {
			if sum == sum {
				t.Fatalf("the sum is %v of scores with NaN or infinity", sum)
			}
			continue
		}
		if float64(top) != greatest || !(math.Abs(float64(sum)-want) <= want*1e-5) {
			t.Fatalf("[%d, %d) of %d: %v, %v, not %v, %v", from, until, n, top, sum, greatest, want)
		}
	}
}

// TestPairCodes weaves rows of all codes, which must be the numbers that they stand for.
func TestPairCodes(t *testing.T) {
	available(t)
	const pairs, step = 16, 128
	src := make([]byte, 2*pairs*16)
	for i := range src {
		src[i] = byte(i * 37)
	}
	codes := compute.Codes{Type: compute.CodeE4M3}
	for name, c := range map[string]struct {
		pair   func(dst unsafe.Pointer, step int, src unsafe.Pointer, pairs, ahead int)
		number func(code byte) float32
		none   byte // stands for nothing, without its sign
	}{
		"int8": {amx.PairInt8, func(code byte) float32 { return float32(int8(code)) }, 0},
		"e4m3": {amx.PairE4M3, func(code byte) float32 { return codes.Number(code) / 256 }, 0x7f},
	} {
		dst := make([]uint16, pairs*step/2)
		c.pair(unsafe.Pointer(&dst[0]), step, unsafe.Pointer(&src[0]), pairs, 0)
		for k := range pairs {
			for i := range 32 {
				code := src[(2*k+i%2)*16+i/2]
				if code&0x7f == c.none && code != 0 {
					continue
				}
				if got, want := half.FromBF16(dst[k*step/2+i]), c.number(code); got != want {
					t.Fatalf("%s, pair %d: number %d, code %#x, is %v instead of %v", name, k, i,
						code, got, want)
				}
			}
		}
	}
}
