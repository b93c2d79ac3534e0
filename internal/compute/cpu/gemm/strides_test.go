package gemm

import (
	"math/rand/v2"
	"testing"

	"github.com/eagleray/eagleray/internal/compute/cpu/isa"
)

// TestStrides packs a matrix that is stored transposed, or every second row of another one, and
// wants what the matrix itself is packed to.
func TestStrides(t *testing.T) {
	r := rand.New(rand.NewPCG(13, 14))
	p := newPool(t, 2)
	for _, stored := range []Kind{BF16, F16, F32} {
		for kind := range kinds {
			q := newProblem(r, stored, 2*(1+r.IntN(40)), 2+r.IntN(600), 1)
			size, n, k := stored.Size(), q.n/2, q.k
			one := make([]byte, n*k*size)          // the odd rows
			transposed := make([]byte, n*k*2*size) // all of them, by columns
			for row := range q.n {
				for col := range k {
					from := q.data[(row*k+col)*size:][:size]
					copy(transposed[(col*q.n+row)*size:], from)
					if row%2 == 1 {
						copy(one[(row/2*k+col)*size:], from)
					}
				}
			}
			part := func(s Source) Source {
				s.Kind, s.Rows, s.Cols, s.RowHi, s.ColLo, s.ColHi = stored, n, k, n, k/2, k
				return s
			}
			opt := Options{Kind: kind, Chunks: 1, ISA: isa.Best(), Finite: true}
			want := mustPack(t, p, opt, part(Source{Data: one}))
			rows := mustPack(t, p, opt, part(Source{Data: q.data[k*size:], RowStride: 2 * k}))
			columns := mustPack(t, p, opt, part(Source{Data: transposed[size:], RowStride: 2,
				ColStride: q.n}))
			for _, m := range []*Matrix{rows, columns} {
				if string(m.mem.Bytes()) != string(want.mem.Bytes()) {
					t.Errorf("%v as %v, %d of %d by %d: other weights than of a plain matrix",
						stored, kind, n, q.n, k)
				}
			}
		}
	}
}
