package gemm

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu/isa"
	"github.com/eagleray/eagleray/internal/compute/cpu/pool"
)

// codeCase is a way to quantise.
type codeCase struct {
	name   string
	kind   compute.CodeType
	values [16]float32
	offset bool
	wide   bool // scales that float16 does not have
	order  bool
	super  bool // groups share factors
	apart  bool // offsets are wide, though scales are not
}

func (c codeCase) String() string { return c.name }

var (
	uint4 = [16]float32{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}
	int4  = [16]float32{-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7}
	e2m1  = [16]float32{0, 0.5, 1, 1.5, 2, 3, 4, 6, -0, -0.5, -1, -1.5, -2, -3, -4, -6}
	iq4   = [16]float32{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}
	nf4   = [16]float32{-1, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
		-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0, 0.07958029955625534,
		0.16093020141124725, 0.24611230194568634, 0.33791524171829224, 0.44070982933044434,
		0.5626170039176941, 0.7229568362236023, 1}
)

var codeCases = []codeCase{
	{name: "int4", kind: compute.Code4, values: int4},
	{name: "int4/offset", kind: compute.Code4, values: int4, offset: true},
	{name: "int4/wide/offset/order", kind: compute.Code4, values: int4, offset: true, wide: true,
		order: true},
	{name: "uint4/offset", kind: compute.Code4, values: uint4, offset: true},
	{name: "e2m1", kind: compute.Code4, values: e2m1},
	{name: "nf4/wide", kind: compute.Code4, values: nf4, wide: true},
	{name: "nf4/offset", kind: compute.Code4, values: nf4, offset: true},
	{name: "int8", kind: compute.Code8},
	{name: "int8/wide/offset", kind: compute.Code8, wide: true, offset: true},
	{name: "int8/order", kind: compute.Code8, order: true},
	{name: "int8/offset/apart", kind: compute.Code8, offset: true, apart: true},
	{name: "e4m3/wide", kind: compute.CodeE4M3, wide: true},
	{name: "e4m3/offset/order", kind: compute.CodeE4M3, offset: true, order: true},
	{name: "iq4/offset", kind: compute.Code4, values: iq4, offset: true},
	{name: "uint4/offset/super", kind: compute.Code4, values: uint4, offset: true, super: true},
	{name: "int4/wide/super/order", kind: compute.Code4, values: int4, wide: true, super: true,
		order: true},
	{name: "int8/wide/offset/super", kind: compute.Code8, wide: true, offset: true, super: true},
	{name: "int8/super", kind: compute.Code8, super: true},
	{name: "int8/offset/super", kind: compute.Code8, offset: true, super: true}, // Q5_K
}

// codeSet is how codes are multiplied.
type codeSet struct {
	isa.ISA
	rounded bool // x is rounded to int8
}

// String names the instruction set.
func (s codeSet) String() string {
	if s.rounded {
		return s.ISA.String() + "/rounded"
	}
	return s.ISA.String()
}

// codeSets are all that this machine has, with -short those with kernels of their own.
func codeSets() (list []codeSet) {
	for _, set := range isa.All() {
		if !again(set) {
			list = append(list, codeSet{set, false})
		}
		if !again(set) || set == isa.AMX { // which has tiles for them
			list = append(list, codeSet{set, true})
		}
	}
	return list
}

// sameBits is the set that stands for all whose bits are those of s.
func (s codeSet) sameBits() codeSet {
	if s.ISA == isa.Portable {
		return s
	}
	return codeSet{isa.AVX2, s.rounded}
}

// cases are those in which x is rounded, or all.
func (s codeSet) cases() (list []codeCase) {
	for _, c := range codeCases {
		if !s.rounded || c.kind == compute.Code8 || c.kind == compute.Code4 && c.values != nf4 {
			list = append(list, c)
		}
	}
	return list
}

