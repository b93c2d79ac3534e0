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
