package attention

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu/isa"
	"github.com/eagleray/eagleray/internal/compute/cpu/pool"
	"github.com/eagleray/eagleray/internal/compute/cpu/vec"
	"github.com/eagleray/eagleray/internal/sys/half"
)

// shape is an attention layer under test.
type shape struct {
	kvHeads, group, dim, window int
	chunked                     bool
	kind                        compute.DType
	// values makes it a layer of latents, of which so many dimensions are values.
	values int
	// sinks says that every query head has one.
	sinks bool
	// scales are those of the model.
	scales compute.CacheScales
}

func (s shape) heads() int { return s.kvHeads * s.group }

func (s shape) layer() compute.CacheLayer {
	l := compute.CacheLayer{Heads: s.kvHeads, Dim: s.dim, Window: s.window, Values: s.values}
	if s.values > 0 {
		l.Kind = compute.Latent
	}
	return l
}

// outDim is the dimension of a head's output.
func (s shape) outDim() int { return s.layer().ValueDim() }

func (s shape) args() Args {
	a := Args{Heads: s.heads(), KVHeads: s.kvHeads, HeadDim: s.dim,
		Scale: float32(1 / math.Sqrt(float64(s.dim))), Window: s.window,
		Chunked: s.chunked}
	for h := 0; s.sinks && h < s.heads(); h++ {
		a.Sinks = append(a.Sinks, float32(h%5-1)) // some above all scores, some below most
	}
	return a
}

// sequence is the whole input of one sequence: a row of q, k and v for each position.
type sequence struct {
	n       int
	q, k, v []float32
}

func randomRows(r *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	return x
}

func (s shape) sequence(r *rand.Rand, n int) *sequence {
	q := &sequence{n: n, q: randomRows(r, n*s.heads()*s.dim), k: randomRows(r, n*s.kvHeads*s.dim)}
	if q.v = q.k; s.values == 0 {
		q.v = randomRows(r, len(q.k))
	}
	return q
}

// stored is a vector after a round trip through the cache's element type; its scale is its own
// where that is 0.
func stored(k compute.DType, x []float32, scale float32) []float64 {
	out, largest := make([]float64, len(x)), float32(0)
	for _, v := range x {
		largest = max(largest, v, -v)
	}
	codes, coded := compute.Codes{Type: compute.CodeE4M3}, make([]byte, len(x))
	if s := cmp.Or(scale, largest/448); k == compute.E4M3 {
		vec.New(isa.Portable).RoundE4M3(coded, x, s)
		for i := range x {
			out[i] = float64(codes.Number(coded[i])) * float64(s)
		}
		return out
	}
	for i, v := range x {
		switch k {
		case compute.BFloat16:
			v = half.FromBF16(half.ToBF16(v))
		case compute.Float16:
			v = half.FromF16(half.ToF16(v))
		case compute.Int8:
			s := largest / 127
			out[i] = math.RoundToEven(float64(v/s)) * float64(s)
			continue
		}
		out[i] = float64(v)
	}
	return out
}

// reference is the attention of one row and head in float64.
func (s shape) reference(q *sequence, pos, head int) []float64 {
	from := 0
	if s.window > 0 {
		from = max(0, pos-s.window+1)
	}
	if s.chunked {
		from = pos / s.window * s.window
	}
	kvWidth, kv := s.kvHeads*s.dim, head/s.group
	query := q.q[(pos*s.heads()+head)*s.dim:]
	p := make([]float64, pos+1-from)
	top := math.Inf(-1)
	vector := func(rows []float32, i int, scales []float32) []float64 {
		return stored(s.kind, rows[(from+i)*kvWidth+kv*s.dim:][:s.dim], scaleOf(scales, kv))
	}
	for i := range p {
		for d, k := range vector(q.k, i, s.scales.Keys) {
			p[i] += float64(query[d]) * k
		}
		p[i] *= float64(s.args().Scale)
		top = max(top, p[i])
	}
	var sum float64
	if s.sinks {
		sink := float64(s.args().Sinks[head])
		top = max(top, sink)
		sum = math.Exp(sink - top)
	}
	for i := range p {
		p[i] = math.Exp(p[i] - top)
		sum += p[i]
	}
	out := make([]float64, s.outDim())
	for i := range p {
		v := vector(q.v, i, s.scales.Values)
		for d := range out {
			out[d] += p[i] / sum * v[d]
		}
	}
	return out
}

// rig runs sequences through a cache, step by step.
type rig struct {
	t      testing.TB
	s      shape
	c      *Cache
	a      *Attention
	p      *pool.Pool
	ld     int // extra elements of the leading dimensions
	seqs   []*sequence
	done   []int
	tables [][]int32
	out    [][]float32
}

// levels are the instruction sets, with -short those that have kernels of their own: others have
// those of AVX-512, as AMX has but for bfloat16 (TestSetsAboveAVX512).
func levels() []isa.ISA {
	return slices.DeleteFunc(isa.All(),
		func(i isa.ISA) bool { return testing.Short() && i == isa.AVX512BF16 })
}

// TestSetsAboveAVX512 wants the kernels of AVX-512 of the sets above it, which levels leaves out.
func TestSetsAboveAVX512(t *testing.T) {
	for _, i := range isa.All() {
		if i <= isa.AVX512 {
			continue
		}
		own, like := New(i), New(isa.AVX512)
		for k := range own.simd {
			if fmt.Sprint(*own.simd[k]) != fmt.Sprint(*like.simd[k]) || *own.ops != *like.ops {
				t.Errorf("%v, %v: kernels of its own", i, compute.DType(k))
			}
		}
	}
}

