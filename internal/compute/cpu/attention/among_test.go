package attention

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu/isa"
	"github.com/eagleray/eagleray/internal/compute/cpu/pool"
)

// both is what a layer with attention in both directions is asked for: up to reach positions away,
// 0 for all.
func (s shape) both(reach int) Args {
	a := s.args()
	a.Window, a.Ahead = 0, math.MaxInt32
	if reach > 0 {
		a.Window, a.Ahead = reach+1, reach
	}
	return a
}

// among computes sequences in one step, side by side, and returns the output of each.
func (s shape) among(t testing.TB, i isa.ISA, threads, reach int, m *Among,
	seqs ...*sequence) (out [][]float32) {
	t.Helper()
	p := pool.New(threads)
	defer p.Close()
	b := &compute.Batch{Tables: make([][]int32, len(seqs))}
	var q, k, v []float32
	for n, x := range seqs {
		q, k, v = append(q, x.q...), append(k, x.k...), append(v, x.v...)
		for pos := range x.n {
			b.Position, b.Seq = append(b.Position, int32(pos)), append(b.Seq, int32(n))
		}
	}
	c, laid, slots := m.Lay(b, s.kvHeads, s.dim, s.kind)
	c.Write(0, b.Rows(), k, v, s.kvHeads*s.dim, slots, compute.CacheScales{})
	width := s.heads() * s.dim
	New(i).Run(p, c, 0, laid, s.both(reach), q, width, q, width)
	for _, x := range seqs {
		out, q = append(out, q[:x.n*width]), q[x.n*width:]
	}
	return out
}

// bothReference is the attention of one row and head in float64.
func (s shape) bothReference(q *sequence, pos, head, reach int) []float64 {
	from, to := 0, q.n
	if reach > 0 {
		from, to = max(0, pos-reach), min(q.n, pos+reach+1)
	}
	kvWidth, kv := s.kvHeads*s.dim, head/s.group
	out, sum := make([]float64, s.dim), 0.0
	for i := from; i < to; i++ {
		score, at := 0.0, i*kvWidth+kv*s.dim
		for d, k := range stored(s.kind, q.k[at:at+s.dim], 0) {
			score += float64(q.q[(pos*s.heads()+head)*s.dim+d]) * k
		}
		e := math.Exp(score * float64(s.args().Scale))
		sum += e
		for d, v := range stored(s.kind, q.v[at:at+s.dim], 0) {
			out[d] += e * v
		}
	}
	for d := range out {
		out[d] /= sum
	}
	return out
}

// Against float64: rows see all of their sequence, or what is near on both sides, and no other.
// The bits are the same beside any neighbours, on any number of threads, and over what a step
// before has left in the memory.
func TestAmong(t *testing.T) {
	for _, i := range levels() {
		t.Run(i.String(), func(t *testing.T) {
			r := rand.New(rand.NewPCG(9, uint64(i)))
			for k, dim := range []int{16, 20, 64, 128} {
				for l, group := range []int{1, 3} {
					s := shape{kvHeads: 1 + (k+l)%3, group: group, dim: dim, kind: kinds[(k+l)%3]}
					for m, reach := range []int{0, 1, 16, 25} {
						if testing.Short() && (k+l+m)%2 > 0 {
							continue // the shapes take turns
						}
						q := s.sequence(r, 1+r.IntN(90))
						alone := s.among(t, i, 1, reach, new(Among), q)[0]
						for range 40 {
							pos, head := r.IntN(q.n), r.IntN(s.heads())
							for d, w := range s.bothReference(q, pos, head, reach) {
								got := float64(alone[(pos*s.heads()+head)*dim+d])
								if !(math.Abs(got-w) <= s.tolerance(i)) {
									t.Fatalf("%+v, reach %d: position %d of %d, head %d, "+
										"dimension %d is %v, want %v", s, reach, pos, q.n, head,
										d, got, w)
								}
							}
						}
						m := new(Among)
						for threads := 1; threads <= 2; threads++ {
							nan := s.sequence(r, 100)
							nan.v[r.IntN(len(nan.v))] = float32(math.NaN())
							nan.k[r.IntN(len(nan.k))] = float32(math.NaN())
							out := s.among(t, i, threads, reach, m, s.sequence(r, 1+r.IntN(40)), q,
								nan)
							equalBits(t, fmt.Sprintf("%d threads, reach %d", threads, reach), s,
								out[1], alone)
							out = s.among(t, i, threads, reach, m, nan, s.sequence(r, 5), q)
							equalBits(t, fmt.Sprintf("%d threads, last", threads), s, out[2], alone)
						}
						if err := m.Free(); err != nil {
							t.Fatal(err)
						}
					}
				}
			}
		})
	}
}

// A layout that fits the memory of the one before takes none, and rows that are not a whole
// sequence are refused.
func TestAmongLays(t *testing.T) {
	m := new(Among)
	defer func() { _ = m.Free() }()
	b := consecutive(0, 300)
	b.Tables = make([][]int32, 1)
	lay := func() { m.Lay(b, 2, 64, compute.Float32) }
	lay()
	if n := testing.AllocsPerRun(10, lay); n != 0 {
		t.Errorf("%v allocations", n)
	}
	for name, spoil := range map[string]func(){
		"a gap": func() { b.Position[7] = 8 }, "a late beginning": func() { b.Position[0] = 1 },
	} {
		before := *b
		b.Position = append([]int32(nil), b.Position...)
		spoil()
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s is laid out", name)
				}
			}()
			lay()
		}()
		*b = before
	}
}

// BenchmarkAmong computes texts of 512 tokens with the heads of BERT-base.
func BenchmarkAmong(b *testing.B) {
	s := shape{kvHeads: 12, group: 1, dim: 64, kind: compute.Float32}
	q := s.sequence(rand.New(rand.NewPCG(1, 1)), 512)
	p := pool.New(2)
	defer p.Close()
	batch := consecutive(0, 512)
	batch.Tables = make([][]int32, 1)
	a, m, dst := New(isa.Best()), new(Among), make([]float32, len(q.q))
	defer func() { _ = m.Free() }()
	run := best(b, func() {
		c, laid, slots := m.Lay(batch, s.kvHeads, s.dim, s.kind)
		c.Write(0, 512, q.k, q.v, 768, slots, compute.CacheScales{})
		a.Run(p, c, 0, laid, s.both(0), dst, 768, q.q, 768)
	})
	b.ReportMetric(4*768*512*512/run.Seconds()/1e9, "GFLOP/s")
}