// newCodes is random codes.
func newCodes(r *rand.Rand, c codeCase, n, k, group, lead int) compute.Codes {
	q := compute.Codes{Type: c.kind, Values: c.values, Rows: n, Cols: k, Group: group, Lead: lead}
	q.Code = make([]byte, n*k)
	for i := range q.Code {
		switch b := byte(r.Uint32()); {
		case c.kind == compute.Code4:
			q.Code[i] = b & 15
		case c.kind == compute.CodeE4M3 && b&0x7f == 0x7f:
			q.Code[i] = b ^ 1
		case c.super && c.offset: // 0 to 63
			q.Code[i] = b & 63
		case c.super: // -32 to 31
			q.Code[i] = byte(int8(b) >> 2)
		default:
			q.Code[i] = b
		}
	}
	number := func() float32 {
		v := float32(r.IntN(2000)-1000) / 1024
		if c.wide {
			v *= 1.0001
		}
		return v
	}
	cells := n * q.Groups()
	q.Scale = make([]float32, cells)
	for i := range q.Scale {
		q.Scale[i] = number()
	}
	if c.offset {
		q.Offset = make([]float32, cells)
		for i := range q.Offset {
			q.Offset[i] = number()
			if c.apart {
				q.Offset[i] *= 1.0001
			}
		}
	}
	if c.super {
		factored(r, &q, 3, 2, number)
	}
	if c.order {
		q.Order = make([]int32, k)
		for i, v := range r.Perm(k) {
			q.Order[i] = int32(v)
		}
	}
	return q
}

// factored makes the scales and offsets of codes multiples of factors.
func factored(r *rand.Rand, q *compute.Codes, super, lead int, number func() float32) {
	q.Super, q.SuperLead = super, lead
	numbers := func(of []float32) []float32 {
		if of == nil {
			return nil
		}
		factors := make([]float32, q.Rows*q.Supers())
		for i := range factors {
			factors[i] = number()
		}
		for i := range of {
			row, g := i/q.Groups(), i%q.Groups()
			of[i] = factors[row*q.Supers()+(lead+g)/super] * float32(r.IntN(256)-128)
		}
		return factors
	}
	q.Factor, q.OffsetFactor = numbers(q.Scale), numbers(q.Offset)
}

// groupOf is that of a column.
func groupOf(q *compute.Codes, col int) int {
	if q.Group == 0 {
		return 0
	}
	return (q.Lead + col) / q.Group
}

// codeElement is the contract's value of an output element's pieces, appended to those given, and
// what float64 says of the sum, with the sum of the magnitudes of all that it is made of. numbers
// are those of the row of codes, and x is in their order.
func codeElement(set codeSet, q *compute.Codes, row int, numbers, x []float32, chunks int,
	pieces []float32) (_ []float32, exact, magnitude float64) {
	if set.rounded {
		return dotElement(q, row, numbers, x, chunks, pieces)
	}
	fma := fusedMultiplyAdd
	if set.ISA == isa.Portable {
		fma = func(x, y, z float32) float32 { return float32(x*y) + z }
	}
	groups := q.Groups()
	s := Source{Cols: max(q.Of, q.Cols), ColLo: q.From, ColHi: q.From + q.Cols}
	start := s.cut(chunks)
	for i := range chunks {
		var acc float32
		for at := start[i]; at < start[i+1]; {
			g, end := groupOf(q, at), min(at+1024, start[i+1])
			if q.Group > 0 {
				end = min(end, (g+1)*q.Group-q.Lead)
			}
			scale, offset := q.Scale[row*groups+g], float32(0)
			if q.Offset != nil {
				offset = q.Offset[row*groups+g]
			}
			var part float32
			var sums [8]float32
			for j, v := range numbers[at:end] {
				in := x[at+j]
				part = fma(in, v, part)
				sums[j%8] += in
				by, plus := float64(v)*float64(scale)*float64(in), float64(offset)*float64(in)
				exact += by + plus
				magnitude += math.Abs(by) + math.Abs(plus)
			}
			acc = fma(scale, part, acc)
			if q.Offset != nil {
				acc = fma(offset, tree(sums[:]), acc)
			}
			at = end
		}
		pieces = append(pieces, acc)
	}
	return pieces, exact, magnitude
}

func mustPackCodes(t testing.TB, p *pool.Pool, set codeSet, chunks int,
	q ...compute.Codes) *Matrix {
	t.Helper()
	m, err := PackCodes(p, Options{Chunks: chunks, ISA: set.ISA, Rounded: set.rounded}, q...)
	if err != nil {
		t.Fatalf("pack: %v", err)
	}
	t.Cleanup(m.Free)
	otherProcessor(t, m)
	return m
}

