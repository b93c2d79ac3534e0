package proof

import (
	"fmt"
	"math"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cuda/kernels"
)

// attentionShape is a way to attend.
type attentionShape struct {
	name      string
	args      compute.AttentionArgs
	values    int // dimensions of a latent that are its value; 0 for keys and values
	sinks     bool
	cache     compute.DType
	sequences []sequence
	cost      Cost
}

func plain(heads, kv, dim int) compute.AttentionArgs {
	return compute.AttentionArgs{Heads: heads, KVHeads: kv, HeadDim: dim,
		Scale: float32(1 / math.Sqrt(float64(dim)))}
}

func windowed(a compute.AttentionArgs, n int) compute.AttentionArgs {
	a.Window = n
	return a
}

func capped(a compute.AttentionArgs) compute.AttentionArgs {
	a.Cap = 2
	return a
}

// Sequences of several tiles of positions, and of part of one.
var (
	short = []sequence{{0, 5}, {20, 1}, {70, 3}}
	long  = []sequence{{300, 1}, {0, 40}, {130, 20}, {63, 1}, {0, 1}}
)

// attentionCases are of the kernel for any dimension: by FMA, with queries of 32 bits. Devices of
// 16 bits leave latents to it, and caches of float32; heads are split.cu's.
func attentionCases(dtype compute.DType) (list []Case) {
	fits := func(a *attentionShape) bool {
		return dtype == compute.Float32 || a.values > 0 || a.cache == compute.Float32
	}
	for _, a := range []attentionShape{
		{name: "dimension 16", args: plain(4, 2, 16), sequences: short},
		{name: "latent", args: plain(3, 1, 40), values: 32, sequences: short},
		{name: "dimension 16, long", args: plain(4, 2, 16), sequences: long, cost: Full},
		{name: "dimension 18", args: plain(2, 1, 18), sequences: short, cost: Full},
		{name: "dimension 80, capped", args: capped(plain(2, 2, 80)), sequences: short, cost: Full},
		{name: "window and sinks", args: windowed(plain(4, 2, 32), 9), sinks: true,
			sequences: long, cost: Full},
		{name: "latent of 528", args: plain(2, 1, 528), values: 512, sequences: short, cost: Full},
		{name: "cache of float32", args: plain(2, 1, 64), cache: compute.Float32,
			sequences: short, cost: Full},
		{name: "dimension 192, far", args: plain(16, 8, 192), sequences: []sequence{{3000, 1},
			{700, 9}}, cost: Large},
	} {
		if !fits(&a) {
			continue
		}
		list = append(list, Case{Name: "attention, " + a.name, cost: a.cost,
			Kernels: []kernels.ID{kernels.Attention}, run: func(s *subject) {
				const tolerance = 1e-5
				s.attention(&a, softmax, tolerance)
			}})
	}
	for _, a := range []attentionShape{
		{name: "int8", args: plain(4, 2, 34), cache: compute.Int8, sequences: short},
		{name: "e4m3", args: plain(2, 1, 80), cache: compute.E4M3, sequences: short},
		{name: "a latent of int8", args: plain(3, 1, 40), values: 32, cache: compute.Int8,
			sequences: short, cost: Full},
		{name: "int8, window and sinks", args: windowed(plain(4, 2, 96), 9), sinks: true,
			cache: compute.Int8, sequences: long, cost: Full},
		{name: "e4m3, far", args: plain(16, 8, 192), cache: compute.E4M3,
			sequences: []sequence{{3000, 1}, {700, 9}}, cost: Large},
	} {
		if !fits(&a) {
			continue
		}
		list = append(list, Case{Name: "attention over codes, " + a.name, cost: a.cost,
			Kernels: []kernels.ID{kernels.AttentionCodes, kernels.WriteCodes},
			run: func(s *subject) {
				const tolerance = 1e-5
				s.attention(&a, softmax, tolerance)
			}})
	}
	for _, window := range []int{0, 5} {
		list = append(list, Case{Name: fmt.Sprintf("attention among rows, window %d", window),
			Kernels: []kernels.ID{kernels.Attention}, cost: Full,
			run: func(s *subject) { amongRows(s, window) }})
	}
	return list
}

