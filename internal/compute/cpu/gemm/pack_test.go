package gemm

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/eagleray/eagleray/internal/compute/cpu/isa"
	"github.com/eagleray/eagleray/internal/sys/half"
)

// unpack writes row n of W to dst[:K] as float32, exactly, from the packed form of a matrix in one
// chunk.
func unpack(m *Matrix, n int, dst []float32) {
	dst = dst[:m.k]
	nr := m.kernels.nr
	panel := unsafe.Add(m.base, uintptr(n/nr)*m.stride)
	lane := n % nr
	if m.kind == F32 {
		src := unsafe.Slice((*float32)(panel), m.packed[1]*nr)
		for k := range dst {
			dst[k] = src[k*nr+lane]
		}
		return
	}
	if m.kind == I8 {
		for _, r := range m.codes.runs {
			at := unsafe.Add(panel, r.at)
			scale := unsafe.Slice((*float32)(at), nr)[lane]
			src := unsafe.Slice((*int8)(unsafe.Add(at, m.codes.head)), 8*r.blocks*nr)
			for k := range r.length {
				dst[r.from+k] = float32(src[k*nr+lane]) * scale
			}
		}
		return
	}
	src := unsafe.Slice((*uint16)(panel), m.packed[1]*nr)
	if m.kind == F16 {
		for k := range dst {
			dst[k] = half.FromF16(src[k*nr+lane])
		}
		return
	}
	for k := range dst {
		dst[k] = half.FromBF16(src[(k/2*nr+lane)*2+k%2])
	}
}

// Every row of W can be read back from the packed form.
func TestRow(t *testing.T) {
	p := newPool(t, 2)
	r := rand.New(rand.NewPCG(1, 2))
	for _, v := range variants() {
		for range 10 {
			q := newProblem(r, v.kind, 1+r.IntN(100), 1+r.IntN(600), 1)
			m := mustPack(t, p, v.options(1), q.source())
			dst := filled(q.k+1, untouched)
			for n := range q.n {
				unpack(m, n, dst)
				sameSlice(t, fmt.Sprintf("%v row %d", v, n), dst[:q.k], q.weight(n))
			}
			if dst[q.k] != untouched {
				t.Errorf("%v: unpack wrote behind its end", v)
			}
		}
	}
}

// Every stored kind packs into every other, from any alignment and any rectangle.
func TestPackConverts(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 3))
	for stored := range I8 {
		for kind := range I8 {
			q := newProblem(r, stored, 40, 3*packBlock+7, 1)
			src := q.source()
			odd := make([]byte, len(q.data)+1)
			copy(odd[1:], q.data)
			src.Data = odd[1:]
			src.RowLo, src.RowHi, src.ColLo, src.ColHi = 3, 38, 5, q.k-4
			m := mustPack(t, nil, Options{Kind: kind, Chunks: 1}, src)
			dst := make([]float32, m.K())
			for n := range m.N() {
				unpack(m, n, dst)
				w := q.weight(n + 3)[5 : q.k-4]
				_, want := encode(kind, w)
				sameSlice(t, fmt.Sprintf("%v as %v, row %d", stored, kind, n), dst, want)
			}
		}
	}
}

func TestPackErrors(t *testing.T) {
	data := make([]byte, 4*6*2)
	good := Source{Kind: BF16, Data: data, Rows: 4, Cols: 6, RowHi: 4, ColHi: 6}
	opt := Options{Kind: BF16, Chunks: 1}
	with := func(f func(*Source)) Source {
		s := good
		f(&s)
		return s
	}
	huge := 1 << 40
	for name, c := range map[string]struct {
		opt  Options
		src  []Source
		want error
	}{
		"kind":            {Options{Kind: kinds, Chunks: 1}, []Source{good}, ErrOptions},
		"no chunks":       {Options{}, []Source{good}, ErrOptions},
		"three chunks":    {Options{Chunks: 3}, []Source{good}, ErrOptions},
		"16 chunks":       {Options{Chunks: 16}, []Source{good}, ErrOptions},
		"unknown isa":     {Options{Chunks: 1, ISA: 77}, []Source{good}, ErrOptions},
		"dot on portable": {Options{Chunks: 1, Rounded: true}, []Source{good}, ErrOptions},
		"no source":       {opt, nil, ErrSource},
		"source kind":     {opt, []Source{with(func(s *Source) { s.Kind = 9 })}, ErrSource},
		"short data":      {opt, []Source{with(func(s *Source) { s.Data = data[1:] })}, ErrSource},
		"long data": {opt, []Source{with(func(s *Source) { s.Rows = 3; s.RowHi = 3 })},
			ErrSource},
		"negative": {opt, []Source{with(func(s *Source) { s.Rows, s.Cols = -4, -6 })},
			ErrSource},
		"overflow": {opt, []Source{with(func(s *Source) { s.Rows, s.Cols = huge, huge })},
			ErrSource},
		"no rows":       {opt, []Source{with(func(s *Source) { s.RowHi = 0 })}, ErrSource},
		"rows":          {opt, []Source{with(func(s *Source) { s.RowHi = 5 })}, ErrSource},
		"row below":     {opt, []Source{with(func(s *Source) { s.RowLo = -1 })}, ErrSource},
		"no columns":    {opt, []Source{with(func(s *Source) { s.ColLo = 6 })}, ErrSource},
		"columns":       {opt, []Source{with(func(s *Source) { s.ColHi = 7 })}, ErrSource},
		"column below":  {opt, []Source{with(func(s *Source) { s.ColLo = -1 })}, ErrSource},
		"widths differ": {opt, []Source{good, with(func(s *Source) { s.ColHi = 5 })}, ErrSource},
	} {
		t.Run(name, func(t *testing.T) {
			m, err := Pack(nil, c.opt, c.src...)
			if !errors.Is(err, c.want) || m != nil {
				t.Errorf("Pack = %v, %v; want %v", m, err, c.want)
			}
		})
	}
	if _, err := Pack(nil, opt, good); err != nil {
		t.Errorf("the source the cases are made from: %v", err)
	}
}