// checkCodes multiplies with sets of the same bits and compares every element with the contract's,
// and roughly with float64.
func checkCodes(t *testing.T, p *pool.Pool, sets []codeSet, q *compute.Codes, rows, chunks int,
	r *rand.Rand) {
	t.Helper()
	n, k := q.Rows, q.Cols
	ldx, ldd := k+r.IntN(5), n+r.IntN(4)
	x := randoms(r, (rows-1)*ldx+k)
	bias := randoms(r, n)
	if r.IntN(2) == 0 {
		bias = nil
	}
	size := (rows-1)*ldd + n
	residual := randoms(r, size)
	wantPlain, wantAdded := filled(size+3, untouched), append([]float32(nil), residual...)
	wantParts := filled((chunks*rows-1)*ldd+n+3, untouched)
	ordered := x
	if q.Order != nil {
		ordered = make([]float32, len(x))
		for row := range rows {
			for col, from := range q.Order {
				ordered[row*ldx+col] = x[row*ldx+int(from)]
			}
		}
	}
	numbers, pieces := make([]float32, k), make([]float32, 0, chunks)
	for col := range n {
		for i, code := range q.Code[col*k:][:k] {
			numbers[i] = q.Number(code)
		}
		for row := range rows {
			var exact, magnitude float64
			pieces, exact, magnitude = codeElement(sets[0], q, col, numbers, ordered[row*ldx:][:k],
				chunks, pieces[:0])
			sum, at := tree(pieces), row*ldd+col
			if math.Abs(float64(sum)-exact) > 0x1p-24*float64(k+8)*magnitude {
				t.Fatalf("%v %v %d x %d: [%d][%d] = %v, float64 says %v", sets[0], q.Type, n, k,
					row, col, sum, exact)
			}
			wantPlain[at], wantAdded[at] = sum, residual[at]+sum
			if bias != nil {
				wantPlain[at] += bias[col]
			}
			for i, piece := range pieces {
				wantParts[(i*rows+row)*ldd+col] = piece
			}
		}
	}
	for _, set := range sets {
		m := mustPackCodes(t, p, set, chunks, *q)
		what := fmt.Sprintf("%v %v %d x %d, groups of %d, lead %d, %d chunks, %d rows of %d", set,
			q.Type, n, k, q.Group, q.Lead, chunks, rows, ldd)
		if m.N() != n || m.K() != k || m.Chunks() != chunks {
			t.Fatalf("%s: packed %d x %d in %d", what, m.N(), m.K(), m.Chunks())
		}
		plain, added := filled(size+3, untouched), append([]float32(nil), residual...)
		parts := filled(len(wantParts), untouched)
		var s Scratch
		m.Mul(p, &s, plain, ldd, x, ldx, rows, bias)
		m.MulAdd(p, &s, added, ldd, x, ldx, rows)
		m.MulChunks(p, &s, parts, ldd, x, ldx, rows)
		// Between rows and behind the end nothing is written.
		sameSlice(t, what+": Mul", plain, wantPlain)
		sameSlice(t, what+": MulAdd", added, wantAdded)
		sameSlice(t, what+": MulChunks", parts, wantParts)
		least, err := CodesBytes(chunks, set.rounded, *q)
		if err != nil || int64(m.Bytes()) > least {
			t.Errorf("%s: %d bytes, planned were %d: %v", what, m.Bytes(), least, err)
		}
	}
}

// TestCodesContractBits compares products of every way to quantise, of odd and even shapes, with
// what PackCodes says of them.
func TestCodesContractBits(t *testing.T) {
	p := newPool(t, 2)
	groups := []int{0, 16, 32, 64, 128, 5}
	for _, sets := range lots(codeSets(), codeSet.sameBits) {
		set := sets[0]
		for i, c := range set.cases() {
			t.Run(fmt.Sprintf("%v/%v", set, c), func(t *testing.T) {
				r := rand.New(rand.NewPCG(17, uint64(set.ISA)<<8|uint64(i)))
				check := func(n, k, rows, group, chunks int) {
					lead := 0
					if group > 0 {
						lead = r.IntN(group) * r.IntN(2)
					}
					q := newCodes(r, c, n, k, group, lead)
					checkCodes(t, p, sets, &q, rows, chunks, r)
				}
				for rows := 1; rows <= 40; rows++ { // every tile height and split
					portable := set.ISA == isa.Portable
					if rows%5 != 1 && (portable || testing.Short() && rows > 13) {
						continue // no other kernel, and splits into heights that were there
					}
					k := 8 * (1 + r.IntN(16))
					check(1+r.IntN(70), k, rows, groups[r.IntN(len(groups))], 1)
				}
				for _, group := range groups {
					for _, chunks := range []int{1, 2, 4, 8} {
						most := 12
						if testing.Short() {
							if chunks == 2 || chunks == 4 {
								continue
							}
							most = 3 // the heights are above
						}
						check(64, 256, 1+r.IntN(most), group, chunks)
						check(1+r.IntN(140), 8+r.IntN(200), 1+r.IntN(most), group, chunks)
					}
				}
				if testing.Short() && set.ISA == isa.Portable { // has one kernel
					return
				}
				for _, rows := range []int{1, 2, 12} {
					part := 1
					if testing.Short() && rows == 12 {
						part = 4 // the columns are those of the rows before
					}
					check(1+16/part, maxRun+1, rows, 0, 1)
					check(1+32/part, 3*maxRun, rows, 2048, 1)
					check(40/part, 4096, rows, 0, 2) // rows meet in the cache
				}
				check(3, 1, 1, 32, 1)
				check(70, maxSteps+64, 1, 32, 1) // more than one call
			})
		}
	}
}