// attend computes a query's output over positions from to to-1, whose keys and values are given.
type attend func(s *subject, a *compute.AttentionArgs, sink *float64, query []float64,
	keys, values [][]float64, from, to int) []float64

// softmax is attention as it is written.
func softmax(_ *subject, a *compute.AttentionArgs, sink *float64, query []float64,
	keys, values [][]float64, from, to int) []float64 {
	most := math.Inf(-1)
	if sink != nil {
		most = *sink
	}
	scores := make([]float64, to)
	for p := from; p < to; p++ {
		scores[p] = scored(a, query, keys[p])
		most = max(most, scores[p])
	}
	sum := 0.0
	if sink != nil {
		sum = math.Exp(*sink - most)
	}
	y := make([]float64, len(values[from]))
	for p := from; p < to; p++ {
		weight := math.Exp(scores[p] - most)
		sum += weight
		for i, v := range values[p] {
			y[i] += weight * v
		}
	}
	for i := range y {
		y[i] /= sum
	}
	return y
}

func scored(a *compute.AttentionArgs, query, key []float64) float64 {
	v := dot(query, key) * float64(a.Scale)
	if a.Cap > 0 {
		v = float64(a.Cap) * math.Tanh(v/float64(a.Cap))
	}
	return v
}

// attention writes a cache and attends to it, and holds what the queries find to a reference.
func (s *subject) attention(a *attentionShape, reference attend, tolerance float64) {
	b, h, cache, ok := s.cached(a)
	if !ok {
		return
	}
	defer cache.Free()
	args := a.args
	var sinks []float32
	if a.sinks {
		args.Sinks, sinks = s.vector(args.Heads)
	}
	const before = 5
	width, dim := args.Heads*args.HeadDim, args.HeadDim
	q, queries := s.tensor(b.Rows(), width+before)
	values := dim
	if a.values > 0 {
		values = a.values
	}
	y := s.poisoned(b.Rows(), args.Heads*values)
	s.Attention(cache, 1, b, args, y, q.Columns(before, width))
	group := args.Heads / args.KVHeads
	keysOf, valuesOf := make([][][]float64, len(b.Tables)*args.KVHeads),
		make([][][]float64, len(b.Tables)*args.KVHeads)
	for i := range keysOf {
		seq, kv := i/args.KVHeads, i%args.KVHeads
		keysOf[i] = headsOf(h.keys[seq], kv, dim, dim)
		valuesOf[i] = headsOf(h.values[seq], kv, dim, values)
	}
	want := make([]float64, b.Rows()*args.Heads*values)
	each(b.Rows(), func(r int) {
		to := int(b.Position[r]) + 1
		from := 0
		if args.Window > 0 {
			from = max(0, to-args.Window)
		}
		for n := range args.Heads {
			kv := int(b.Seq[r])*args.KVHeads + n/group
			query := doubles(queries[r*(width+before)+before+n*dim:][:dim])
			copy(want[(r*args.Heads+n)*values:], reference(s, &args, sinkOf(sinks, n), query,
				keysOf[kv], valuesOf[kv], from, to))
		}
	})
	s.report("y", y.Floats(), want, tolerance)
	if y.Width <= mostIdentity {
		s.halves("y", y)
	}
}

// each calls f with the numbers below n, by all processors.
func each(n int, f func(i int)) {
	var next atomic.Int64
	var all sync.WaitGroup
	for range min(n, runtime.GOMAXPROCS(0)) {
		all.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				f(i)
			}
		})
	}
	all.Wait()
}

func sinkOf(sinks []float32, head int) *float64 {
	if sinks == nil {
		return nil
	}
	v := float64(sinks[head])
	return &v
}

