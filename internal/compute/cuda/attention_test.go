package cuda_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cuda"
	"github.com/eagleray/eagleray/internal/compute/cuda/double"
	"github.com/eagleray/eagleray/internal/compute/cuda/driver"
	"github.com/eagleray/eagleray/internal/compute/cuda/kernels"
)

// sequence is a run of one sequence's rows: those from a position on are computed, the ones before
// are in the cache.
type sequence struct{ cached, rows int }

// batchOf lays rows of sequences out as a step; blocks of a sequence descend. The second batch is
// the cached rows, which are computed first.
func batchOf(blockSize int, list ...sequence) (step, before *compute.Batch, blocks int) {
	step, before = new(compute.Batch), new(compute.Batch)
	for q, y := range list {
		n := (y.cached + y.rows + blockSize - 1) / blockSize
		var table []int32
		for i := range n {
			table = append(table, int32(blocks+n-1-i))
		}
		blocks += n
		for p := range y.cached + y.rows {
			b := before
			if p >= y.cached {
				b = step
			}
			b.Tokens = append(b.Tokens, 0)
			b.Position = append(b.Position, int32(p))
			b.Seq = append(b.Seq, int32(q))
			b.Slots = append(b.Slots, table[p/blockSize]*int32(blockSize)+int32(p%blockSize))
		}
		for _, b := range []*compute.Batch{step, before} {
			b.Tables = append(b.Tables, table)
			b.States = append(b.States, int32(len(list)-1-q))
		}
	}
	return step, before, blocks
}

// TestAttention holds attention to the CPU's: of all kinds of caches and heads, by tensor cores
// where those compute it, over several tiles and segments.
func TestAttention(t *testing.T) {
	plain := func(heads, kv, dim int) compute.AttentionArgs {
		return compute.AttentionArgs{Heads: heads, KVHeads: kv, HeadDim: dim,
			Scale: float32(1 / math.Sqrt(float64(dim)))}
	}
	window := func(a compute.AttentionArgs, n int) compute.AttentionArgs {
		a.Window = n
		return a
	}
	capped := func(a compute.AttentionArgs) compute.AttentionArgs {
		a.Cap = 2
		return a
	}
	short := []sequence{{0, 5}, {20, 1}, {70, 3}}
	long := []sequence{{300, 1}, {0, 40}, {130, 20}, {63, 1}, {0, 1}}
	for name, c := range map[string]struct {
		args      compute.AttentionArgs
		latent    int
		sinks     bool
		sequences []sequence
		cache     compute.DType // bfloat16 for none
	}{
		"dimension 16":         {plain(4, 2, 16), 0, false, long, 0},
		"dimension 18":         {plain(2, 1, 18), 0, false, short, 0},
		"dimension 80, capped": {capped(plain(2, 2, 80)), 0, false, short, 0},
		"192, window of 9":     {window(plain(2, 1, 192), 9), 0, true, long, 0},
		"window and sinks":     {window(plain(4, 2, 32), 9), 0, true, long, 0},
		"latent":               {plain(3, 1, 40), 32, false, short, 0},
		"latent of 160":        {plain(2, 1, 160), 144, false, short, 0},
		"dimension 64":         {plain(4, 2, 64), 0, false, long, 0},
		"dimension 128":        {plain(4, 1, 128), 0, false, long, 0},
		"64, window":           {window(plain(4, 2, 64), 70), 0, false, long, 0},
		"128, sinks and a cap": {capped(plain(3, 1, 128)), 0, true, short, 0},
		"64, window of 1":      {window(plain(2, 2, 64), 1), 0, true, long, 0},
		"128, groups of 16":    {plain(16, 1, 128), 0, false, short, 0},
		"64, groups of 40":     {plain(40, 1, 64), 0, false, short, 0},
		"256, window":          {window(plain(4, 2, 256), 70), 0, false, long, 0},
		"latent of 576":        {plain(17, 1, 576), 512, false, short, 0},
		"codes of 64, capped":  {capped(plain(4, 2, 64)), 0, true, long, compute.Int8},
		"codes of 128":         {plain(4, 1, 128), 0, false, long, compute.Int8},
		"codes of 80":          {plain(4, 2, 80), 0, false, short, compute.Int8},
		"latent codes of 576":  {plain(3, 1, 576), 512, false, short, compute.Int8},
	} {
		t.Run(name, func(t *testing.T) {
			// Both round keys and values to 16 bits; tensor cores queries and weights, too.
			agree(t, 6e-3, func(s *subject) []float32 {
				args := c.args
				if c.sinks {
					args.Sinks = s.vector(args.Heads)
				}
				return attendBlocks(s, 16, c.cache, args, c.latent, c.sequences...)
			})
		})
	}
}