// TestCodesSplit wants the parts of ranks that share the columns, and those that share the rows, to
// have the bits of one rank.
func TestCodesSplit(t *testing.T) {
	p := newPool(t, 2)
	for _, set := range codeSets() {
		for i, c := range set.cases() {
			r := rand.New(rand.NewPCG(18, uint64(i)))
			for range 6 {
				n, k, rows := 2+r.IntN(90), 8+r.IntN(400), 1+r.IntN(20)
				group := []int{0, 16, 32, 100}[r.IntN(4)]
				q := newCodes(r, c, n, k, group, 0)
				x := randoms(r, rows*k)
				var s Scratch
				want := make([]float32, rows*n)
				mustPackCodes(t, p, set, 8, q).Mul(p, &s, want, n, x, k, rows, nil)
				for _, tp := range []int{2, 4, 8} {
					if c.order {
						break // the loader refuses it
					}
					parts := make([]float32, tp*rows*n)
					for rank := range tp {
						lo, hi := rank*k/tp, (rank+1)*k/tp
						part := columns(q, lo, hi)
						mustPackCodes(t, p, set, 8/tp, part).Mul(p, &s, parts[rank*rows*n:], n,
							x[lo:], k, rows, nil)
					}
					got := make([]float32, rows*n)
					TreeSum(got, parts, tp)
					sameSlice(t, fmt.Sprintf("%v %v %d x %d, groups of %d: tensor parallel %d",
						set, c, n, k, group, tp), got, want)
				}
				cut := 1 + r.IntN(n-1)
				upper, lower := rowsOf(q, 0, cut), rowsOf(q, cut, n)
				got := make([]float32, rows*n)
				mustPackCodes(t, p, set, 8, upper, lower).Mul(p, &s, got, n, x, k, rows, nil)
				sameSlice(t, fmt.Sprintf("%v %v: stacked", set, c), got, want)
				mustPackCodes(t, p, set, 8, lower).Mul(p, &s, got[cut:], n, x, k, rows, nil)
				mustPackCodes(t, p, set, 8, upper).Mul(p, &s, got, n, x, k, rows, nil)
				sameSlice(t, fmt.Sprintf("%v %v: apart", set, c), got, want)
			}
		}
	}
}

// TestCodesOfFewColumns wants the same of ranks whose last pieces have no columns, after products
// that have used the memory of their sums.
func TestCodesOfFewColumns(t *testing.T) {
	for _, set := range codeSets() {
		c := codeCases[0]
		r := rand.New(rand.NewPCG(19, 0))
		const n, k, tp = 40, 3, 2
		used := mustPackCodes(t, nil, set, 8, newCodes(r, c, n, 200, 0, 0))
		q := newCodes(r, c, n, k, 0, 0)
		for rows := 1; rows <= 20; rows++ {
			x := randoms(r, rows*200)
			var s Scratch
			want, got := make([]float32, rows*n), make([]float32, rows*n)
			mustPackCodes(t, nil, set, 8, q).Mul(nil, &s, want, n, x, k, rows, nil)
			parts := make([]float32, tp*rows*n)
			for rank := range tp {
				lo, hi := rank*k/tp, (rank+1)*k/tp
				used.Mul(nil, &s, parts[rank*rows*n:], n, x, 200, rows, nil)
				mustPackCodes(t, nil, set, 8/tp, columns(q, lo, hi)).Mul(nil, &s,
					parts[rank*rows*n:], n, x[lo:], k, rows, nil)
			}
			TreeSum(got, parts, tp)
			sameSlice(t, fmt.Sprintf("%v, %d rows", set, rows), got, want)
		}
	}
}

