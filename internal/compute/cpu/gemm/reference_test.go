package gemm

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/eagleray/eagleray/internal/compute/cpu/isa"
	"github.com/eagleray/eagleray/internal/compute/cpu/pool"
	"github.com/eagleray/eagleray/internal/sys/half"
)

// variant is a way to multiply that this machine has.
type variant struct {
	set  isa.ISA
	kind Kind
	// rounded rows of x: VDPBF16PS or the order of TDPBF16PS
	rounded bool
}

func (v variant) String() string {
	if v.rounded {
		return v.set.String() + "/rounded"
	}
	return fmt.Sprintf("%v/%v", v.set, v.kind)
}

func (v variant) options(chunks int) Options {
	return Options{Kind: v.kind, Chunks: chunks, ISA: v.set, Rounded: v.rounded}
}

func variants() []variant {
	var all []variant
	for _, set := range isa.All() {
		for kind := range kinds {
			if again(set) {
				break
			}
			all = append(all, variant{set: set, kind: kind})
		}
		if set >= isa.AVX512BF16 {
			all = append(all, variant{set: set, kind: BF16, rounded: true})
		}
	}
	return all
}

// sameBits is the variant that stands for all whose bits are those of v: vectors that nothing
// rounds have the same.
func (v variant) sameBits() variant {
	if v.rounded || v.set == isa.Portable {
		return v
	}
	return variant{set: isa.AVX2, kind: v.kind}
}

// lots puts together what has the same key, in the order of the list.
func lots[T any, K comparable](list []T, key func(T) K) (lots [][]T) {
	at := map[K]int{}
	for _, x := range list {
		i, ok := at[key(x)]
		if !ok {
			i, lots = len(lots), append(lots, nil)
			at[key(x)] = i
		}
		lots[i] = append(lots[i], x)
	}
	return lots
}

// again tells whether a set is to be left out with -short, because its kernels are AVX512's, but
// for bfloat16 that is rounded (TestSetsAboveAVX512).
func again(set isa.ISA) bool { return testing.Short() && set > isa.AVX512 }

// TestSetsAboveAVX512 wants the kernels of AVX512 of the sets above it, where again says so.
func TestSetsAboveAVX512(t *testing.T) {
	for _, set := range isa.All() {
		if set <= isa.AVX512 {
			continue
		}
		for kind := range kinds {
			o := Options{Kind: kind, ISA: set}
			if like := (Options{Kind: kind, ISA: isa.AVX512}); kind != I8 &&
				vectorKernels(o) != vectorKernels(like) {
				t.Errorf("%v/%v has kernels of its own", set, kind)
			}
		}
		for _, c := range codeCases {
			for _, rounded := range []bool{false, true} {
				q := newCodes(rand.New(rand.NewPCG(1, 1)), c, 4, 64, 32, 0)
				var own, like codes
				own.choose(set, &q, rounded)
				like.choose(isa.AVX512, &q, rounded)
				if own.tiles != like.tiles || own.floats != like.floats || own.form != like.form {
					t.Errorf("%v/%v rounded %v has kernels of its own", set, c, rounded)
				}
			}
		}
	}
}

// chain is the sum the contract promises for one piece of K.
func (v variant) chain(x, w []float32) float32 {
	var acc float32
	switch {
	case v.kind == I8 && len(x) > maxRun: // scales are powers of two, by which nothing is rounded
		for i := 0; i < len(x); i += maxRun {
			acc += v.chain(x[i:min(i+maxRun, len(x))], w[i:min(i+maxRun, len(x))])
		}
	case v.rounded && v.set == isa.AVX512BF16:
		for k := 0; k < len(x); k += 2 { // the odd element first: Intel SDM, VDPBF16PS
			acc = flush(fusedMultiplyAdd(rounded(x, k+1), rounded(w, k+1), acc))
			acc = flush(fusedMultiplyAdd(rounded(x, k), rounded(w, k), acc))
		}
	case v.rounded:
		for block := 0; block < len(x); block += 32 {
			var sums [2]float32
			for k := block; k < min(block+32, len(x)+len(x)%2); k++ {
				sums[k%2] = flush(fusedMultiplyAdd(rounded(x, k), rounded(w, k), sums[k%2]))
			}
			acc = flush(acc + flush(sums[0]+sums[1]))
		}
	case v.set == isa.Portable:
		for k := range x {
			acc += float32(x[k] * w[k])
		}
	default:
		for k := range x {
			acc = fusedMultiplyAdd(x[k], w[k], acc)
		}
	}
	return acc
}