// attend is what the rows of sequences find, whose keys and values are random; of a latent as many
// dimensions are values.
func attend(s *subject, args compute.AttentionArgs, latent int, list ...sequence) []float32 {
	return attendBlocks(s, 16, compute.BFloat16, args, latent, list...)
}

// attendBlocks is attend with a cache of a type, in blocks of so many positions.
func attendBlocks(s *subject, blockSize int, dtype compute.DType, args compute.AttentionArgs,
	latent int, list ...sequence) []float32 {
	layer := compute.CacheLayer{Heads: args.KVHeads, Dim: args.HeadDim, Window: args.Window}
	values := args.HeadDim
	if latent > 0 {
		layer = compute.CacheLayer{Kind: compute.Latent, Heads: 1, Dim: args.HeadDim,
			Values: latent}
		values = latent
	}
	step, before, blocks := batchOf(blockSize, list...)
	cache, err := s.NewCache(compute.CacheShape{Layers: []compute.CacheLayer{layer, layer},
		Blocks: blocks, BlockSize: blockSize, DType: dtype})
	if err != nil {
		s.t.Fatal(err)
	}
	defer cache.Free()
	width := args.KVHeads * args.HeadDim
	for _, b := range []*compute.Batch{before, step} {
		if len(b.Tokens) == 0 {
			continue
		}
		s.Begin(b, nil)
		kv := s.tensor(b.Rows(), 2*width)
		var v compute.View
		if latent == 0 {
			v = kv.Columns(width, width)
		}
		s.WriteCache(cache, 1, kv.Columns(0, width), v, compute.CacheScales{}, b.Slots)
	}
	q := s.tensor(step.Rows(), args.Heads*args.HeadDim+5)
	y := new(compute.Tensor)
	s.Resize(y, step.Rows(), args.Heads*values)
	s.Attention(cache, 1, step, args, y, q.Columns(5, args.Heads*args.HeadDim))
	return append([]float32(nil), y.Floats()...)
}

// TestSegments computes long sequences on a device so small that a block has all segments of a row,
// or some in turn, and on larger ones that have a block for each, and wants the same bits.
func TestSegments(t *testing.T) {
	several := []sequence{{700, 1}, {130, 2}, {127, 1}, {128, 1}, {0, 1}}
	args := func(heads, kv, dim, window int) compute.AttentionArgs {
		return compute.AttentionArgs{Heads: heads, KVHeads: kv, HeadDim: dim, Window: window,
			Scale: 0.125}
	}
	for _, y := range []struct {
		args            compute.AttentionArgs
		latent          int
		cache           compute.DType
		multiprocessors []int
		sequences       []sequence
	}{
		{args(4, 2, 64, 0), 0, compute.BFloat16, []int{1, 12, 132}, several},
		{args(4, 2, 64, 200), 0, compute.BFloat16, []int{1, 12, 132}, several},
		{args(2, 1, 64, 0), 0, compute.BFloat16, []int{1, 132}, []sequence{{3500, 1}}},
		{args(3, 1, 64, 600), 0, compute.Int8, []int{1, 12, 132}, several},
		{args(3, 1, 256, 0), 0, compute.E4M3, []int{1, 132}, several[:2]},
		{args(2, 1, 80, 0), 0, compute.Int8, []int{1, 132}, several[:2]},
		{args(2, 1, 192, 300), 0, compute.BFloat16, []int{1, 12, 132}, several},
		{args(7, 1, 576, 0), 512, compute.BFloat16, []int{1, 132}, several[:2]},
	} {
		var first []float32
		for i, n := range y.multiprocessors {
			info := driver.Info{Name: "PTX machine", Major: 9, Multiprocessors: n,
				Shared: 227 << 10}
			if i == 1 { // one tile at a time, where there is room for two
				info.Major, info.Minor, info.Shared = 8, 9, 99<<10
			}
			d := machine(t, &double.Driver{Info: info, Threads: 2})
			s := &subject{device: d, t: t, random: rand.New(rand.NewPCG(1, 2))}
			got := attendBlocks(s, 48, y.cache, y.args, y.latent, y.sequences...)
			whole := d.Launches()[kernels.Fold] == 0
			if want := n == 1 && len(y.sequences) > 1; whole != want {
				t.Fatalf("%+v, %d multiprocessors: whole sequences %v, not %v", y, n, whole, want)
			}
			if first == nil {
				first = got
			}
			for i, v := range got {
				if math.Float32bits(v) != math.Float32bits(first[i]) {
					t.Fatalf("%+v, %d multiprocessors: number %d is %v, %v with %d", y, n, i, v,
						first[i], y.multiprocessors[0])
				}
			}
		}
	}
}

