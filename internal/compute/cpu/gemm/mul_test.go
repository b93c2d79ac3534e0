package gemm

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"

	"github.com/eagleray/eagleray/internal/compute/cpu/isa"
	"github.com/eagleray/eagleray/internal/compute/cpu/pool"
	"github.com/eagleray/eagleray/internal/sys/half"
)

const untouched = float32(-12345.5)

func filled(n int, v float32) []float32 {
	s := make([]float32, n)
	for i := range s {
		s[i] = v
	}
	return s
}

// check multiplies with variants of the same bits and compares every element with the contract's,
// and roughly with float64.
func check(t *testing.T, p *pool.Pool, vs []variant, q *problem, chunks int, r *rand.Rand) {
	t.Helper()
	ldd := q.n + r.IntN(4)
	size := (q.rows-1)*ldd + q.n
	bias := randoms(r, q.n)
	if r.IntN(2) == 0 {
		bias = nil
	}
	residual := randoms(r, size)
	wantPlain, wantAdded := filled(size+3, untouched), append([]float32(nil), residual...)
	wantParts := filled(chunks*q.rows*q.n+3, untouched)
	wantTotal := make([]float32, q.rows*q.n)
	for row := range q.rows {
		x := q.row(row)
		for n := range q.n {
			w := q.weight(n)
			sum, pieces := vs[0].element(x, w, chunks)
			var exact, scale float64
			for k := range x {
				product := float64(x[k]) * float64(w[k])
				exact += product
				scale += math.Abs(product)
			}
			unit := 0x1p-24 * float64(q.k+8)
			if vs[0].rounded {
				unit += 0x1p-8
			}
			if math.Abs(float64(sum)-exact) > unit*scale {
				t.Fatalf("%v k=%d: [%d][%d] = %v, float64 says %v", vs[0], q.k, row, n, sum, exact)
			}
			at := row*ldd + n
			wantPlain[at], wantAdded[at], wantTotal[row*q.n+n] = sum, residual[at]+sum, sum
			if bias != nil {
				wantPlain[at] += bias[n]
			}
			for c, piece := range pieces {
				wantParts[(c*q.rows+row)*q.n+n] = piece
			}
		}
	}
	for _, v := range vs {
		m := mustPack(t, p, v.options(chunks), q.source())
		if m.N() != q.n || m.K() != q.k {
			t.Fatalf("packed %d x %d, want %d x %d", m.N(), m.K(), q.n, q.k)
		}
		what := fmt.Sprintf("%v n=%d k=%d rows=%d of %d chunks=%d", v, q.n, q.k, q.rows, ldd,
			chunks)
		var s Scratch
		plain, added := filled(size+3, untouched), append([]float32(nil), residual...)
		parts := filled(len(wantParts), untouched)
		m.Mul(p, &s, plain, ldd, q.x, q.ldx, q.rows, bias)
		m.MulAdd(p, &s, added, ldd, q.x, q.ldx, q.rows)
		m.MulChunks(p, &s, parts, q.n, q.x, q.ldx, q.rows)
		// Between rows and behind the end nothing is written.
		sameSlice(t, what+": Mul", plain, wantPlain)
		sameSlice(t, what+": MulAdd", added, wantAdded)
		sameSlice(t, what+": MulChunks", parts, wantParts)
		total := make([]float32, q.rows*q.n)
		m.Mul(p, &s, total, q.n, q.x, q.ldx, q.rows, nil)
		sameSlice(t, what+": dense rows", total, wantTotal)
		summed := make([]float32, q.rows*q.n)
		TreeSum(summed, parts[:chunks*q.rows*q.n], chunks)
		sameSlice(t, what+": TreeSum of MulChunks", summed, total)
	}
}

