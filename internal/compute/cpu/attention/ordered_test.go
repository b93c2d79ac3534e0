package attention

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu/isa"
	"github.com/eagleray/eagleray/internal/compute/cpu/pool"
)

// TestOrdered wants the bits of tiles of the kernels that sum in their order: of any number of
// queries, dimensions and positions, windows and denormals included.
func TestOrdered(t *testing.T) {
	if !isa.Available(isa.AMX) {
		t.Skip("this machine has no AMX (see scripts/simulate)")
	}
	r := rand.New(rand.NewPCG(11, 12))
	p := pool.New(1)
	defer p.Close()
	by, tiles := New(isa.AMX), New(isa.AMX)
	clear(tiles.ordered[:])
	for n := range 60 {
		s := shape{kvHeads: 1 + r.IntN(2), group: 1 + r.IntN(fewQueries), dim: 2 * (8 + r.IntN(60)),
			window: r.IntN(2) * (1 + r.IntN(700)),
			kind:   []compute.DType{compute.BFloat16, compute.Int8, compute.E4M3}[n%3]}
		q := s.sequence(r, 1+r.IntN(900))
		for _, x := range [][]float32{q.q, q.k, q.v} {
			for range 20 {
				x[r.IntN(len(x))] = float32(r.NormFloat64()) * 1e-39
			}
		}
		c, err := NewCache(compute.CacheShape{Layers: []compute.CacheLayer{s.layer()},
			Blocks: q.n/32 + 1, BlockSize: 32, DType: s.kind})
		if err != nil {
			t.Fatal(err)
		}
		b := &compute.Batch{Tables: [][]int32{make([]int32, c.cfg.Blocks)}}
		for i, block := range r.Perm(c.cfg.Blocks) {
			b.Tables[0][i] = int32(block)
		}
		slots := make([]int32, q.n)
		for pos := range slots {
			slots[pos] = b.Tables[0][pos/32]*32 + int32(pos%32)
		}
		c.Write(0, q.n, q.k, q.v, s.kvHeads*s.dim, slots, compute.CacheScales{})
		rows := min(1+r.IntN(fewQueries/s.group), q.n)
		width := s.heads() * s.dim
		for i := range rows {
			b.Position = append(b.Position, int32(q.n-rows+i))
			b.Seq = append(b.Seq, 0)
		}
		got, want := make([]float32, rows*width), make([]float32, rows*width)
		by.Run(p, c, 0, b, s.args(), got, width, q.q[(q.n-rows)*width:], width)
		tiles.Run(p, c, 0, b, s.args(), want, width, q.q[(q.n-rows)*width:], width)
		equalBits(t, fmt.Sprintf("%d rows behind %d positions", rows, q.n-rows), s, got, want)
		if err := c.Free(); err != nil {
			t.Fatal(err)
		}
	}
}