// collecting is a driver that collects garbage whenever it waits.
type collecting struct{ driver.Driver }

func (d collecting) Open(ordinal int) (driver.Context, error) {
	c, err := d.Driver.Open(ordinal)
	return collectingContext{c}, err
}

type collectingContext struct{ driver.Context }

func (c collectingContext) Synchronize(s driver.Stream) error {
	err := c.Context.Synchronize(s)
	for range 2 { // cleanups run behind the first
		runtime.GC()
		time.Sleep(time.Millisecond)
	}
	return err
}

// TestGarbage computes with tensors that nothing refers to any more while a launch that reads them
// is put together: their memory is theirs until it has ended.
func TestGarbage(t *testing.T) {
	d, err := cuda.New(cuda.Options{Driver: collecting{machines[0]}, DType: compute.BFloat16,
		Threads: 1, PTX: true})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	s := &subject{device: d, t: t, random: rand.New(rand.NewPCG(1, 2))}
	attend(s, compute.AttentionArgs{Heads: 2, KVHeads: 2, HeadDim: 64, Scale: 0.125}, 0,
		sequence{300, 1}, sequence{1, 1})
	if err := d.Err(); err != nil {
		t.Fatal(err)
	}
}

// TestAttentionAmong holds attention without a cache to the CPU's.
func TestAttentionAmong(t *testing.T) {
	for _, window := range []int{0, 5} {
		t.Run(fmt.Sprint(window), func(t *testing.T) {
			agree(t, 1e-4, func(s *subject) []float32 {
				b, _, _ := batchOf(16, sequence{0, 20}, sequence{0, 1}, sequence{0, 33})
				args := compute.AttentionArgs{Heads: 2, KVHeads: 2, HeadDim: 16, Scale: 0.25,
					Ahead: math.MaxInt32}
				if window > 0 {
					args.Window, args.Ahead = window+1, window
				}
				s.Begin(b, nil)
				x, y := s.tensor(b.Rows(), 96), new(compute.Tensor)
				s.Resize(y, b.Rows(), 32)
				s.AttentionAmong(b, args, y, x.Columns(0, 32), x.Columns(32, 32),
					x.Columns(64, 32))
				return append([]float32(nil), y.Floats()...)
			})
		})
	}
}

// impatient is a machine that only checks the first launches of as many blocks as there may be.
type impatient struct {
	double.Driver
	driver.Context
}

func (m *impatient) Open(ordinal int) (c driver.Context, err error) {
	m.Context, err = m.Driver.Open(ordinal)
	return m, err
}

func (m *impatient) Launch(l *driver.Launch, s driver.Stream) error {
	if l.Grid[1] == 1<<16-1 {
		return nil
	}
	return m.Context.Launch(l, s)
}

// TestAttentionOfManyRows has more rows than a grid has blocks in a dimension, each of a text that
// finds itself.
func TestAttentionOfManyRows(t *testing.T) {
	const rows, dim = 1<<16 + 1, 16
	d, err := cuda.New(cuda.Options{Driver: new(impatient), DType: compute.BFloat16, Threads: 1,
		PTX: true})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	b := new(compute.Batch)
	for i := range int32(rows) {
		b.Position, b.Seq = append(b.Position, 0), append(b.Seq, i)
	}
	d.Begin(b, nil)
	var x, y compute.Tensor
	d.Resize(&x, rows, dim)
	for i := range rows * dim {
		x.Floats()[i] = float32(i / dim % 256)
	}
	x.Memory.Filled()
	d.Resize(&y, rows, dim)
	d.AttentionAmong(b, compute.AttentionArgs{Heads: 1, KVHeads: 1, HeadDim: dim, Scale: 1,
		Ahead: math.MaxInt32}, &y, x.All(), x.All(), x.All())
	for row := 1<<16 - 1; row < rows; row++ {
		if got, want := y.Floats()[row*dim], float32(row%256); got != want || d.Err() != nil {
			t.Errorf("row %d is %g instead of %g, %v", row, got, want, d.Err())
		}
	}
}

