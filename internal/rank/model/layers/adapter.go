package layers

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/rank/model/lora"
)

// An adapter stands beside a weight: to the rows of its requests it adds B·(A·x), of which A and B
// are weights of their own, in whatever scheme the model's is. Each is a product like any other, so
// the bits of a row depend on its input and its adapter alone, not on the rows beside it.
//
// Nor do they depend on the number of ranks. Where output features are divided, every rank has all
// of x, computes all of A·x, in one chain, and its own rows of B. Where input features are, A is
// divided as they are: A·x is summed in the same chunks and as the same tree as W·x, over ranks in
// the same exchange, behind it in memory. Only then is it complete, and every rank multiplies it by
// all of B, and adds that to the sums of W·x. Were B multiplied before the exchange, the sums of
// each rank would be added to each other in another order for every number of ranks.

// adaptable is a weight that adapters may stand beside: its parts, and how its sums are cut.
type adaptable struct {
	parts  []part
	chunks int
	// places are the low-rank weights by the place of their adapter, nil for those that leave this
	// weight as it is.
	places []*lowRank
}

// lowRank is an adapter's A of all modules of a weight, one above the other, and their B.
type lowRank struct {
	a compute.Weight
	b []upward
}

// upward is B of one module: it multiplies Rank numbers of A·x from one on, and adds what it makes
// of them to output features from one on.
type upward struct {
	compute.Weight
	from, rank, at int
}

func (w *lowRank) free() {
	if w == nil {
		return
	}
	if w.a != nil {
		w.a.Free()
	}
	for _, b := range w.b {
		b.Free()
	}
}

// adaptedRows are rows of the batch at hand, From to before To, of the adapter in a place.
type adaptedRows struct{ place, from, to int }

// adapters are those that a rank has.
type adapters struct {
	places map[uint32]int // by id
	free   []int
	count  int // places there are
	// rows are those of the batch at hand that have one.
	rows []adaptedRows
	low  Tensor // A·x of some rows
}

// begin finds the places of the adapters of a batch.
func (a *adapters) begin(b *compute.Batch) {
	a.rows = a.rows[:0]
	for _, r := range b.Adapters {
		if place, ok := a.places[r.Adapter]; ok {
			a.rows = append(a.rows, adaptedRows{place, int(r.From), int(r.To)})
		}
	}
}

// of returns what the adapter of some rows has beside a weight, nil for nothing.
func (y *adaptable) of(r adaptedRows) *lowRank {
	if r.place >= len(y.places) {
		return nil
	}
	return y.places[r.place]
}

// concerns says that a row of the batch at hand has an adapter beside the weight.
func (y *adaptable) concerns(r *rank) bool {
	for _, rows := range r.adapters.rows {
		if y.of(rows) != nil {
			return true
		}
	}
	return false
}

// between are some rows of a view.
func between(v compute.View, from, to int) compute.View {
	v.From += from * v.Stride
	v.Rows = to - from
	return v
}

// add adds to dst, the products of x with a weight that is not divided by input features, what the
// adapters of its rows do.
func (y *adaptable) add(r *rank, dst, x compute.View) {
	for _, rows := range r.adapters.rows {
		w := y.of(rows)
		if w == nil {
			continue
		}
		low := &r.adapters.low
		r.dev.Resize(low, rows.to-rows.from, w.a.Out())
		w.a.Product(low.All(), between(x, rows.from, rows.to), nil)
		w.raise(between(dst, rows.from, rows.to), low.All())
	}
}

// raise adds B·low to dst.
func (w *lowRank) raise(dst, low compute.View) {
	for i := range w.b {
		b := &w.b[i]
		b.ProductAdded(dst.Columns(b.at, b.Out()), low.Columns(b.from, b.rank))
	}
}

// summed makes sum, [rows of x][out], the products of x with a weight that is divided by input
// features, of all ranks and with adapters.
func (y *adaptable) summed(r *rank, w compute.Weight, sum *Tensor, x *Tensor) error {
	out, width := w.Out(), x.Rows*w.Out()
	for _, rows := range r.adapters.rows {
		if a := y.of(rows); a != nil {
			width += (rows.to - rows.from) * a.a.Out()
		}
	}
	r.dev.Resize(sum, 1, width)
	main := compute.View{Memory: sum.Memory, Rows: x.Rows, Width: out, Stride: out}
	w.Product(main, x.All(), nil)
	y.lows(r, sum, x.Rows*out, func(a *lowRank, rows adaptedRows, low compute.View) {
		a.a.Product(low, between(x.All(), rows.from, rows.to), nil)
	})
	if err := r.allReduce(sum); err != nil {
		return err
	}
	y.lows(r, sum, x.Rows*out, func(a *lowRank, rows adaptedRows, low compute.View) {
		a.raise(between(main, rows.from, rows.to), low)
	})
	sum.Rows, sum.Width = x.Rows, out
	return nil
}

// lows calls f with each adapter's rows, and where their A·x lies in sum, one after the other from
// an element on.
func (y *adaptable) lows(r *rank, sum *Tensor, at int,
	f func(a *lowRank, rows adaptedRows, low compute.View)) {
	for _, rows := range r.adapters.rows {
		a := y.of(rows)
		if a == nil {
			continue
		}
		n, rank := rows.to-rows.from, a.a.Out()
		f(a, rows, compute.View{Memory: sum.Memory, From: at, Rows: n, Width: rank, Stride: rank})
		at += n * rank
	}
}

// adapts notes that adapters may stand beside a weight of parts.
func (l *Loader) adapts(chunks int, parts ...part) *adaptable {
	y := &adaptable{parts: parts, chunks: chunks}
	l.adaptable = append(l.adaptable, y)
	return y
}