func TestContractBits(t *testing.T) {
	p := newPool(t, 2)
	for _, vs := range lots(variants(), variant.sameBits) {
		v := vs[0]
		t.Run(v.String(), func(t *testing.T) {
			r := rand.New(rand.NewPCG(7, uint64(v.set)<<8|uint64(v.kind)))
			for n := 1; n <= 70; n++ { // every remainder of a panel and a group
				check(t, p, vs, newProblem(r, v.kind, n, 1+r.IntN(40), 1+r.IntN(14)), 1<<r.IntN(4),
					r)
			}
			for rows := 1; rows <= 26; rows++ { // every tile height and split
				for _, n := range []int{32, 129 + r.IntN(130)} {
					check(t, p, vs, newProblem(r, v.kind, n, 1+r.IntN(70), rows), 1<<r.IntN(4), r)
				}
			}
			for rows := 27; v.set == isa.AMX && v.rounded && rows < 100; rows += 1 + r.IntN(9) {
				check(t, p, vs, newProblem(r, v.kind, 1+r.IntN(100), 1+r.IntN(150), rows),
					1<<r.IntN(4), r) // heights of tiles, depths of blocks
			}
			for rows := 1; rows <= 13; rows += 4 { // rows that meet in the cache are copied
				check(t, p, vs, newProblem(r, v.kind, 130, 1024, rows), 1<<r.IntN(4), r)
			}
			for i, chunks := range []int{1, 2, 4, 8} {
				for _, k := range []int{1, 2, 3, 7, 8, 9, 15, 129} {
					check(t, p, vs, newProblem(r, v.kind, 1+r.IntN(40), k, 1+r.IntN(4)), chunks, r)
				}
				for j, k := range []int{maxSteps - 1, maxSteps, maxSteps + 1, 2*maxSteps + 3} {
					if testing.Short() && (i+j)%2 > 0 {
						continue // the numbers of chunks take turns
					}
					check(t, p, vs, newProblem(r, v.kind, 17, k, 1+r.IntN(3)), chunks, r)
				}
			}
		})
	}
}

// The portable kernels are too slow for the tests of properties below to take many shapes on them.
func rounds(v variant, n int) int {
	if v.set == isa.Portable {
		return n/8 + 1
	}
	return n
}

// A row's bits do not depend on the rows beside it nor on the number of threads.
func TestRowsAndThreads(t *testing.T) {
	pools := []*pool.Pool{nil, newPool(t, 2), newPool(t, 3)}
	for _, v := range variants() {
		r := rand.New(rand.NewPCG(3, uint64(v.kind)))
		for range rounds(v, 10) {
			n, k := 1+r.IntN(700), 1+r.IntN(500)
			if v.set == isa.Portable {
				n, k = n/4+1, k/4+1
			}
			q := newProblem(r, v.kind, n, k, 40)
			m := mustPack(t, pools[1], v.options(1<<r.IntN(4)), q.source())
			var s Scratch
			alone := make([]float32, q.rows*q.n)
			for row := range q.rows {
				m.Mul(nil, &s, alone[row*q.n:], q.n, q.row(row), q.k, 1, nil)
			}
			for rows := 1; rows <= q.rows; rows++ {
				first := r.IntN(q.rows - rows + 1)
				p := pools[rows%len(pools)]
				got := make([]float32, rows*q.n)
				m.Mul(p, &s, got, q.n, q.x[first*q.ldx:], q.ldx, rows, nil)
				sameSlice(t, fmt.Sprintf("%v: %d rows on %d threads", v, rows, p.Threads()),
					got, alone[first*q.n:(first+rows)*q.n])
			}
		}
	}
}

