package attention

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu/isa"
	"github.com/eagleray/eagleray/internal/compute/cpu/pool"
	"github.com/eagleray/eagleray/internal/compute/cpu/vec"
)

// reader sums all of a buffer: the baseline of reading the cache once.
type reader struct {
	ops    *vec.Ops
	x      []float32
	chunks int
	sums   []float32
}

func (r *reader) Do(i, _ int) {
	n := len(r.x) / r.chunks
	for lo := i * n; lo < (i+1)*n; lo += 8192 {
		r.sums[i] += r.ops.Sum(r.x[lo:min(lo+8192, (i+1)*n)])
	}
}

// best runs f b.N times and returns the shortest time: on a machine shared with others the mean
// measures the others.
func best(b *testing.B, f func()) time.Duration {
	shortest := time.Duration(1<<63 - 1)
	for range b.N {
		t := time.Now()
		f()
		shortest = min(shortest, time.Since(t))
	}
	return shortest
}

// filled makes a cache of one sequence of n positions with blocks in random order.
func filled(b testing.TB, s shape, blockSize, n int) (*Cache, []int32) {
	c, err := NewCache(compute.CacheShape{Layers: []compute.CacheLayer{s.layer()},
		Blocks: (n + blockSize - 1) / blockSize, BlockSize: blockSize, DType: s.kind})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := c.Free(); err != nil {
			b.Error(err)
		}
	})
	r := rand.New(rand.NewPCG(1, 1))
	table := make([]int32, c.cfg.Blocks)
	for i, p := range r.Perm(len(table)) {
		table[i] = int32(p)
	}
	kv := randomRows(r, s.kvHeads*s.dim)
	for pos := range n {
		c.Write(0, 1, kv, kv, len(kv), []int32{table[pos/blockSize]*int32(blockSize) +
			int32(pos%blockSize)}, compute.CacheScales{})
	}
	return c, table
}

// Decoding one row of a long context reads all of its keys and values once: GB/s of them, with the
// rate of a plain vectorised read of as many bytes, in turns, as baseline.
func BenchmarkDecode(b *testing.B) {
	for _, kind := range kinds {
		for _, group := range []int{1, 2, 4, 7} {
			for _, n := range []int{4096, 16384, 32768} {
				for _, threads := range []int{1, 2} {
					s := shape{kvHeads: 8, group: group, dim: 128, kind: kind}
					b.Run(fmt.Sprintf("%v/group=%d/context=%d/threads=%d", kind, group, n, threads),
						func(b *testing.B) { benchmarkDecode(b, s, n, threads) })
				}
			}
		}
	}
}

func benchmarkDecode(b *testing.B, s shape, n, threads int) {
	c, table := filled(b, s, 16, n)
	p := pool.New(threads)
	defer p.Close()
	a := New(isa.Best())
	q := randomRows(rand.New(rand.NewPCG(2, 2)), s.heads()*s.dim)
	dst := make([]float32, len(q))
	batch := &compute.Batch{Position: []int32{int32(n - 1)}, Seq: []int32{0},
		Tables: [][]int32{table}}
	rd := &reader{ops: vec.New(isa.Best()), x: cast[float32](c.data), chunks: 16,
		sums: make([]float32, 16)}
	baseline := time.Duration(1<<63 - 1)
	run := baseline
	for range b.N {
		t := time.Now()
		a.Run(p, c, 0, batch, s.args(), dst, len(q), q, len(q))
		run = min(run, time.Since(t))
		t = time.Now()
		p.Run(rd, rd.chunks)
		baseline = min(baseline, time.Since(t))
	}
	b.ReportMetric(float64(len(c.data))/run.Seconds()/1e9, "GB/s")
	b.ReportMetric(float64(len(c.data))/baseline.Seconds()/1e9, "baselineGB/s")
}

// The last 512 positions of a prompt, counting the multiplications and additions below the
// diagonal.
func BenchmarkPrefill(b *testing.B) {
	for _, kind := range kinds {
		for _, group := range []int{1, 2, 4} {
			for _, n := range []int{512, 2048, 8192} {
				for _, threads := range []int{1, 2} {
					s := shape{kvHeads: 8, group: group, dim: 128, kind: kind}
					b.Run(fmt.Sprintf("%v/group=%d/context=%d/threads=%d", kind, group, n, threads),
						func(b *testing.B) { benchmarkPrefill(b, s, n, threads) })
				}
			}
		}
	}
}

func benchmarkPrefill(b *testing.B, s shape, n, threads int) {
	const rows = 512
	c, table := filled(b, s, 16, n)
	p := pool.New(threads)
	defer p.Close()
	a := New(isa.Best())
	w := s.heads() * s.dim
	q := randomRows(rand.New(rand.NewPCG(2, 2)), rows*w)
	dst := make([]float32, len(q))
	batch := consecutive(int32(n-rows), rows)
	batch.Tables = [][]int32{table}
	b.ResetTimer()
	run := best(b, func() { a.Run(p, c, 0, batch, s.args(), dst, w, q, w) })
	pairs := rows*(n-rows) + rows*(rows+1)/2
	b.ReportMetric(4*float64(w)*float64(pairs)/run.Seconds()/1e9, "GFLOP/s")
}

// One row of a tiny model: what a call costs beside its work.
func BenchmarkTinyDecode(b *testing.B) {
	for _, i := range isa.All() {
		for _, threads := range []int{1, 2} {
			s := shape{kvHeads: 4, group: 2, dim: 32, kind: compute.BFloat16}
			b.Run(fmt.Sprintf("%v/threads=%d", i, threads), func(b *testing.B) {
				c, table := filled(b, s, 16, 40)
				p := pool.New(threads)
				defer p.Close()
				a := New(i)
				q := randomRows(rand.New(rand.NewPCG(2, 2)), s.heads()*s.dim)
				dst := make([]float32, len(q))
				batch := &compute.Batch{Position: []int32{39}, Seq: []int32{0},
					Tables: [][]int32{table}}
				b.ReportAllocs()
				b.ResetTimer()
				run := best(b, func() { a.Run(p, c, 0, batch, s.args(), dst, len(q), q, len(q)) })
				b.ReportMetric(float64(run.Nanoseconds()), "best-ns")
			})
		}
	}
}

func BenchmarkWrite(b *testing.B) {
	for _, kind := range kinds {
		b.Run(kind.String(), func(b *testing.B) {
			s := shape{kvHeads: 8, group: 1, dim: 128, kind: kind}
			c, _ := filled(b, s, 16, 512)
			kv := randomRows(rand.New(rand.NewPCG(2, 2)), 64*8*128)
			slots := make([]int32, 64)
			for i := range slots {
				slots[i] = int32(i)
			}
			b.ReportAllocs()
			b.ResetTimer()
			run := best(b, func() { c.Write(0, 64, kv, kv, 8*128, slots, compute.CacheScales{}) })
			b.ReportMetric(float64(run.Nanoseconds())/64, "best-ns/row")
		})
	}
}