// columns are some of the columns of q.
func columns(q compute.Codes, lo, hi int) compute.Codes {
	part := q
	part.Cols, part.From, part.Of = hi-lo, lo, q.Cols
	first := 0
	if q.Group > 0 {
		first, part.Lead = lo/q.Group, lo%q.Group
	}
	from := 0
	if q.Super > 0 {
		from, part.SuperLead = (q.SuperLead+first)/q.Super, (q.SuperLead+first)%q.Super
	}
	groups, all := part.Groups(), q.Groups()
	part.Code, part.Scale = nil, nil
	for row := range q.Rows {
		part.Code = append(part.Code, q.Code[row*q.Cols+lo:row*q.Cols+hi]...)
		part.Scale = append(part.Scale, q.Scale[row*all+first:][:groups]...)
	}
	if q.Offset != nil {
		part.Offset = nil
		for row := range q.Rows {
			part.Offset = append(part.Offset, q.Offset[row*all+first:][:groups]...)
		}
	}
	part.Factor, part.OffsetFactor = nil, nil
	for row := range q.Rows * min(q.Super, 1) {
		at := row*q.Supers() + from
		part.Factor = append(part.Factor, q.Factor[at:at+part.Supers()]...)
		if q.Offset != nil {
			part.OffsetFactor = append(part.OffsetFactor, q.OffsetFactor[at:at+part.Supers()]...)
		}
	}
	return part
}

// rowsOf are some of the rows of q.
func rowsOf(q compute.Codes, lo, hi int) compute.Codes {
	groups := q.Groups()
	q.Rows = hi - lo
	q.Code, q.Scale = q.Code[lo*q.Cols:hi*q.Cols], q.Scale[lo*groups:hi*groups]
	if q.Offset != nil {
		q.Offset = q.Offset[lo*groups : hi*groups]
	}
	if supers := q.Supers(); supers > 0 {
		q.Factor = q.Factor[lo*supers : hi*supers]
		if q.Offset != nil {
			q.OffsetFactor = q.OffsetFactor[lo*supers : hi*supers]
		}
	}
	return q
}

// TestCodesRowsAndThreads wants the bits of a row not to depend on the rows beside it nor on the
// number of threads.
func TestCodesRowsAndThreads(t *testing.T) {
	pools := []*pool.Pool{nil, newPool(t, 2), newPool(t, 3)}
	for _, set := range codeSets() {
		for i, c := range set.cases() {
			r := rand.New(rand.NewPCG(19, uint64(i)))
			n, k := 1+r.IntN(700), 1+r.IntN(500)
			if set.ISA == isa.Portable {
				n, k = n/4+1, k/4+1
			}
			q := newCodes(r, c, n, k, 32, 0)
			m := mustPackCodes(t, pools[1], set, 1<<r.IntN(4), q)
			const most = 40
			x := randoms(r, most*k)
			var s Scratch
			alone := make([]float32, most*n)
			for row := range most {
				m.Mul(nil, &s, alone[row*n:], n, x[row*k:], k, 1, nil)
			}
			for rows := 1; rows <= most; rows++ {
				first := r.IntN(most - rows + 1)
				p := pools[rows%len(pools)]
				got := make([]float32, rows*n)
				m.Mul(p, &s, got, n, x[first*k:], k, rows, nil)
				sameSlice(t, fmt.Sprintf("%v %v: %d rows on %d threads", set, c, rows, p.Threads()),
					got, alone[first*n:(first+rows)*n])
			}
		}
	}
}

// TestCodesForm makes matrices again of what their forms are as JSON, and wants the same bits.
func TestCodesForm(t *testing.T) {
	for _, set := range codeSets() {
		for i, c := range set.cases() {
			r := rand.New(rand.NewPCG(26, uint64(i)))
			const n, k, rows = 40, 135, 3
			m := mustPackCodes(t, nil, set, 4, newCodes(r, c, n, k, 16, 3))
			form, packed := m.Form()
			text, err := json.Marshal(form)
			if err != nil {
				t.Fatal(err)
			}
			var again Form
			if err := json.Unmarshal(text, &again); err != nil {
				t.Fatal(err)
			}
			stored, err := FromForm(set.ISA, again, packed)
			if err != nil {
				t.Fatalf("%v %v: %v", set, c, err)
			}
			x := randoms(r, rows*k)
			var s Scratch
			got, want := make([]float32, rows*n), make([]float32, rows*n)
			m.Mul(nil, &s, want, n, x, k, rows, nil)
			stored.Mul(nil, &s, got, n, x, k, rows, nil)
			sameSlice(t, fmt.Sprintf("%v %v", set, c), got, want)
		}
	}
}