// Nor do they depend on there being so many rows that weights are widened for them: in one piece of
// K or several, of more steps than are widened at a time, beside a bias or an output they are added
// to, for columns that fill the last panels or do not.
func TestManyRows(t *testing.T) {
	pools := []*pool.Pool{nil, newPool(t, 2)}
	for _, v := range variants() {
		if !v.kind.stored() {
			continue
		}
		set := kernelsFor(v.options(1))
		if set.square == 0 && set.widen == nil {
			continue
		}
		r := rand.New(rand.NewPCG(5, uint64(v.kind)))
		for i, k := range []int{1, 67, 1 + r.IntN(400), wideSteps + 60, 2*wideSteps + 5} {
			for _, chunks := range []int{1, 8} {
				if k > wideSteps && chunks != 1+i%2*7 {
					continue
				}
				p, rows := pools[i%2], many+r.IntN(many+20)
				n := 2*set.nr*wideChunks*(1+i%2) + []int{0, set.nr + 1, 2 * set.nr}[r.IntN(3)]
				if k > wideSteps {
					p, n, rows = nil, 2*set.nr*wideChunks, many+r.IntN(9)
				}
				q := newProblem(r, v.kind, n, k, rows)
				m := mustPack(t, p, v.options(chunks), q.source())
				what := fmt.Sprintf("%v: %d rows of %d -> %d in %d chunks", v, rows, k, n, chunks)
				bias, residual := randoms(r, n), randoms(r, rows*n)
				var s Scratch
				plain, want := make([]float32, rows*n), make([]float32, rows*n)
				added, wantAdded := slices.Clone(residual), slices.Clone(residual)
				parts := make([]float32, chunks*rows*n)
				m.Mul(p, &s, plain, n, q.x, q.ldx, rows, bias)
				m.MulAdd(p, &s, added, n, q.x, q.ldx, rows)
				m.MulChunks(p, &s, parts, n, q.x, q.ldx, rows)
				const few = 4
				piece := make([]float32, chunks*few*n)
				for row := 0; row < rows; row += few {
					height := min(few, rows-row)
					x := q.x[row*q.ldx:]
					m.Mul(p, &s, want[row*n:], n, x, q.ldx, height, bias)
					m.MulAdd(p, &s, wantAdded[row*n:], n, x, q.ldx, height)
					m.MulChunks(p, &s, piece, n, x, q.ldx, height)
					for c := range chunks {
						sameSlice(t, what+": MulChunks", parts[(c*rows+row)*n:][:height*n],
							piece[c*height*n:][:height*n])
					}
				}
				sameSlice(t, what+": Mul", plain, want)
				sameSlice(t, what+": MulAdd", added, wantAdded)
			}
		}
	}
}

// TestWidenedBits wants the numbers that panels have, as those of float32 have them.
func TestWidenedBits(t *testing.T) {
	r := rand.New(rand.NewPCG(6, 6))
	for _, v := range variants() {
		if !v.kind.stored() {
			continue
		}
		set := kernelsFor(v.options(1))
		if set.widen == nil {
			continue
		}
		const pairs = 5
		nr := set.nr
		src, got := make([]uint16, 2*pairs*nr), make([]float32, 2*pairs*nr)
		for i := range src {
			src[i] = half.ToF16(float32(r.NormFloat64())) // a number in either kind
		}
		set.widen(unsafe.Pointer(&got[0]), unsafe.Pointer(&src[0]), pairs)
		for i, g := range got {
			step, row := i/nr, i%nr
			want := half.FromF16(src[i])
			if v.kind == BF16 {
				want = half.FromBF16(src[(step/2*nr+row)*2+step%2])
			}
			if g != want {
				t.Fatalf("%v: step %d, row %d is %v, not %v", v, step, row, g, want)
			}
		}
	}
}

// A matrix packed from a range of rows, or from several sources, gives the same elements.
func TestSplitN(t *testing.T) {
	p := newPool(t, 2)
	for _, v := range variants() {
		r := rand.New(rand.NewPCG(4, uint64(v.kind)))
		for range rounds(v, 20) {
			q := newProblem(r, v.kind, 2+r.IntN(300), 1+r.IntN(200), 1+r.IntN(20))
			o := v.options(1 << r.IntN(4))
			whole := mustPack(t, p, o, q.source())
			var s Scratch
			want := make([]float32, q.rows*q.n)
			whole.Mul(p, &s, want, q.n, q.x, q.ldx, q.rows, nil)
			cut := 1 + r.IntN(q.n-1)
			lower, upper := q.source(), q.source()
			lower.RowHi, upper.RowLo = cut, cut
			got := make([]float32, q.rows*q.n)
			mustPack(t, p, o, lower).Mul(p, &s, got, q.n, q.x, q.ldx, q.rows, nil)
			mustPack(t, p, o, upper).Mul(p, &s, got[cut:], q.n, q.x, q.ldx, q.rows, nil)
			sameSlice(t, fmt.Sprintf("%v: rows split at %d of %d", v, cut, q.n), got, want)

			swapped := mustPack(t, p, o, upper, lower)
			got = make([]float32, q.rows*q.n)
			swapped.Mul(p, &s, got, q.n, q.x, q.ldx, q.rows, nil)
			for row := range q.rows {
				line := got[row*q.n:][:q.n]
				sameSlice(t, "stacked sources", append(append([]float32(nil), line[q.n-cut:]...),
					line[:q.n-cut]...), want[row*q.n:][:q.n])
			}
		}
	}
}

