package proof

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/eagleray/eagleray/internal/compute"
)

// Sameness says whether rows had the same bits however they were computed.
type Sameness struct {
	// Name says what was computed, and Ways in how many ways.
	Name string `json:"name"`
	Ways int    `json:"ways"`
	// Differ names the first way whose bits differ, "" for none.
	Differ string `json:"differ,omitempty"`
}

// Bits computes rows alone and beside others, products of few and many rows, and attention in one
// step, in several and a row at a time, and reports whether each row had the same bits in all. The
// cost chooses how large they are.
func Bits(ctx context.Context, opt Options, report func(Sameness)) error {
	for _, dtype := range sixteenBits {
		d, err := open(opt, dtype)
		if err != nil {
			return err
		}
		s := &subject{Device: d, dtype: dtype}
		err = s.bits(ctx, opt, report)
		s.free()
		d.Close()
		if err == nil {
			err = d.Err()
		}
		if err != nil {
			return fmt.Errorf("%v: %w", dtype, err)
		}
	}
	return nil
}

// sequenceRows is how many rows a sequence has whose attention is computed in several ways.
func (c Cost) sequenceRows() int { return [...]int{Small: 140, Full: 200, Large: 700}[c] }

func (s *subject) bits(ctx context.Context, opt Options, report func(Sameness)) error {
	out, in, coded := 70, 72, 192 // of whole pairs of products in chunks
	if opt.Cost == Large {
		out, in, coded = 1030, 1024, 2048
	}
	for _, chunks := range []int{1, 8} {
		if err := ctx.Err(); err != nil {
			return err
		}
		s.random = rand.New(rand.NewPCG(opt.Seed, uint64(chunks)))
		w, _ := s.weight(chunks, out, in)
		report(s.productBits(fmt.Sprintf("product %d x %d in %d", out, in, chunks), w))
	}
	for _, p := range []codesShape{
		{kind: compute.Code4, group: 32, offsets: true, out: 34, in: coded, of: coded, chunks: 2},
		{kind: compute.CodeE4M3, group: 64, out: 34, in: coded, of: coded, chunks: 1},
	} {
		s.random = rand.New(rand.NewPCG(opt.Seed, uint64(p.group)))
		w, err := s.PackCodes(p.chunks, *s.codes(&p))
		if err != nil {
			return err
		}
		s.weights = append(s.weights, w)
		report(s.productBits(fmt.Sprintf("%v in groups of %d, product", p.kind, p.group), w))
	}
	for _, a := range []attentionShape{{args: plain(2, 1, 40), values: 32},
		{args: plain(4, 2, 64)}, {args: plain(4, 2, 128)}, {args: windowed(plain(2, 1, 64), 100)},
		{args: plain(4, 2, 128), cache: compute.E4M3}, {args: windowed(plain(2, 1, 256), 100)},
		{args: plain(3, 1, 80)}, {args: plain(2, 1, 112), cache: compute.Int8, cost: Full},
		{args: windowed(plain(16, 1, 192), 100), cost: Full},
		{args: plain(5, 1, 576), values: 512, cache: compute.Int8, cost: Full}} {
		if a.cost > opt.Cost {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		y, err := s.attentionBits(&a, opt)
		if err != nil {
			return err
		}
		report(y)
	}
	return s.err
}

// productBits multiplies the first of 200 rows, as many as tiles of all kernels begin and end with.
func (s *subject) productBits(name string, w compute.Weight) Sameness {
	const most = 200
	y := Sameness{Name: fmt.Sprintf("%s, %v", name, s.dtype)}
	in, out := w.In(), w.Out()
	_, v := s.tensor(most, in)
	var whole []float32
	for _, rows := range []int{most, 128, 65, 64, 33, 32, 17, 16, 9, 8, 1} {
		x, to := s.filled(rows, in, v), s.poisoned(rows, out)
		w.Product(to.All(), x.All(), nil)
		got := append([]float32(nil), to.Floats()...)
		if whole == nil {
			whole = got
		}
		y.compare(fmt.Sprintf("%d rows", rows), got, whole[:len(got)])
	}
	return y
}

// compare notes a way to compute rows, and whether it had other bits than the first.
func (y *Sameness) compare(way string, got, want []float32) {
	y.Ways++
	for i, v := range want {
		if math.Float32bits(v) != math.Float32bits(got[i]) && y.Differ == "" {
			y.Differ = fmt.Sprintf("%s: number %d is %v, not %v", way, i, got[i], v)
		}
	}
}

// attentionBits attends by rows of a sequence: all in a step, in chunks, the last ones a row at a
// time, and these beside rows of other sequences.
func (s *subject) attentionBits(a *attentionShape, opt Options) (Sameness, error) {
	y := Sameness{Name: fmt.Sprintf("attention, %d/%d heads of %d, window %d, %v", a.args.Heads,
		a.args.KVHeads, a.args.HeadDim, a.args.Window, s.dtype)}
	if a.cache != 0 {
		y.Name += fmt.Sprintf(", %v", a.cache)
	}
	rows, err := s.attendingRows(a, opt)
	if err != nil {
		return y, err
	}
	defer rows.cache.Free()
	n := rows.n
	whole := rows.attend(0, n)
	width := len(whole) / n
	y.compare("one step", whole, whole)
	for _, each := range []int{1 + n/3, 33} {
		var got []float32
		for at := 0; at < n; at += each {
			got = append(got, rows.attend(at, min(each, n-at))...)
		}
		y.compare(fmt.Sprintf("%d rows a step", each), got, whole)
	}
	for _, at := range []int{0, 1, 63, 64, 127, 128, n - 1} {
		y.compare(fmt.Sprintf("row %d alone", at), rows.attend(at, 1),
			whole[at*width:(at+1)*width])
	}
	for _, others := range []int{1, 7, 40} {
		// Beside other rows it is the first, the last, and one among them.
		got := rows.attendBeside(n-1, others)
		for i := 0; i < len(got); i += width {
			y.compare(fmt.Sprintf("row %d beside %d", n-1, others), got[i:i+width],
				whole[(n-1)*width:])
		}
	}
	return y, s.err
}

// attending is a sequence in a cache, with a query of each of its rows.
type attending struct {
	s       *subject
	args    compute.AttentionArgs
	values  int // dimensions of a head's output
	cache   compute.Cache
	table   []int32
	queries []float32
	n       int
}

// attendingRows fills a cache with the rows of a sequence.
func (s *subject) attendingRows(a *attentionShape, opt Options) (*attending, error) {
	n, args := opt.Cost.sequenceRows(), a.args
	s.random = rand.New(rand.NewPCG(opt.Seed, uint64(args.HeadDim)))
	_, step, blocks := layOut([]sequence{{0, n}})
	layer, dtype := a.stored(s.dtype)
	cache, err := s.NewCache(compute.CacheShape{Layers: []compute.CacheLayer{layer, layer},
		Blocks: blocks, BlockSize: blockSize, DType: dtype})
	if err != nil {
		return nil, err
	}
	s.Begin(step, nil)
	var h history
	s.write(cache, step, &h, args.KVHeads, args.HeadDim, dtype, a.values > 0)
	return &attending{s: s, args: args, values: layer.ValueDim(), cache: cache,
		table: step.Tables[0], n: n, queries: s.floats(n * args.Heads * args.HeadDim)}, nil
}

// attend is what n rows find, the first of them at a position.
func (a *attending) attend(at, n int) []float32 {
	b := &compute.Batch{Tables: [][]int32{a.table}, States: []int32{0}}
	for p := at; p < at+n; p++ {
		addRow(b, 0, p, a.table)
	}
	return a.step(b)
}

// attendBeside is what a row finds three times: before, among and behind others, each of which is
// of a sequence of its own, which has the same blocks.
func (a *attending) attendBeside(at, others int) []float32 {
	b := new(compute.Batch)
	places := map[int]bool{0: true, others / 2: true, others + 2: true}
	for i := range others + 3 {
		p := i * 29 % a.n
		if places[i] {
			p = at
		}
		addRow(b, i, p, a.table)
		b.Tables, b.States = append(b.Tables, a.table), append(b.States, 0)
	}
	all := a.step(b)
	width := a.args.Heads * a.values
	var y []float32
	for i := range others + 3 {
		if places[i] {
			y = append(y, all[i*width:(i+1)*width]...)
		}
	}
	return y
}

// step attends by the rows of a batch.
func (a *attending) step(b *compute.Batch) []float32 {
	s, width := a.s, a.args.Heads*a.args.HeadDim
	var v []float32
	for _, p := range b.Position {
		v = append(v, a.queries[int(p)*width:(int(p)+1)*width]...)
	}
	s.Begin(b, nil)
	q, y := s.filled(b.Rows(), width, v), s.poisoned(b.Rows(), a.args.Heads*a.values)
	s.Attention(a.cache, 1, b, a.args, y, q.All())
	return append([]float32(nil), y.Floats()...)
}