// headsOf is one head's share of rows, n of its dimensions.
func headsOf(rows [][]float64, head, dim, n int) [][]float64 {
	part := make([][]float64, len(rows))
	for i, row := range rows {
		part[i] = row[head*dim : head*dim+n]
	}
	return part
}

// stored is how a cache has the keys and values of a layer, of numbers of a type unless the shape
// has another.
func (a *attentionShape) stored(dtype compute.DType) (compute.CacheLayer, compute.DType) {
	layer := compute.CacheLayer{Heads: a.args.KVHeads, Dim: a.args.HeadDim, Window: a.args.Window}
	if a.values > 0 {
		layer = compute.CacheLayer{Kind: compute.Latent, Heads: 1, Dim: a.args.HeadDim,
			Values: a.values}
	}
	if a.cache != 0 {
		dtype = a.cache
	}
	return layer, dtype
}

// cached makes a cache of the rows of a shape's sequences. Layer 0 stays empty.
func (s *subject) cached(a *attentionShape) (step *compute.Batch, h history,
	cache compute.Cache, ok bool) {
	layer, dtype := a.stored(s.dtype)
	before, step, blocks := layOut(a.sequences)
	cache, err := s.NewCache(compute.CacheShape{Layers: []compute.CacheLayer{layer, layer},
		Blocks: blocks, BlockSize: blockSize, DType: dtype})
	if err != nil {
		s.check(err)
		return nil, h, nil, false
	}
	for _, b := range []*compute.Batch{before, step} {
		if b.Rows() == 0 {
			continue
		}
		s.Begin(b, nil)
		s.write(cache, b, &h, a.args.KVHeads, a.args.HeadDim, dtype, a.values > 0)
	}
	return step, h, cache, true
}

// write writes the keys and values of a batch to layer 1.
func (s *subject) write(cache compute.Cache, b *compute.Batch, h *history, heads, dim int,
	dtype compute.DType, latent bool) {
	width := heads * dim
	kv, numbers := s.tensor(b.Rows(), 2*width)
	all := stored(numbers, dim, dtype)
	keys, values := columns(all, 2*width, 0, width), columns(all, 2*width, width, width)
	v := kv.Columns(width, width)
	if latent {
		v, values = compute.View{}, nil
	}
	s.WriteCache(cache, 1, kv.Columns(0, width), v, compute.CacheScales{}, b.Slots)
	h.add(b, keys, values)
}

// amongRows attends among the rows of a step, ahead as well, without a cache.
func amongRows(s *subject, window int) {
	const heads, dim = 2, 16
	const inner = heads * dim
	_, b, _ := layOut([]sequence{{0, 20}, {0, 1}, {0, 33}})
	args := compute.AttentionArgs{Heads: heads, KVHeads: heads, HeadDim: dim, Scale: 0.25,
		Ahead: math.MaxInt32}
	if window > 0 {
		args.Window, args.Ahead = window+1, window
	}
	s.Begin(b, nil)
	x, numbers := s.tensor(b.Rows(), 3*inner)
	y := s.poisoned(b.Rows(), inner)
	s.AttentionAmong(b, args, y, x.Columns(0, inner), x.Columns(inner, inner),
		x.Columns(2*inner, inner))
	var h history
	h.add(b, s.roundedAll(columns(numbers, 3*inner, inner, inner)),
		s.roundedAll(columns(numbers, 3*inner, 2*inner, inner)))
	var want []float64
	for r, seq := range b.Seq {
		from, to := 0, len(h.keys[seq])
		if window > 0 {
			from = max(0, int(b.Position[r])-window)
			to = min(to, int(b.Position[r])+window+1)
		}
		for n := range heads {
			want = append(want, softmax(s, &args, nil,
				doubles(numbers[r*3*inner+n*dim:][:dim]), headsOf(h.keys[seq], n, dim, dim),
				headsOf(h.values[seq], n, dim, dim), from, to)...)
		}
	}
	const tolerance = 1e-5
	s.report("y", y.Floats(), want, tolerance)
}