// Ranks that hold 8/t chunks each and sum as a tree give the bits of one rank with 8 chunks.
func TestTensorParallelBits(t *testing.T) {
	p := newPool(t, 2)
	for _, v := range variants() {
		if !v.kind.stored() {
			continue
		}
		set := kernelsFor(v.options(1))
		if set.square == 0 && set.widen == nil {
			continue
		}
		r := rand.New(rand.NewPCG(5, uint64(v.kind)))
		for range rounds(v, 30) {
			q := newProblem(r, v.kind, 1+r.IntN(100), 8+r.IntN(300), 1+r.IntN(8))
			var s Scratch
			want := make([]float32, q.rows*q.n)
			mustPack(t, p, v.options(8), q.source()).Mul(p, &s, want, q.n, q.x, q.ldx, q.rows, nil)
			for _, tp := range []int{2, 4, 8} {
				parts := make([]float32, tp*q.rows*q.n)
				for rank := range tp {
					src := q.source()
					src.ColLo, src.ColHi = rank*q.k/tp, (rank+1)*q.k/tp
					m := mustPack(t, p, v.options(8/tp), src)
					m.Mul(p, &s, parts[rank*q.rows*q.n:], q.n, q.x[src.ColLo:], q.ldx, q.rows, nil)
				}
				got := make([]float32, q.rows*q.n)
				TreeSum(got, parts, tp)
				sameSlice(t, fmt.Sprintf("%v k=%d: tensor parallel %d", v, q.k, tp), got, want)
			}
		}
	}
}

// AVX2 and AVX-512 multiply-add chains agree.
func TestVectorSetsAgree(t *testing.T) {
	if !isa.Available(isa.AVX512) {
		t.Skip("this machine has no AVX-512")
	}
	r := rand.New(rand.NewPCG(6, 6))
	for kind := range kinds {
		q := newProblem(r, kind, 333, 777, 19)
		var s Scratch
		got, want := make([]float32, q.rows*q.n), make([]float32, q.rows*q.n)
		mustPack(t, nil, Options{Kind: kind, Chunks: 4, ISA: isa.AVX2}, q.source()).Mul(nil, &s,
			want, q.n, q.x, q.ldx, q.rows, nil)
		mustPack(t, nil, Options{Kind: kind, Chunks: 4, ISA: isa.AVX512}, q.source()).Mul(nil, &s,
			got, q.n, q.x, q.ldx, q.rows, nil)
		sameSlice(t, kind.String(), got, want)
	}
}

// A NaN or an infinity of one row of x reaches that row and no other, even through padding.
func TestNonFinite(t *testing.T) {
	p := newPool(t, 2)
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	for _, v := range variants() {
		for _, k := range []int{9, 33} { // odd pieces end in padding
			for _, chunks := range []int{1, 4} {
				r := rand.New(rand.NewPCG(8, uint64(k)))
				q := newProblem(r, v.kind, 50, k, 7)
				m := mustPack(t, p, v.options(chunks), q.source())
				var s Scratch
				clean := make([]float32, chunks*q.rows*q.n)
				m.MulChunks(p, &s, clean, q.n, q.x, q.ldx, q.rows)
				for at := range k {
					q.row(2)[at], q.row(5)[at] = inf, nan
					got := make([]float32, chunks*q.rows*q.n)
					m.MulChunks(p, &s, got, q.n, q.x, q.ldx, q.rows)
					for i, g := range got {
						chunk, row, n := i/(q.rows*q.n), i/q.n%q.rows, i%q.n
						hit := at >= chunk*k/chunks && at < (chunk+1)*k/chunks
						w := q.weight(n)[at]
						ok := same(g, clean[i])
						switch {
						case hit && row == 2:
							ok = same(g, inf*w) || w == 0 && g != g
						case hit && row == 5:
							ok = g != g
						}
						if !ok {
							t.Fatalf("%v k=%d: x[.][%d] is not finite: [%d][%d][%d] = %v, was %v",
								v, k, at, chunk, row, n, g, clean[i])
						}
					}
					x := randoms(r, 2)
					q.row(2)[at], q.row(5)[at] = x[0], x[1]
					m.MulChunks(p, &s, clean, q.n, q.x, q.ldx, q.rows)
				}
				if v.kind == I8 {
					continue // a row has a scale only if it is finite
				}
				q.w[3*k+1] = inf
				q.data, _ = encode(v.kind, q.w)
				m = mustPack(t, p, v.options(chunks), q.source())
				got := make([]float32, q.n)
				m.Mul(p, &s, got, q.n, q.x, q.ldx, 1, nil)
				for n, g := range got {
					if bad := math.IsInf(float64(g), 0); bad != (n == 3) {
						t.Errorf("%v: an infinite weight in row 3 gives [%d] = %v", v, n, g)
					}
				}
			}
		}
	}
}

