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

var (
	dims   = []int{16, 20, 32, 64, 80, 96, 128, 256}
	groups = []int{1, 2, 4, 7, 8}
	kinds  = []compute.DType{compute.BFloat16, compute.Float16, compute.Float32, compute.Int8,
		compute.E4M3}
)

// Against float64, on every kind, head dimension and group of query heads, with and without a
// window. Most of the error is that of the scores: a float32 sum over up to 256 dimensions.
func TestReference(t *testing.T) {
	for _, i := range levels() {
		t.Run(i.String(), func(t *testing.T) {
			r := rand.New(rand.NewPCG(1, 1))
			var worst float64
			for k, dim := range dims {
				for l, group := range groups {
					s := shape{kvHeads: 1 + (k+l)%3, group: group, dim: dim,
						kind: kinds[(k+2*l)%len(kinds)]}
					if (k+l)%2 == 1 {
						s.window = 1 + r.IntN(90)
					}
					n := 1 + r.IntN(90)
					if (k*len(groups)+l)%8 == 3 {
						n = 700
					}
					if i == isa.Portable {
						n = min(n, 120)
					}
					q := s.sequence(r, n)
					g := newRig(t, s, i, 2, 16*(1+r.IntN(3)), r, q)
					g.mixed(r)
					for range 60 {
						pos, head := r.IntN(n), r.IntN(s.heads())
						want := s.reference(q, pos, head)
						for d, w := range want {
							got := float64(g.out[0][(pos*s.heads()+head)*dim+d])
							err := math.Abs(got - w)
							if !(err <= s.tolerance(i)) {
								t.Fatalf("%+v: position %d of %d, head %d, dimension %d is %v, "+
									"want %v", s, pos, n, head, d, got, w)
							}
							worst = max(worst, err/s.tolerance(i))
						}
					}
				}
			}
			t.Logf("greatest error %.2f of the tolerance", worst)
		})
	}
}

// A head dimension outside the usual ones, more query heads than share a pass, and every context
// length around tiles.
func TestReferenceOddShapes(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 2))
	for _, s := range []shape{
		{kvHeads: 1, group: 71, dim: 64, kind: compute.BFloat16}, {kvHeads: 2, group: 3, dim: 2,
			kind: compute.Float16}, {kvHeads: 2, group: 5, dim: 34, kind: compute.Float32},
		{kvHeads: 1, group: 1, dim: 72, kind: compute.BFloat16}, {kvHeads: 1, group: 12, dim: 48,
			window: 1, kind: compute.Float32}, {kvHeads: 3, group: 6, dim: 200, window: 17,
			kind: compute.Float16},
		{kvHeads: 1, group: 25, dim: 32, window: 16, kind: compute.BFloat16},
		// Scales of a model's, by some of which numbers are too large for codes.
		{kvHeads: 2, group: 3, dim: 64, kind: compute.E4M3, scales: compute.CacheScales{
			Keys: []float32{0.003, 0.01}, Values: []float32{0.02, 0.004}}},
	} {
		for _, i := range levels() {
			q := s.sequence(r, 50)
			g := newRig(t, s, i, 1, 16, r, q)
			g.mixed(r)
			for pos := range q.n {
				head := r.IntN(s.heads())
				for d, w := range s.reference(q, pos, head) {
					got := float64(g.out[0][(pos*s.heads()+head)*s.dim+d])
					if !(math.Abs(got-w) <= s.tolerance(i)) {
						t.Fatalf("%v %+v: position %d, head %d, dimension %d is %v, want %v", i, s,
							pos, head, d, got, w)
					}
				}
			}
		}
	}
}