// TestCodesSetsAgree wants the bits of AVX2 of AVX-512, whatever the shape.
func TestCodesSetsAgree(t *testing.T) {
	if !isa.Available(isa.AVX512) {
		t.Skip("this machine has no AVX-512")
	}
	for i, c := range codeCases {
		r := rand.New(rand.NewPCG(20, uint64(i)))
		for range 10 {
			n, k, rows := 1+r.IntN(300), 1+r.IntN(700), 1+r.IntN(20)
			q := newCodes(r, c, n, k, 32, 0)
			x := randoms(r, rows*k)
			var s Scratch
			got, want := make([]float32, rows*n), make([]float32, rows*n)
			old := mustPackCodes(t, nil, codeSet{isa.AVX2, false}, 4, q)
			old.Mul(nil, &s, want, n, x, k, rows, nil)
			wide := mustPackCodes(t, nil, codeSet{isa.AVX512, false}, 4, q)
			wide.Mul(nil, &s, got, n, x, k, rows, nil)
			sameSlice(t, c.name, got, want)
		}
	}
}

// TestUnpackedCodesAgree wants of tiles of any height, of codes that are unpacked for them, what
// one row has. Few rows are left where many are cut into blocks.
func TestUnpackedCodesAgree(t *testing.T) {
	for _, set := range isa.All() {
		if set == isa.Portable || again(set) {
			continue
		}
		const k = 100
		for i, c := range (codeSet{set, false}).cases() {
			r := rand.New(rand.NewPCG(22, uint64(i)))
			m := mustPackCodes(t, nil, codeSet{set, false}, 1, newCodes(r, c, 32, k, 32, 0))
			nr := m.kernels.nr
			x := randoms(r, maxRows*k)
			var s Scratch
			task := &s.mul
			*task = mulTask{m: m, rows: maxRows, threads: 1}
			task.choose()
			s.prepare(nil, task, x, k)
			task.plan()
			s.prepareCodes(nil, task)
			var few Scratch
			for height := 1; height <= maxRows; height++ {
				got, want := make([]float32, height*nr), make([]float32, height*32)
				for _, p := range m.codes.parts {
					task.unpacked(0, p.first, p.runs, 0, height, unsafe.Pointer(&got[0]),
						uintptr(4*nr), 0)
				}
				for row := range height {
					m.Mul(nil, &few, want[row*32:], 32, x[row*k:], k, 1, nil)
					sameSlice(t, fmt.Sprintf("%v %v: %d rows", set, c, height),
						got[row*nr:][:nr], want[row*32:][:nr])
				}
			}
		}
		for i, c := range (codeSet{set, true}).cases() {
			if !c.super {
				continue
			}
			r := rand.New(rand.NewPCG(23, uint64(i)))
			m := mustPackCodes(t, nil, codeSet{set, true}, 2, newCodes(r, c, 40, k, 16, 0))
			for rows := bytesFrom + 1; rows < 3*bytesFrom; rows++ {
				x := randoms(r, rows*k)
				got, want := make([]float32, rows*40), make([]float32, 40)
				var s Scratch
				task := &s.mul
				*task = mulTask{m: m, rows: rows, threads: 1, dst: unsafe.Pointer(&got[0]),
					dstStride: 4 * 40}
				task.choose()
				s.prepareDots(nil, task, x, k)
				task.plan()
				task.tiles = unsafe.Pointer(&alignedSlice(&s.tiles, task.tileSize)[0])
				s.prepareCodes(nil, task)
				task.blockRows, task.perChunk = bytesFrom+rows%3, m.panels()
				for chunk := range ceilDiv(rows, task.blockRows) {
					task.Do(chunk, 0)
				}
				var few Scratch
				for row := range rows {
					m.Mul(nil, &few, want, 40, x[row*k:], k, 1, nil)
					sameSlice(t, fmt.Sprintf("%v %v: row %d of %d", set, c, row, rows),
						got[row*40:][:40], want)
				}
			}
		}
	}
}

// TestCodesNonFinite wants a NaN of one row of x to reach that row, and the chunk that it is in,
// and no other, even through what fills up blocks.
func TestCodesNonFinite(t *testing.T) {
	p := newPool(t, 2)
	for _, set := range codeSets() {
		for i, c := range set.cases() {
			for _, rows := range []int{7, 14} {
				r := rand.New(rand.NewPCG(21, uint64(i)))
				const n, k, chunks = 50, 45, 4
				q := newCodes(r, c, n, k, 16, 0)
				m := mustPackCodes(t, p, set, chunks, q)
				x := randoms(r, rows*k)
				var s Scratch
				clean, got := make([]float32, chunks*rows*n), make([]float32, chunks*rows*n)
				m.MulChunks(p, &s, clean, n, x, k, rows)
				for at := range k {
					col := at
					if q.Order != nil {
						col = int(q.Order[at])
					}
					old := x[5*k+col]
					x[5*k+col] = float32(math.NaN())
					m.MulChunks(p, &s, got, n, x, k, rows)
					x[5*k+col] = old
					for i, g := range got {
						chunk, row := i/(rows*n), i/n%rows
						hit := row == 5 && at >= chunk*k/chunks && at < (chunk+1)*k/chunks
						if hit && g == g || !hit && !same(g, clean[i]) {
							t.Fatalf("%v %v: NaN in column %d of row 5: %v in chunk %d of row %d",
								set, c, at, g, chunk, row)
						}
					}
				}
			}
		}
	}
}