func TestNoAllocation(t *testing.T) {
	p := newPool(t, 2)
	for _, v := range variants() {
		q := newProblem(rand.New(rand.NewPCG(9, 9)), v.kind, 300, 64, 9)
		m := mustPack(t, p, v.options(4), q.source())
		var s Scratch
		dst := make([]float32, 4*q.rows*q.n)
		bias := make([]float32, q.n)
		run := func() {
			for rows := 1; rows <= q.rows; rows += 4 {
				m.Mul(p, &s, dst, q.n, q.x, q.ldx, rows, bias)
				m.MulAdd(p, &s, dst, q.n, q.x, q.ldx, rows)
				m.MulChunks(p, &s, dst, q.n, q.x, q.ldx, rows)
				TreeSum(dst[:q.n], dst[:4*q.n], 4)
			}
		}
		m.Mul(p, &s, dst, q.n, q.x, q.ldx, q.rows, bias)
		if n := testing.AllocsPerRun(20, run); n != 0 {
			t.Errorf("%v: %v allocations", v, n)
		}
	}
}

func TestMulRejectsShortSlices(t *testing.T) {
	q := newProblem(rand.New(rand.NewPCG(1, 1)), F32, 10, 8, 3)
	m := mustPack(t, nil, Options{Kind: F32, Chunks: 2}, q.source())
	var s Scratch
	long := make([]float32, 200)
	m.Mul(nil, &s, nil, 10, nil, 8, 0, nil) // no rows: nothing to do
	for name, f := range map[string]func(){
		"dst":    func() { m.Mul(nil, &s, long[:29], 10, long, 8, 3, nil) },
		"x":      func() { m.Mul(nil, &s, long, 10, long[:23], 8, 3, nil) },
		"ldd":    func() { m.Mul(nil, &s, long, 9, long, 8, 3, nil) },
		"ldx":    func() { m.Mul(nil, &s, long, 10, long, 7, 3, nil) },
		"bias":   func() { m.Mul(nil, &s, long, 10, long, 8, 3, long[:9:9]) },
		"empty":  func() { m.MulAdd(nil, &s, nil, 10, long, 8, 1) },
		"chunks": func() { m.MulChunks(nil, &s, long[:59:59], 10, long, 8, 3) },
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			f()
		})
	}
}

func TestTreeSum(t *testing.T) {
	r := rand.New(rand.NewPCG(10, 10))
	for _, chunks := range []int{1, 2, 4, 8} {
		for n := range 40 {
			parts := randoms(r, n*chunks)
			want := make([]float32, n)
			for i := range want {
				column := make([]float32, chunks)
				for c := range column {
					column[c] = parts[c*n+i]
				}
				want[i] = tree(column)
			}
			got := make([]float32, n)
			TreeSum(got, parts, chunks)
			sameSlice(t, fmt.Sprintf("%d chunks", chunks), got, want)
			TreeSum(parts[:n], parts, chunks)
			sameSlice(t, fmt.Sprintf("%d chunks in place", chunks), parts[:n], want)
		}
	}
	for _, chunks := range []int{-1, 0, 3, 16} {
		t.Run(fmt.Sprint(chunks), func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			TreeSum(make([]float32, 2), make([]float32, 64), chunks)
		})
	}
}