// The bits of a row depend on nothing but its own sequence: decoding one by one, one prefill,
// chunks of random sizes among random neighbours, other blocks, other block sizes and other numbers
// of threads all agree, in a cache that is NaN wherever nothing was written.
func TestBitIdentity(t *testing.T) {
	for _, i := range levels() {
		t.Run(i.String(), func(t *testing.T) {
			r := rand.New(rand.NewPCG(3, uint64(i)))
			for k, dim := range dims {
				for l, group := range groups {
					s := shape{kvHeads: 1 + (k+l)%2, group: group, dim: dim,
						kind: kinds[(k+l)%len(kinds)]}
					if r.IntN(2) == 0 {
						s.window = 1 + r.IntN(70)
					}
					limit := 110
					if i == isa.Portable {
						limit = 40
					} else if (k*len(groups)+l)%10 == 4 {
						limit = 700
					}
					seqs := []*sequence{s.sequence(r, limit/2+r.IntN(limit/2)), s.sequence(r,
						1+r.IntN(limit)), s.sequence(r, 1+r.IntN(limit))}
					want := newRig(t, s, i, 1, 16, r, seqs[0]).decode(0)

					whole := newRig(t, s, i, 2, 32, r, seqs[0])
					var rows []row
					for pos := range seqs[0].n {
						rows = append(rows, row{0, pos})
					}
					whole.step(rows)
					equalBits(t, "one prefill", s, whole.out[0], want)

					for threads := 1; threads <= 3; threads++ {
						if testing.Short() && threads != 1+(k+l)%3 {
							continue // the shapes take turns
						}
						g := newRig(t, s, i, threads, 16*(1+r.IntN(4)), r, seqs...)
						g.mixed(r)
						equalBits(t, fmt.Sprintf("mixed batches, %d threads", threads), s, g.out[0],
							want)
					}
				}
			}
		})
	}
}

// The context goes beyond what one kernel call covers, so pieces are joined; and the sums of
// exponentials beyond one block of vec.
func TestBitIdentityLongContext(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 4))
	s := shape{kvHeads: 1, group: 2, dim: 16, kind: compute.BFloat16}
	n := 9000
	q := s.sequence(r, n)
	whole := newRig(t, s, isa.Best(), 2, 64, r, q)
	var rows []row
	for pos := range n {
		rows = append(rows, row{0, pos})
	}
	whole.step(rows)
	for _, window := range []int{0, 5000} {
		s.window = window
		if window > 0 {
			whole = newRig(t, s, isa.Best(), 1, 16, r, q)
			whole.step(rows)
		}
		single := newRig(t, s, isa.Best(), 1, 16, r, q)
		single.step(rows[:n-4])
		for _, at := range rows[n-4:] {
			single.step([]row{at})
		}
		w := s.heads() * s.dim
		equalBits(t, fmt.Sprintf("window %d, last rows", window), s, single.out[0][(n-4)*w:],
			whole.out[0][(n-4)*w:])
		for head := range s.heads() {
			for d, want := range s.reference(q, n-1, head) {
				got := float64(whole.out[0][(n-1)*w+head*s.dim+d])
				if !(math.Abs(got-want) <= s.tolerance(isa.Best())) {
					t.Fatalf("head %d, dimension %d is %v, want %v", head, d, got, want)
				}
			}
		}
	}
}

// Two sequences that share the blocks of a common prefix get what each gets with blocks of its own.
func TestSharedPrefix(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 5))
	for _, kind := range kinds {
		s := shape{kvHeads: 2, group: 4, dim: 64, kind: kind}
		a, b := s.sequence(r, 100), s.sequence(r, 120)
		const prefix = 64
		copy(b.q[:prefix*s.heads()*s.dim], a.q)
		copy(b.k[:prefix*s.kvHeads*s.dim], a.k)
		copy(b.v[:prefix*s.kvHeads*s.dim], a.v)
		want := newRig(t, s, isa.Best(), 1, 16, r, b).decode(0)

		g := newRig(t, s, isa.Best(), 2, 32, r, a, b)
		copy(g.tables[1], g.tables[0][:prefix/32])
		var rows []row
		for pos := range prefix {
			rows = append(rows, row{0, pos})
		}
		g.step(rows)
		g.done[0], g.done[1] = prefix, prefix
		g.mixed(r)
		w := prefix * s.heads() * s.dim
		equalBits(t, "shared prefix", s, g.out[1][w:], want[w:])
		equalBits(t, "own prefix", s, g.out[0][:w], want[:w])
	}
}