// tolerance is how far values of standard deviation 1 may be from those in float64: tiles have
// queries and weights in bfloat16.
func (s shape) tolerance(i isa.ISA) float64 {
	if i == isa.AMX && (s.kind == compute.BFloat16 || s.kind.Scaled()) && s.values == 0 {
		return 0.01
	}
	return 4e-6
}

// newRig makes a rig whose cache is full of NaN and whose block tables are drawn from r.
func newRig(t testing.TB, s shape, i isa.ISA, threads, blockSize int, r *rand.Rand,
	seqs ...*sequence) *rig {
	g := &rig{t: t, s: s, a: New(i), p: pool.New(threads), seqs: seqs, ld: r.IntN(3) * 8}
	t.Cleanup(g.p.Close)
	blocks := 3
	for _, q := range seqs {
		blocks += (q.n + blockSize - 1) / blockSize
	}
	c, err := NewCache(compute.CacheShape{Layers: []compute.CacheLayer{{Heads: 3, Dim: 6},
		s.layer()}, Blocks: blocks, BlockSize: blockSize, DType: s.kind})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Free(); err != nil {
			t.Error(err)
		}
	})
	for i := range c.data {
		c.data[i] = 0xff
	}
	g.c = c
	free := r.Perm(blocks)
	for _, q := range seqs {
		table := make([]int32, (q.n+blockSize-1)/blockSize)
		for i := range table {
			table[i] = int32(free[0])
			free = free[1:]
		}
		g.tables = append(g.tables, table)
		g.done = append(g.done, 0)
		g.out = append(g.out, make([]float32, q.n*s.heads()*s.outDim()))
	}
	return g
}

// row is one position of one sequence.
type row struct{ seq, pos int }

// step runs the rows of one batch, in the order given; every earlier position is in the cache or in
// the batch.
func (g *rig) step(rows []row) {
	s, bs := g.s, g.c.cfg.BlockSize
	qw, kw, ow := s.heads()*s.dim, s.kvHeads*s.dim, s.heads()*s.outDim()
	ldq, ldk, ldd := qw+g.ld, kw+g.ld, ow+g.ld
	q, dst := make([]float32, len(rows)*ldq), make([]float32, len(rows)*ldd)
	k, v := make([]float32, len(rows)*ldk), make([]float32, len(rows)*ldk)
	b := &compute.Batch{Tables: g.tables}
	slots := make([]int32, len(rows))
	for i, r := range rows {
		src := g.seqs[r.seq]
		copy(q[i*ldq:i*ldq+qw], src.q[r.pos*qw:])
		copy(k[i*ldk:i*ldk+kw], src.k[r.pos*kw:])
		copy(v[i*ldk:i*ldk+kw], src.v[r.pos*kw:])
		b.Position = append(b.Position, int32(r.pos))
		b.Seq = append(b.Seq, int32(r.seq))
		slots[i] = g.tables[r.seq][r.pos/bs]*int32(bs) + int32(r.pos%bs)
	}
	const layer = 1
	if s.values > 0 {
		v = nil
	}
	g.c.Write(layer, len(rows), k, v, ldk, slots, s.scales)
	g.a.Run(g.p, g.c, layer, b, s.args(), dst, ldd, q, ldq)
	for i, r := range rows {
		copy(g.out[r.seq][r.pos*ow:(r.pos+1)*ow], dst[i*ldd:])
		for _, x := range dst[i*ldd+ow : (i+1)*ldd] {
			if x != 0 {
				g.t.Fatal("Run wrote between the rows of dst")
			}
		}
	}
}

// decode runs sequence i one position at a time.
func (g *rig) decode(i int) []float32 {
	for pos := range g.seqs[i].n {
		g.step([]row{{i, pos}})
	}
	return g.out[i]
}

// mixed runs all sequences in batches of random make-up: some decode, some prefill a chunk, some
// wait; sometimes the rows of a batch are shuffled.
func (g *rig) mixed(r *rand.Rand) {
	for {
		var rows []row
		left := false
		for i, q := range g.seqs {
			if g.done[i] == q.n {
				continue
			}
			left = true
			n := 1
			switch r.IntN(4) {
			case 0:
				n = 0
			case 1:
				n = 1 + r.IntN(9)
			case 2:
				n = 1 + r.IntN(200)
			}
			for range min(n, q.n-g.done[i]) {
				rows = append(rows, row{i, g.done[i]})
				g.done[i]++
			}
		}
		if !left {
			return
		}
		if r.IntN(3) == 0 {
			r.Shuffle(len(rows), func(a, b int) { rows[a], rows[b] = rows[b], rows[a] })
		}
		g.step(rows)
	}
}

func equalBits(t *testing.T, what string, s shape, got, want []float32) {
	t.Helper()
	for i := range want {
		if math.Float32bits(got[i]) != math.Float32bits(want[i]) || want[i] != want[i] {
			dim := s.outDim()
			width := s.heads() * dim
			t.Fatalf("%+v, %s: position %d, head %d, dimension %d is %v (%#x), want %v (%#x)", s,
				what, i/width, i%width/dim, i%dim, got[i], math.Float32bits(got[i]), want[i],
				math.Float32bits(want[i]))
		}
	}
}