// TestCodesFiniteOnly wants a scale, an offset or a code that is no number to be named, wherever it
// is.
func TestCodesFiniteOnly(t *testing.T) {
	p := newPool(t, 2)
	r := rand.New(rand.NewPCG(22, 22))
	for round := range 200 {
		c := codeCases[r.IntN(len(codeCases))]
		n, k := 1+r.IntN(60), 1+r.IntN(100)
		sources := []compute.Codes{newCodes(r, c, n, k, 16, 3), newCodes(r, c, n, k, 16, 3)}
		sources[1].Order = sources[0].Order
		in, row, col := r.IntN(2), r.IntN(n), r.IntN(k)
		q := &sources[in]
		cell := row*q.Groups() + groupOf(q, col)
		first := max(0, groupOf(q, col)*16-3)
		switch kind := r.IntN(3); {
		case kind == 0 && c.kind == compute.CodeE4M3:
			q.Code[row*k+col] = 0x7f | byte(r.IntN(2)<<7)
			first = col
		case kind == 1 && c.offset:
			q.Offset[cell] = float32(math.Inf(-1))
		default:
			q.Scale[cell] = float32(math.NaN())
		}
		_, err := PackCodes(p, Options{Chunks: 1, ISA: isa.Best()}, sources...)
		var bad *NotFinite
		if !errors.As(err, &bad) || bad.Source != in || bad.Row != row || bad.Col != first {
			t.Errorf("round %d, %v: [%d, %d] of source %d: %v", round, c, row, first, in, err)
		}
	}
}

func TestCodesNoAllocation(t *testing.T) {
	p := newPool(t, 2)
	for _, set := range codeSets() {
		for i, c := range set.cases() {
			const n, k, most = 200, 72, 9
			r := rand.New(rand.NewPCG(26, uint64(i)))
			m := mustPackCodes(t, p, set, 4, newCodes(r, c, n, k, 32, 0))
			x, dst := randoms(r, most*k), make([]float32, 4*most*n)
			var s Scratch
			run := func() {
				for rows := most; rows > 0; rows -= 4 {
					m.Mul(p, &s, dst, n, x, k, rows, x[:n])
					m.MulChunks(p, &s, dst, n, x, k, rows)
				}
			}
			run()
			if n := testing.AllocsPerRun(20, run); n != 0 {
				t.Errorf("%v %v: %v allocations", set, c, n)
			}
		}
	}
}

// TestCodesSpare wants memory of a matrix to serve one of the same layout, and to leave nothing
// behind.
func TestCodesSpare(t *testing.T) {
	p := newPool(t, 2)
	for _, set := range codeSets() {
		for i, c := range codeCases {
			r := rand.New(rand.NewPCG(23, uint64(i)))
			var spare Spare
			opt := Options{Chunks: 2, ISA: set.ISA, Rounded: set.rounded, Spare: &spare}
			old := newCodes(r, c, 41, 107, 32, 5)
			m, err := PackCodes(p, opt, old)
			if err != nil {
				t.Fatal(err)
			}
			at := &m.mem.Bytes()[0]
			spare.Release(m)
			again := newCodes(r, c, 41, 107, 32, 5)
			other := mustPackCodes(t, p, set, 2, again)
			different := newCodes(r, c, 41, 107, 32, 6)
			if m, err = PackCodes(p, opt, different); err != nil {
				t.Fatal(err)
			}
			if &m.mem.Bytes()[0] == at {
				t.Errorf("%v %v: another layout has the memory", set, c)
			}
			m.Free()
			if m, err = PackCodes(p, opt, again); err != nil {
				t.Fatal(err)
			}
			if &m.mem.Bytes()[0] != at {
				t.Errorf("%v %v: the memory is new", set, c)
			}
			samePacked(t, fmt.Sprintf("%v %v", set, c), m, other)
			m.Free()
			if err := spare.Reserve(p, []*Matrix{other}); err != nil {
				t.Fatal(err)
			}
			opt.Spare = &spare
			if m, err = PackCodes(p, opt, again); err != nil || !spare.Empty() {
				t.Errorf("%v %v: reserved memory is not used: %v", set, c, err)
			}
			samePacked(t, fmt.Sprintf("%v %v, reserved", set, c), m, other)
			m.Free()
		}
	}
}