// A window lets the blocks before it go: their table entries are never read.
func TestWindowIgnoresFreedBlocks(t *testing.T) {
	r := rand.New(rand.NewPCG(6, 6))
	s := shape{kvHeads: 1, group: 2, dim: 32, window: 20, kind: compute.Float16}
	q := s.sequence(r, 90)
	want := newRig(t, s, isa.Best(), 1, 16, r, q).decode(0)
	g := newRig(t, s, isa.Best(), 1, 16, r, q)
	for pos := range q.n {
		for b := range g.tables[0] {
			if (b+1)*16 <= pos-s.window+1 {
				g.tables[0][b] = -1
			}
		}
		g.step([]row{{0, pos}})
	}
	equalBits(t, "freed blocks", s, g.out[0], want)
}

// Steps over a larger cache, in turn with those of a window over a small one, leave nothing that
// the latter read: they have two models on one device.
func TestTwoCaches(t *testing.T) {
	for _, i := range levels() {
		r := rand.New(rand.NewPCG(8, 8))
		s := shape{kvHeads: 1, group: 2, dim: 32, window: 20, kind: compute.BFloat16}
		q := s.sequence(r, 90)
		want := newRig(t, s, i, 1, 16, r, q).decode(0)
		large := s
		large.kvHeads, large.window = 4, 0
		other := newRig(t, large, i, 1, 16, r, large.sequence(r, 900))
		for pos := range 900 {
			other.step([]row{{0, pos}})
		}
		g := newRig(t, s, i, 1, 16, r, q)
		g.a = other.a
		for pos := range q.n {
			other.step([]row{{0, 899}})
			g.step([]row{{0, pos}})
		}
		equalBits(t, i.String(), s, g.out[0], want)
	}
}

// dst may be q, and no step allocates once scratch has grown.
func TestInPlaceWithoutAllocation(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 7))
	for _, threads := range []int{1, 2} {
		s := shape{kvHeads: 2, group: 3, dim: 32, kind: []compute.DType{compute.BFloat16,
			compute.Int8}[threads-1]}
		q := s.sequence(r, 300)
		g := newRig(t, s, isa.Best(), threads, 16, r, q)
		var rows []row
		for pos := range q.n {
			rows = append(rows, row{0, pos})
		}
		g.step(rows)
		w := s.heads() * s.dim
		b := &compute.Batch{Position: []int32{299, 150}, Seq: []int32{0, 0}, Tables: g.tables}
		slots := []int32{g.tables[0][0], -1}
		x := make([]float32, 2*w)
		kv := make([]float32, 2*s.kvHeads*s.dim)
		run := func() {
			copy(x, q.q[299*w:])
			copy(x[w:], q.q[150*w:151*w])
			g.a.Run(g.p, g.c, 1, b, s.args(), x, w, x, w)
			g.c.Write(0, 2, kv, kv, s.kvHeads*s.dim, slots, compute.CacheScales{})
		}
		run()
		equalBits(t, "in place", s, x[:w], g.out[0][299*w:])
		equalBits(t, "in place", s, x[w:], g.out[0][150*w:151*w])
		if n := testing.AllocsPerRun(20, run); n != 0 {
			t.Errorf("%d threads: %v allocations", threads, n)
		}
	}
}

