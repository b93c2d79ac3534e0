package gemm

import (
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu/isa"
)

// dotElement is codeElement of x that is rounded, by what dots.go says; the sum in float64 is of
// rounded numbers.
func dotElement(q *compute.Codes, row int, numbers, x []float32, chunks int, pieces []float32) (
	_ []float32, exact, magnitude float64) {
	groups := q.Groups()
	s := Source{Cols: max(q.Of, q.Cols), ColLo: q.From, ColHi: q.From + q.Cols}
	start := s.cut(chunks)
	for i := range chunks {
		var acc float32
		for at := start[i]; at < start[i+1]; {
			g, end := groupOf(q, at), at+1
			for end < start[i+1] && groupOf(q, end) == g && end < at+1024 {
				end++
			}
			super := q.Super > 0 && q.Group%8 == 0 && q.Group <= 32 && q.Group > 0 &&
				(q.Type == compute.Code4 || q.Offset != nil || q.Group <= 16)
			if super && end-at == q.Group {
				for end+q.Group <= start[i+1] &&
					(q.SuperLead+groupOf(q, end))/q.Super == (q.SuperLead+g)/q.Super {
					end += q.Group
				}
			} else if q.Type == compute.Code8 && end-at >= 128 {
				end -= (end - at) % 128
			} else if end-at > 32 {
				end -= (end - at) % 32
			}
			scale := q.Scale[row*groups+g]
			var offset, sum, sumX float32
			if q.Offset != nil {
				offset = q.Offset[row*groups+g]
			}
			span := 32
			if q.Type == compute.Code8 && end-at >= 128 {
				span = 128
			}
			if super {
				span = min(q.Group, end-at)
				cell := row*q.Supers() + (q.SuperLead+g)/q.Super
				if scale = q.Factor[cell]; q.Offset != nil {
					offset = q.OffsetFactor[cell]
				}
			}
			for ; at < end; at = min(at+span, end) {
				by, offsetBy := float32(1), float32(1)
				if super {
					cell := row*groups + groupOf(q, at)
					if by = 0; scale != 0 {
						by = float32(math.Round(float64(q.Scale[cell] / scale)))
					}
					if offsetBy = 0; offset != 0 {
						offsetBy = float32(math.Round(float64(q.Offset[cell] / offset)))
					}
				}
				var largest float32
				for _, in := range x[at:min(at+span, end)] {
					if v := float32(math.Abs(float64(in))); !(v <= largest) {
						largest = v
					}
				}
				var dot float64
				var total int64
				factor := largest / 127
				for col := at; col < min(at+span, end) && largest >= 0x1p-119; col++ {
					v := math.RoundToEven(float64(x[col] * (127 / largest)))
					number := float64(numbers[col])
					dot += v * number
					total += int64(v)
					s, o := float64(scale)*float64(by), float64(offset)*float64(offsetBy)
					exact += (number*s + o) * v * float64(factor)
					magnitude += (math.Abs(number*s) + math.Abs(o)) * math.Abs(v) * float64(factor)
				}
				sum = fusedMultiplyAdd(float32(dot*float64(by)), factor, sum)
				if super {
					sumX = fusedMultiplyAdd(offsetBy, float32(total)*factor, sumX)
				} else {
					sumX = fusedMultiplyAdd(float32(total), factor, sumX)
				}
			}
			acc = fusedMultiplyAdd(scale, sum, acc)
			if q.Offset != nil {
				acc = fusedMultiplyAdd(offset, sumX, acc)
			}
		}
		pieces = append(pieces, acc)
	}
	return pieces, exact, magnitude
}