func TestPackCodesErrors(t *testing.T) {
	r := rand.New(rand.NewPCG(24, 24))
	c := codeCases[0]
	good := newCodes(r, c, 8, 64, 32, 0)
	with := func(f func(*compute.Codes)) []compute.Codes {
		q := newCodes(r, c, 8, 64, 32, 0)
		f(&q)
		return []compute.Codes{good, q}
	}
	for name, q := range map[string][]compute.Codes{
		"none":    {},
		"shape":   with(func(q *compute.Codes) { q.Rows = 0 }),
		"codes":   with(func(q *compute.Codes) { q.Code = nil }),
		"weighed": with(func(q *compute.Codes) { q.Code, q.Scale = nil, nil }),
		"group":   {good, newCodes(r, c, 8, 64, 16, 0)},
		"values":  {good, newCodes(r, codeCases[3], 8, 64, 32, 0)},
		"type":    {good, newCodes(r, codeCases[7], 8, 64, 32, 0)},
		"factors": with(func(q *compute.Codes) { factored(r, q, 2, 0, r.Float32) }),
		"factor":  with(func(q *compute.Codes) { q.Super = 2 }),
		"offset":  {good, newCodes(r, codeCases[1], 8, 64, 32, 0)},
		"order":   with(func(q *compute.Codes) { q.Order = make([]int32, 64) }),
		"range":   with(func(q *compute.Codes) { q.From = 8 }),
	} {
		if m, err := PackCodes(nil, Options{Chunks: 1}, q...); !errors.Is(err, ErrSource) {
			t.Errorf("%s: %v, %v", name, m, err)
		}
	}
	for _, offset := range []bool{false, true} {
		q := newCodes(r, codeCase{kind: compute.Code8, offset: offset, super: true}, 8, 64, 16, 0)
		if q.Code[70] = 32; offset {
			q.Code[70] = 64
		}
		_, err := PackCodes(nil, Options{Chunks: 1, Rounded: true}, q)
		if !errors.Is(err, ErrSource) || !strings.Contains(err.Error(), "row 1: codes of 8 bits") {
			t.Errorf("code %d of six bits, offsets %v: %v", q.Code[70], offset, err)
		}
	}
	if _, err := PackCodes(nil, Options{Chunks: 3}, good); !errors.Is(err, ErrOptions) {
		t.Errorf("3 chunks: %v", err)
	}
}

// FuzzPackCodes packs codes of any sizes and reads them back: a product with a row of the unit
// matrix is a column of weights.
func FuzzPackCodes(f *testing.F) {
	f.Add(uint64(1), uint16(33), uint16(70), uint8(32), uint8(3), uint8(0))
	f.Add(uint64(2), uint16(16), uint16(128), uint8(0), uint8(0), uint8(3))
	f.Fuzz(func(t *testing.T, seed uint64, n, k uint16, group, lead, chunks uint8) {
		r := rand.New(rand.NewPCG(seed, 25))
		c := codeCases[r.IntN(len(codeCases))]
		rows, cols, size := 1+int(n)%100, 1+int(k)%600, int(group)
		first := 0
		if size > 0 {
			first = int(lead) % size
		}
		q := newCodes(r, c, rows, cols, size, first)
		m := mustPackCodes(t, nil, codeSet{isa.Best(), false}, 1<<(chunks%4), q)
		x, dst := make([]float32, cols), make([]float32, rows)
		var s Scratch
		col := r.IntN(cols)
		at := col
		if q.Order != nil {
			at = int(q.Order[col])
		}
		x[at] = 1
		m.Mul(nil, &s, dst, rows, x, cols, 1, nil)
		for row, got := range dst {
			cell := row*q.Groups() + groupOf(&q, col)
			want := q.Number(q.Code[row*cols+col]) * q.Scale[cell]
			if q.Offset != nil {
				number := q.Number(q.Code[row*cols+col])
				want = fusedMultiplyAdd(number, q.Scale[cell], 0) + q.Offset[cell]
			}
			if !same(got, want) && !slices.Contains([]float32{got, want}, 0) {
				t.Fatalf("%v %d x %d by %d, lead %d: [%d][%d] = %v, want %v", c, rows, cols, size,
					first, row, col, got, want)
			}
		}
	})
}