// NaN in a query, or in what a row attends to, shows in that row and in no earlier one.
func TestNaNStaysInItsRow(t *testing.T) {
	r := rand.New(rand.NewPCG(8, 8))
	for k := range len(levels()) * len(kinds) {
		i := levels()[k/len(kinds)]
		s := shape{kvHeads: 1, group: 1, dim: 32, kind: kinds[k%len(kinds)]}
		q := s.sequence(r, 40)
		nan := float32(math.NaN())
		for d := range s.dim {
			q.v[20*s.dim+d] = nan
		}
		q.q[7*s.dim] = nan
		g := newRig(t, s, i, 1, 16, r, q)
		var rows []row
		for pos := range q.n {
			rows = append(rows, row{0, pos})
		}
		g.step(rows)
		for pos := range q.n {
			got := g.out[0][pos*s.dim]
			if bad := pos == 7 || pos >= 20; bad != (got != got) {
				t.Errorf("%v, %v: position %d is %v", i, s.kind, pos, got)
			}
		}
	}
}

func TestRunRejectsBadInput(t *testing.T) {
	s := shape{kvHeads: 2, group: 2, dim: 16, kind: compute.Float32}
	p := pool.New(2)
	defer p.Close()
	good := func() (*Cache, *compute.Batch, Args) {
		c, err := NewCache(compute.CacheShape{Layers: []compute.CacheLayer{s.layer()}, Blocks: 4,
			BlockSize: 16, DType: compute.Float32})
		if err != nil {
			t.Fatal(err)
		}
		return c, &compute.Batch{Position: []int32{20}, Seq: []int32{0}, Tables: [][]int32{{3, 1}}},
			s.args()
	}
	x := make([]float32, 64)
	for name, spoil := range map[string]func(c *Cache, b *compute.Batch, a *Args, layer *int,
		ld *int){
		"nothing": func(*Cache, *compute.Batch, *Args, *int, *int) {},
		"freed":   func(c *Cache, _ *compute.Batch, _ *Args, _, _ *int) { c.Free() },
		"layer": func(_ *Cache, _ *compute.Batch, _ *Args, layer,
			_ *int) {
			*layer = 1
		},
		"block": func(_ *Cache, b *compute.Batch, _ *Args, _,
			_ *int) {
			b.Tables[0][1] = 4
		},
		"negative block": func(_ *Cache, b *compute.Batch, _ *Args, _,
			_ *int) {
			b.Tables[0][0] = -1
		},
		"short table": func(_ *Cache, b *compute.Batch, _ *Args, _,
			_ *int) {
			b.Tables[0] = b.Tables[0][:1]
		},
		"sequence": func(_ *Cache, b *compute.Batch, _ *Args, _, _ *int) { b.Seq[0] = 1 },
		"negative position": func(_ *Cache, b *compute.Batch, _ *Args, _,
			_ *int) {
			b.Position[0] = -1
		},
		"heads": func(_ *Cache, _ *compute.Batch, a *Args, _, _ *int) { a.Heads = 3 },
		"sinks": func(_ *Cache, _ *compute.Batch, a *Args, _, _ *int) {
			a.Sinks = make([]float32, 3)
		},
		"dimension": func(_ *Cache, _ *compute.Batch, a *Args, _,
			_ *int) {
			a.HeadDim = 18
		},
		"a larger window": func(c *Cache, _ *compute.Batch, a *Args, _, _ *int) {
			c.layers[0].Window, a.Window = 8, 9
		},
		"no window": func(c *Cache, _ *compute.Batch, _ *Args, _, _ *int) {
			c.layers[0].Window = 8
		},
		"leading dimension": func(_ *Cache, _ *compute.Batch, _ *Args, _, ld *int) { *ld = 63 },
		"rows": func(_ *Cache, b *compute.Batch, _ *Args, _,
			_ *int) {
			b.Position = append(b.Position, 0)
		},
	} {
		c, b, args := good()
		layer, ld := 0, 64
		spoil(c, b, &args, &layer, &ld)
		func() {
			defer func() {
				if got := recover(); (got == nil) != (name == "nothing") {
					t.Errorf("%s: recovered %v", name, got)
				}
			}()
			New(isa.Best()).Run(p, c, layer, b, args, x, ld, x, ld)
		}()
		if err := c.Free(); err != nil {
			t.Error(err)
		}
	}
}
