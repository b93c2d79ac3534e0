package gemm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/eagleray/eagleray/internal/compute/cpu/isa"
	"github.com/eagleray/eagleray/internal/compute/cpu/pool"
	"github.com/eagleray/eagleray/internal/sys/half"
)

// TestFiniteOnly packs two sources with one number anywhere that cannot be a weight: where it is in
// the part that is packed it is named, and outside of that nothing is wrong.
func TestFiniteOnly(t *testing.T) {
	p := pool.New(2)
	defer p.Close()
	put := map[Kind]func(b []byte, i int, x float64){
		BF16: func(b []byte, i int, x float64) {
			binary.LittleEndian.PutUint16(b[2*i:], half.ToBF16(float32(x)))
		},
		F16: func(b []byte, i int, x float64) {
			binary.LittleEndian.PutUint16(b[2*i:], half.ToF16(float32(x)))
		},
		F32: func(b []byte, i int, x float64) {
			binary.LittleEndian.PutUint32(b[4*i:], math.Float32bits(float32(x)))
		},
	}
	rng := rand.New(rand.NewPCG(3, 4))
	for round := range 400 {
		from, to := Kind(rng.IntN(int(I8))), Kind(rng.IntN(int(kinds)))
		rows, cols := 1+rng.IntN(70), 8+rng.IntN(700)
		x := []float64{math.NaN(), math.Inf(1), math.Inf(-1), 70000}[rng.IntN(4)]
		too := x != 70000 || from != F16 && to == F16
		sources := make([]Source, 2)
		for i := range sources {
			b := make([]byte, rows*cols*from.Size())
			for j := range rows * cols {
				put[from](b, j, float64(j%7)-3)
			}
			sources[i] = Source{Kind: from, Data: b, Rows: rows, Cols: cols, RowHi: rows,
				ColHi: cols}
		}
		if rng.IntN(2) == 0 {
			for i := range sources {
				sources[i].RowLo, sources[i].ColLo, sources[i].ColHi = rows/2, cols/2, cols
			}
		}
		in, row, col := rng.IntN(2), rng.IntN(rows), rng.IntN(cols)
		if from == F16 && x == 70000 {
			x = 60000 // is one
		}
		put[from](sources[in].Data, row*cols+col, x)
		s := &sources[in]
		want := too && row >= s.RowLo && row < s.RowHi &&
			(to == I8 || col >= s.ColLo && col < s.ColHi)
		what := fmt.Sprintf("round %d: %v at [%d, %d] of source %d, %v as %v, packed from [%d, %d]",
			round, x, row, col, in, from, to, s.RowLo, s.ColLo)
		m, err := Pack(p, Options{Kind: to, Chunks: 1, ISA: isa.Best(), Finite: true}, sources...)
		var bad *NotFinite
		switch {
		case !want && err != nil:
			t.Fatalf("%s: %v", what, err)
		case want && (!errors.As(err, &bad) || bad.Source != in || bad.Row != row ||
			bad.Col != col):
			t.Fatalf("%s: %v", what, err)
		}
		if m != nil {
			m.Free()
		}
		if m, err = Pack(p, Options{Kind: to, Chunks: 1, ISA: isa.Best()}, sources...); err != nil {
			t.Fatalf("%s: not asked for: %v", what, err)
		}
		m.Free()
	}
}