// flush takes a denormal for zero.
func flush(f float32) float32 {
	if math.Abs(float64(f)) < 0x1p-126 {
		return float32(math.Copysign(0, float64(f)))
	}
	return f
}

// rounded is element i as bf16, or zero behind the end.
func rounded(s []float32, i int) float32 {
	if i >= len(s) {
		return 0
	}
	return flush(half.FromBF16(half.ToBF16(s[i])))
}

func tree(parts []float32) float32 {
	if len(parts) == 1 {
		return parts[0]
	}
	h := len(parts) / 2
	return tree(parts[:h]) + tree(parts[h:])
}

// element is the contract's value of one output element and of its chunks.
func (v variant) element(x, w []float32, chunks int) (float32, []float32) {
	parts := make([]float32, chunks)
	for i := range parts {
		lo, hi := i*len(x)/chunks, (i+1)*len(x)/chunks
		parts[i] = v.chain(x[lo:hi], w[lo:hi])
	}
	return tree(parts), parts
}

// encode stores values as the given kind and returns what was stored, too.
func encode(kind Kind, values []float32) ([]byte, []float32) {
	data := make([]byte, len(values)*kind.Size())
	stored := make([]float32, len(values))
	for i, v := range values {
		switch kind {
		case BF16:
			binary.LittleEndian.PutUint16(data[2*i:], half.ToBF16(v))
		case F16:
			binary.LittleEndian.PutUint16(data[2*i:], half.ToF16(v))
		default:
			binary.LittleEndian.PutUint32(data[4*i:], math.Float32bits(v))
		}
	}
	decode(stored, kind, data)
	return data, stored
}

func randoms(r *rand.Rand, n int) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(r.NormFloat64())
	}
	return v
}

// problem is a random matrix and input.
type problem struct {
	n, k, rows int
	kind       Kind
	data       []byte
	w          []float32 // what data says
	x          []float32
	ldx        int
}

func newProblem(r *rand.Rand, kind Kind, n, k, rows int) *problem {
	q := &problem{n: n, k: k, rows: rows, kind: kind, ldx: k + r.IntN(5)}
	values := randoms(r, n*k)
	if kind == I8 {
		// Numbers that are bytes times a scale, which differs from row to row, lose nothing.
		q.kind = F32
		for row := range n {
			w, scale := values[row*k:][:k], math.Ldexp(1, row%5-6)
			for i := range w {
				q := int8(min(max(40*w[i], -127), 127))
				w[i] = float32(scale * float64(q))
			}
			w[r.IntN(k)] = float32(scale * 127)
		}
	}
	q.data, q.w = encode(q.kind, values)
	q.x = randoms(r, (rows-1)*q.ldx+k)
	return q
}

func (q *problem) row(r int) []float32    { return q.x[r*q.ldx:][:q.k] }
func (q *problem) weight(n int) []float32 { return q.w[n*q.k:][:q.k] }

func (q *problem) source() Source {
	return Source{Kind: q.kind, Data: q.data, Rows: q.n, Cols: q.k, RowHi: q.n, ColHi: q.k}
}

func mustPack(t testing.TB, p *pool.Pool, o Options, s ...Source) *Matrix {
	t.Helper()
	m, err := Pack(p, o, s...)
	if err != nil {
		t.Fatalf("pack: %v", err)
	}
	t.Cleanup(m.Free)
	otherProcessor(t, m)
	return m
}

// otherProcessor has every second matrix multiplied as a processor would that follows streams, or
// not, where this one does otherwise: with the same bits.
func otherProcessor(t testing.TB, m *Matrix) {
	if _, ok := t.(*testing.T); ok && (m.n+m.k)%2 == 1 {
		m.flags ^= flagFollows
	}
}

func newPool(t testing.TB, threads int) *pool.Pool {
	t.Helper()
	previous := runtime.GOMAXPROCS(max(threads+2, runtime.NumCPU()))
	p := pool.New(threads)
	t.Cleanup(func() {
		p.Close()
		runtime.GOMAXPROCS(previous)
	})
	return p
}

// same compares bits; NaNs of any payload are the same.
func same(a, b float32) bool {
	return math.Float32bits(a) == math.Float32bits(b) || a != a && b != b
}

func sameSlice(t *testing.T, what string, got, want []float32) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d elements, want %d", what, len(got), len(want))
	}
	for i := range got {
		if !same(got[i], want[i]) {
			t.Fatalf("%s: element %d is %x, want %x", what, i, got[i], want[i])
		}
	}
}