// TestRoundSpan compares what rounds spans with the numbers themselves, of any magnitude, and the
// instruction sets with each other.
func TestRoundSpan(t *testing.T) {
	r := rand.New(rand.NewPCG(31, 31))
	special := []float32{0, float32(math.Inf(1)), float32(math.Inf(-1)), float32(math.NaN()),
		math.MaxFloat32, 1e-45, 0x1p-119, math.Nextafter32(0x1p-119, 0)}
	for range 20_000 {
		blocks := 1 + r.IntN(4)
		x := make([]float32, 8*blocks)
		size := math.Ldexp(1, r.IntN(277)-149)
		for i := range x {
			x[i] = float32(r.NormFloat64() * size)
			if r.IntN(4) == 0 { // halves, once it is multiplied
				x[i] = float32(float64(r.IntN(255)-127) / 2 * size)
			}
		}
		if r.IntN(3) == 0 {
			x[r.IntN(len(x))] = special[r.IntN(len(special))]
		}
		got := make([]int8, len(x))
		scale, even, odd := portableRound(unsafe.Pointer(&got[0]), unsafe.Pointer(&x[0]), blocks)
		var largest float64
		for _, v := range x {
			largest = math.Max(largest, math.Abs(float64(v))) // NaN, if one is
		}
		unsound := math.IsInf(largest, 0) || math.IsNaN(largest)
		if unsound != (scale != scale) {
			t.Fatalf("%v: scale %v", x, scale)
		}
		var sums [2]int32
		for i, v := range got {
			sums[i%4/2] += int32(v)
			off := math.Abs(float64(v)*float64(scale) - float64(x[i]))
			if !unsound && off > max(float64(scale)*0.50001, 0x1p-119) {
				t.Fatalf("%v: %d·%v for %v", x, v, scale, x[i])
			}
		}
		if sums != [2]int32{even, odd} {
			t.Fatalf("%v: sums %d, %d of %v", x, even, odd, sums)
		}
		if isa.Best() == isa.Portable {
			continue
		}
		vector := make([]int8, len(x)+1)
		vector[len(x)] = 77
		s, e, o := roundSpan(unsafe.Pointer(&vector[0]), unsafe.Pointer(&x[0]), blocks, true)
		if !same(s, scale) || e != even || o != odd || vector[len(x)] != 77 {
			t.Fatalf("%v: %v, %d, %d, not %v, %d, %d", x, s, e, o, scale, even, odd)
		}
		for i, v := range got {
			if vector[i] != v {
				t.Fatalf("%v: element %d is %d, not %d", x, i, vector[i], v)
			}
		}
	}
}

// TestRoundSpansAgree wants of spans that are rounded at a time what each is rounded to, and
// nothing written beside them.
func TestRoundSpansAgree(t *testing.T) {
	if !isa.Available(isa.AVX512) {
		t.Skip("this machine has no AVX-512 (see scripts/simulate)")
	}
	r := rand.New(rand.NewPCG(34, 34))
	for range 300 {
		size, spans := wideSpan*(1+r.IntN(8)), 1+r.IntN(mostSpans)
		x := make([]float32, size*spans)
		for i := range x {
			x[i] = float32(r.NormFloat64() * math.Ldexp(1, i/size*9-140))
		}
		if at := r.IntN(len(x)); at%3 == 0 {
			x[at] = []float32{float32(math.Inf(-1)), float32(math.NaN()), 0}[r.IntN(3)]
		}
		step := size + dotHead + 4*r.IntN(3)
		want := make([]byte, step*spans+4)
		for i := range want {
			want[i] = byte(i)
		}
		got := slices.Clone(want)
		sums := make([]spanSums, spans)
		roundSpans(unsafe.Pointer(&got[4]), unsafe.Pointer(&got[4+size]), step, x, size, sums)
		for i := range spans {
			scale, even, odd := portableRound(unsafe.Pointer(&want[4+i*step]),
				unsafe.Pointer(&x[i*size]), size/8)
			*(*float32)(unsafe.Pointer(&want[4+i*step+size])) = scale
			if sums[i] != (spanSums{even, odd}) {
				t.Fatalf("span %d of %d of %d columns: sums %v, not %d, %d", i, spans, size,
					sums[i], even, odd)
			}
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%d spans of %d columns: other bytes", spans, size)
		}
	}
}