// A rank's pieces lie where the whole matrix's pieces lie.
func TestCut(t *testing.T) {
	for cols := 8; cols < 200; cols++ {
		for _, tp := range []int{1, 2, 4, 8} {
			for rank := range tp {
				s := Source{Cols: cols, ColLo: rank * cols / tp, ColHi: (rank + 1) * cols / tp}
				start := s.cut(8 / tp)
				for i := range 8/tp + 1 {
					if got, want := start[i]+s.ColLo, (rank*8/tp+i)*cols/8; got != want {
						t.Fatalf("%d columns, rank %d of %d: piece %d begins at %d, want %d", cols,
							rank, tp, i, got, want)
					}
				}
			}
		}
	}
	s := Source{Cols: 100, ColLo: 3, ColHi: 24} // on no grid
	if start := s.cut(4); start != [maxPieces + 1]int{0, 5, 10, 15, 21} {
		t.Errorf("21 columns in 4 pieces: %v", start)
	}
}

func TestSpread(t *testing.T) {
	for stride := uintptr(64); stride < 1<<17; stride += 64 {
		got := spread(stride)
		if got < stride || got > stride+1024 || got%64 != 0 {
			t.Fatalf("spread(%d) = %d", stride, got)
		}
		if stride < 8192 {
			continue
		}
		for i := uintptr(1); i < groupSize; i++ {
			if d := i * got % 4096; d < 512 || d > 4096-512 {
				t.Fatalf("spread(%d) = %d: panels 0 and %d are %d apart", stride, got, i, d)
			}
		}
	}
}

func TestMemory(t *testing.T) {
	for _, c := range []struct{ n, k, most int }{
		{256, 256, 256*256*2*9/8 + 4096},
		{1, 1, 4096},
		{3000, 1024, 3000*1024*2*33/32 + 32*1024*2 + 4096},
	} {
		q := Source{Kind: BF16, Data: make([]byte, c.n*c.k*2), Rows: c.n, Cols: c.k, RowHi: c.n,
			ColHi: c.k}
		m := mustPack(t, nil, Options{Kind: BF16, Chunks: 1, ISA: isa.Best()}, q)
		if m.Bytes() < c.n*c.k*2 || m.Bytes() > c.most {
			t.Errorf("%d x %d takes %d bytes, at most %d are expected", c.n, c.k, m.Bytes(), c.most)
		}
		m.Free()
		m.Free()
		if m.Bytes() != 0 {
			t.Errorf("after Free %d bytes", m.Bytes())
		}
	}
}

// FuzzPack feeds Pack shapes and ranges as a hostile checkpoint could: it must refuse them or pack
// what they say.
func FuzzPack(f *testing.F) {
	f.Add(4, 6, 0, 4, 0, 6, uint8(0), uint8(1), uint8(0))
	f.Add(-1, 6, 0, 4, 0, 6, uint8(1), uint8(2), uint8(1))
	f.Add(1<<62, 4, 0, 1, 0, 1, uint8(2), uint8(8), uint8(2))
	f.Add(2, 9, 1, 2, 3, 9, uint8(2), uint8(4), uint8(0))
	data := make([]byte, 1<<12)
	for i := range data {
		data[i] = byte(i * 7)
	}
	f.Fuzz(func(t *testing.T, rows, cols, rowLo, rowHi, colLo, colHi int, stored, chunks,
		kind uint8) {
		size := 0
		if rows > 0 && cols > 0 && rows < 1<<12 && cols < 1<<12 {
			size = min(rows*cols*Kind(stored).Size(), len(data))
		}
		s := Source{Kind: Kind(stored), Data: data[:size], Rows: rows, Cols: cols,
			RowLo: rowLo, RowHi: rowHi, ColLo: colLo, ColHi: colHi}
		m, err := Pack(nil, Options{Kind: Kind(kind), Chunks: int(chunks), ISA: isa.Best()}, s)
		if err != nil {
			return
		}
		defer m.Free()
		if m.N() != rowHi-rowLo || m.K() != colHi-colLo {
			t.Fatalf("packed %d x %d from rows %d to %d, columns %d to %d", m.N(), m.K(), rowLo,
				rowHi, colLo, colHi)
		}
		var scratch Scratch
		m.Mul(nil, &scratch, make([]float32, m.N()), m.N(), make([]float32, m.K()), m.K(), 1, nil)
	})
}
