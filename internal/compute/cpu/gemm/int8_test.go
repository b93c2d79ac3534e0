package gemm

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/eagleray/eagleray/internal/compute/cpu/isa"
)

// TestInt8Rounds wants the nearest byte of each weight, by the largest of its whole row, in each of
// the parts that ranks hold of it.
func TestInt8Rounds(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 12))
	for _, kind := range []Kind{BF16, F16, F32} {
		q := newProblem(r, kind, 37, 96, 1)
		clear(q.w[5*q.k : 6*q.k]) // a row of zeros has no scale
		q.data, q.w = encode(kind, q.w)
		for part := range 4 {
			s := q.source()
			s.ColLo, s.ColHi = part*q.k/4, (part+1)*q.k/4
			m := mustPack(t, newPool(t, 2), Options{Kind: I8, Chunks: 1, ISA: isa.Best(),
				Finite: true}, s)
			got := make([]float32, s.ColHi-s.ColLo)
			for n := range q.n {
				var most float32
				for _, w := range q.weight(n) {
					most = max(most, float32(math.Abs(float64(w))))
				}
				unpack(m, n, got)
				for i, v := range got {
					w := q.weight(n)[s.ColLo+i]
					if off := math.Abs(float64(v - w)); off > float64(most)/127*0.5001 {
						t.Fatalf("%v: [%d][%d] is %v for %v, the largest being %v", kind, n,
							s.ColLo+i, v, w, most)
					}
				}
			}
		}
	}
}

// TestInt8RoundedInputs compares products of rows that are rounded, too, with those of rows that
// are not, and the memory with what is planned, where columns are left of spans and pieces.
func TestInt8RoundedInputs(t *testing.T) {
	p := newPool(t, 2)
	r := rand.New(rand.NewPCG(13, 14))
	for _, set := range isa.All() {
		for _, k := range []int{31, 96, 1100} {
			q := newProblem(r, BF16, 37, k, 1)
			const rows = 5
			var s Scratch
			var got, want [rows * 37]float32
			x := randoms(r, rows*k)
			opt := Options{Kind: I8, Chunks: 4, ISA: set, Finite: true}
			mustPack(t, p, opt, q.source()).Mul(p, &s, want[:], q.n, x, k, rows, nil)
			opt.Rounded = true
			m := mustPack(t, p, opt, q.source())
			m.Mul(p, &s, got[:], q.n, x, k, rows, nil)
			least, err := PackedBytes(I8, 4, q.source())
			if err != nil || int64(m.Bytes()) > least {
				t.Errorf("%v: %d bytes, planned were %d: %v", set, m.Bytes(), least, err)
			}
			differ := false
			for i, v := range got {
				var size float64
				for j, w := range q.weight(i % q.n) {
					size += math.Abs(float64(w * x[i/q.n*k+j]))
				}
				// Half a step of the largest of 32.
				if off := math.Abs(float64(v - want[i])); off > size*0.01+0.001 {
					t.Fatalf("%v, %d columns: %v, not %v", set, k, v, want[i])
				}
				differ = differ || v != want[i]
			}
			if !differ {
				t.Errorf("%v, %d columns: nothing is rounded", set, k)
			}
		}
	}
}