// TestDelta holds the gated delta rule to the CPU's: rows of sequences that begin and that go on,
// cut in two steps.
func TestDelta(t *testing.T) {
	agree(t, 1e-5, func(s *subject) (all []float32) {
		args := &compute.DeltaArgs{Eps: 1e-6, Recurrence: compute.Recurrence{KeyHeads: 2,
			ValueHeads: 4, KeyDim: 16, ValueDim: 24, Kernel: 4}}
		args.Convolution = s.vector(args.KeyHeads * args.Kernel * args.Channels())
		args.Shift, args.Norm = s.vector(args.ValueHeads), s.vector(args.ValueDim)
		args.Decay = s.Vector([]float32{-0.1, -0.5, -1, -2})
		shape := compute.CacheShape{Layers: []compute.CacheLayer{{Kind: compute.State,
			Heads: args.KeyHeads, Dim: args.Floats()}}, Blocks: 8, BlockSize: 16,
			DType: compute.BFloat16, States: 3}
		cache, err := s.NewCache(shape)
		if err != nil {
			s.t.Fatal(err)
		}
		defer cache.Free()
		step, before, _ := batchOf(16, sequence{5, 3}, sequence{0, 4}, sequence{2, 1})
		for _, b := range []*compute.Batch{before, step} {
			s.Begin(b, nil)
			x, y := s.tensor(b.Rows(), args.Width()+7), new(compute.Tensor)
			s.Resize(y, b.Rows(), args.ValueHeads*args.ValueDim)
			s.Delta(cache, 0, b, args, y, x.Columns(0, args.Width()))
			all = append(all, y.Floats()...)
		}
		return all
	})
}

// TestMixture holds mixtures of experts to the CPU's: each way to choose them, with biases.
func TestMixture(t *testing.T) {
	const hidden, inner, experts = 40, 24, 8
	for name, o := range map[string]compute.Routing{
		"softmax":    {PerToken: 2},
		"normalised": {PerToken: 3, Normalise: true, Factor: 1.5},
		"sigmoid":    {PerToken: 2, Sigmoid: true, Normalise: true},
		"groups":     {PerToken: 3, Sigmoid: true, Groups: 4, TopGroups: 2, Best: 2},
		"one best":   {PerToken: 2, Groups: 2, TopGroups: 1, Best: 1},
	} {
		t.Run(name, func(t *testing.T) {
			// What lies between the two products is rounded to 16 bits.
			agree(t, 1e-2, func(s *subject) []float32 {
				o := o
				if o.Sigmoid {
					o.Correction = s.vector(experts)
				}
				mix := &compute.Mixture{Routing: o, Gating: compute.Gating{
					Activation: compute.SiLU}, Chunks: 8}
				for range experts {
					mix.Experts = append(mix.Experts, compute.Expert{
						GateUp: s.pack(1, 2*inner, hidden), Down: s.pack(8, hidden, inner),
						GateUpBias: s.vector(2 * inner), DownBias: s.vector(hidden)})
				}
				var all []float32
				for _, rows := range []int{19, 70} { // routed in one block, and in several
					x, scores := s.tensor(rows, hidden), s.tensor(rows, experts)
					y := new(compute.Tensor)
					s.Mix(y, x, scores, mix)
					s.Mixed(y, mix)
					all = append(all, y.Floats()...)
				}
				return all
			})
		})
	}
}

// TestNewCacheRefuses wants values that no kernel has room for to be refused by their layer.
func TestNewCacheRefuses(t *testing.T) {
	d := machine(t, &double.Driver{})
	for dim, want := range map[int]string{512: "", 514: "layer 1: 1 heads of 514: a GPU computes " +
		"values of 512 dimensions at most"} {
		_, err := d.NewCache(compute.CacheShape{Layers: []compute.CacheLayer{{Heads: 1, Dim: 64},
			{Heads: 1, Dim: dim}}, Blocks: 1, BlockSize: 16, DType: compute.BFloat16})
		if err == nil && want != "" || err != nil && err.Error() != want {
			t.Errorf("heads of %d: %v, not %q", dim, err, want)
		}
	}
}