// Adaptable lists the modules of the layers that adapters may stand beside.
func (l *Loader) Adaptable() (list []lora.Shape) {
	seen := map[string]bool{}
	for _, y := range l.adaptable {
		for i := range y.parts {
			if p := &y.parts[i]; !seen[p.module] {
				seen[p.module] = true
				list = append(list, lora.Shape{Name: p.module, Out: p.rows, In: p.cols})
			}
		}
	}
	return list
}

// Adapted says whether the adapter of an id is there.
func (l *Loader) Adapted(id uint32) bool {
	_, ok := l.adapters.places[id]
	return ok
}

// Adapt makes this rank's share of an adapter, whose tensors src has, beside the layers: from then
// on rows of its id have it. Modules of other stages are left out. On an error nothing is kept.
func (l *Loader) Adapt(id uint32, a *lora.Adapter, src Source) error {
	if l.Adapted(id) {
		return nil
	}
	modules := make(map[string]*lora.Module, len(a.Modules))
	for i := range a.Modules {
		modules[a.Modules[i].Name] = &a.Modules[i]
	}
	made := make([]*lowRank, len(l.adaptable))
	for i, y := range l.adaptable {
		w, err := l.lowRank(y, modules, src)
		if err != nil {
			for _, w := range made {
				w.free()
			}
			return err
		}
		made[i] = w
	}
	s := &l.adapters
	place := s.count
	if n := len(s.free); n > 0 {
		place, s.free = s.free[n-1], s.free[:n-1]
	} else {
		s.count++
	}
	for i, y := range l.adaptable {
		for len(y.places) <= place {
			y.places = append(y.places, nil)
		}
		y.places[place] = made[i]
	}
	if s.places == nil {
		s.places = map[uint32]int{}
	}
	s.places[id] = place
	return nil
}

// Unadapt gives an adapter's memory back. No row has it any more.
func (l *Loader) Unadapt(id uint32) {
	s := &l.adapters
	place, ok := s.places[id]
	if !ok {
		return
	}
	delete(s.places, id)
	s.free = append(s.free, place)
	for _, y := range l.adaptable {
		y.places[place].free()
		y.places[place] = nil
	}
}

// lowRank makes what an adapter has beside a weight, nil for nothing.
func (l *Loader) lowRank(y *adaptable, modules map[string]*lora.Module,
	src Source) (w *lowRank, err error) {
	var a []compute.Source
	w = &lowRank{}
	from := map[*lora.Module]int{}
	rank, at := 0, 0
	var names []string
	for i := range y.parts {
		p := &y.parts[i]
		m := modules[p.module]
		if m == nil {
			continue
		}
		if _, known := from[m]; known {
			continue
		}
		t, err := src.Tensor(m.A, m.Rank, m.In)
		if err != nil {
			return nil, err
		}
		defer src.Release(t)
		dtype, err := weightType(t)
		if err != nil {
			return nil, err
		}
		a = append(a, compute.Source{DType: dtype, Data: t.Data, Rows: m.Rank, Cols: m.In,
			RowHi: m.Rank, ColLo: p.colLo, ColHi: p.colHi})
		names = append(names, m.A)
		from[m], rank = rank, rank+m.Rank
	}
	if len(a) == 0 {
		return nil, nil
	}
	defer func() {
		if err != nil {
			w.free()
			w = nil
		}
	}()
	if w.a, err = l.packed(y.chunks, names, a...); err != nil {
		return w, err
	}
	scaled := map[*lora.Module][]byte{}
	for i := 0; i < len(y.parts); {
		// B of one module is multiplied at once.
		m := modules[y.parts[i].module]
		var b []compute.Source
		first := at
		for ; i < len(y.parts) && modules[y.parts[i].module] == m; i++ {
			p := &y.parts[i]
			at += p.rowHi - p.rowLo
			if m == nil {
				continue
			}
			if scaled[m] == nil {
				if scaled[m], err = scaledB(src, m); err != nil {
					return w, err
				}
			}
			b = append(b, compute.Source{DType: compute.Float32, Data: scaled[m], Rows: m.Out,
				Cols: m.Rank, RowLo: p.rowLo, RowHi: p.rowHi, ColHi: m.Rank})
		}
		if m == nil {
			continue
		}
		up := upward{from: from[m], rank: m.Rank, at: first}
		if up.Weight, err = l.packed(1, []string{m.B}, b...); err != nil {
			return w, err
		}
		w.b = append(w.b, up)
	}
	return w, nil
}

// packed makes a weight of tensors of an adapter, in the type that models run in.
func (l *Loader) packed(chunks int, names []string, list ...compute.Source) (compute.Weight,
	error) {
	w, err := l.dev.Pack(chunks, list...)
	if bad := (*compute.NotFinite)(nil); errors.As(err, &bad) {
		return nil, &NotFinite{names[min(bad.Source, len(names)-1)], err}
	}
	if err != nil {
		return nil, fmt.Errorf("tensor %q: %w", names[0], err)
	}
	return w, nil
}

// scaledB is B of a module multiplied by its scale, as float32.
func scaledB(src Source, m *lora.Module) ([]byte, error) {
	t, err := src.Tensor(m.B, m.Out, m.Rank)
	if err != nil {
		return nil, err
	}
	defer src.Release(t)
	v, err := decode(t, 0, m.Out*m.Rank)
	if err != nil {
		return nil, err
	}
	raw := make([]byte, 0, 4*len(v))
	for _, x := range v {
		raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(x*m.Scale))
	}
	return raw, nil
}