// TestDotsAgree wants each instruction set to have the bits of all others, whatever the shape, and
// also where the sums are as large as they can be.
func TestDotsAgree(t *testing.T) {
	for i, c := range (codeSet{rounded: true}).cases() {
		r := rand.New(rand.NewPCG(32, uint64(i)))
		for round := range 12 {
			n, k, rows := 1+r.IntN(100), 1+r.IntN(400), 1+r.IntN(10)
			q := newCodes(r, c, n, k, []int{0, 16, 32, 64}[r.IntN(4)], 0)
			x := randoms(r, rows*k)
			if round < 5 {
				for i := range x {
					x[i] = float32(1 - i%(round+1)%2*2)
				}
				for i := range q.Code {
					q.Code[i] = []byte{0, 15, 0x80, 0x7f, 7}[round]
					switch {
					case c.kind == compute.Code4:
						q.Code[i] &= 15
					case c.super && c.offset:
						q.Code[i] &= 63
					case c.super:
						q.Code[i] = byte(int8(q.Code[i]) >> 2)
					}
				}
			}
			var s Scratch
			var want []float32
			for _, set := range isa.All() {
				got := make([]float32, rows*n)
				m := mustPackCodes(t, nil, codeSet{set, true}, 4, q)
				m.Mul(nil, &s, got, n, x, k, rows, nil)
				if set == isa.Portable {
					want = got
				}
				sameSlice(t, c.name+" "+set.String(), got, want)
			}
		}
	}
}

// TestFusedMultiplyAdd compares it with exact numbers, of like and unlike magnitude.
func TestFusedMultiplyAdd(t *testing.T) {
	r := rand.New(rand.NewPCG(33, 33))
	number := func() float32 {
		return float32(r.NormFloat64() * math.Ldexp(1, r.IntN(60)-30))
	}
	exact := func(v float32) *big.Float { return big.NewFloat(float64(v)).SetPrec(400) }
	for range 100_000 {
		x, y, z := number(), number(), number()
		if r.IntN(2) == 0 {
			z = -x * y * (1 + float32(r.IntN(3)-1)*0x1p-23)
		}
		sum := new(big.Float).SetPrec(400).Mul(exact(x), exact(y))
		want, _ := sum.Add(sum, exact(z)).Float32()
		if got := fusedMultiplyAdd(x, y, z); got != want {
			t.Fatalf("%v·%v + %v = %v, not %v", x, y, z, got, want)
		}
	}
}

// TestCodesByTiles wants the bits of AVX2's kernels of AMX's, of any number of rows that fill
// tiles, of several blocks of them, too.
func TestCodesByTiles(t *testing.T) {
	if !isa.Available(isa.AMX) {
		t.Skip("this machine has no AMX (see scripts/simulate)")
	}
	p := newPool(t, 2)
	r := rand.New(rand.NewPCG(41, 42))
	byTiles := 0
	for round := range 200 {
		cases := codeSet{isa.AMX, true}.cases()
		c := cases[round%len(cases)]
		n, k, rows := 1+r.IntN(150), 1+r.IntN(300), 1+r.IntN(70)
		if round%16 == 0 { // more than a block, and more than one call
			n, k, rows = 200, 2200, 300
		}
		group := []int{0, 16, 32, 64, 128, 5}[r.IntN(6)]
		lead := 0
		if group > 0 {
			lead = r.IntN(group) * r.IntN(2)
		}
		chunks := []int{1, 2, 8}[r.IntN(3)]
		q := newCodes(r, c, n, k, group, lead)
		x := randoms(r, rows*k)
		if r.IntN(4) == 0 {
			x[r.IntN(len(x))] = float32(math.NaN())
		}
		var s Scratch
		multiplied := func(set isa.ISA) (plain, parts []float32) {
			m := mustPackCodes(t, p, codeSet{set, true}, chunks, q)
			plain, parts = filled(rows*n, untouched), filled(chunks*rows*n, untouched)
			m.Mul(p, &s, plain, n, x, k, rows, nil)
			m.MulChunks(p, &s, parts, n, x, k, rows)
			if task := (mulTask{m: m, rows: rows, threads: 1}); set == isa.AMX {
				task.choose()
				byTiles += toInt(task.kernels.blocks)
			}
			return plain, parts
		}
		wantPlain, wantParts := multiplied(isa.AVX2)
		plain, parts := multiplied(isa.AMX)
		what := fmt.Sprintf("%v: %d x %d, groups of %d, %d chunks, %d rows", c, n, k, group, chunks,
			rows)
		sameSlice(t, what, plain, wantPlain)
		sameSlice(t, what+": chunks", parts, wantParts)
	}
	if byTiles == 0 {
		t.Error("nothing was multiplied by tiles")
	}
}

func toInt(b bool) int {
	if b {
		return 1
	}
	return 0
}
