package layers

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math"
	"slices"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/rank/model/lora"
)

// An adapter stands beside a weight: to the rows of its requests it adds B·(A·x), of which A and B
// are weights of their own, in whatever scheme the model's is (compute.Beside). The bits of a row
// depend on its input and its adapter alone, not on the rows beside it.
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
	// beside is what adapters have beside it on the device, places the same by the place of their
	// adapter, nil for those that leave this weight as it is.
	beside compute.Beside
	places []*compute.LowRank
}

// adapters are those that a rank has.
type adapters struct {
	places map[uint32]int // by id
	free   []int
	count  int // places there are
	// ofRows is the place of each row's adapter of the last batch that had some, -1 for none.
	ofRows []int32
	low    Tensor // A·x of all of them, one after the other
}

// begin finds the place of each row's adapter of a batch, -1 for none; nil where no row has one.
func (a *adapters) begin(b *compute.Batch) []int32 {
	if len(b.Adapters) == 0 {
		return nil
	}
	list, found := slices.Grow(a.ofRows[:0], b.Rows())[:b.Rows()], false
	a.ofRows = list
	for i := range list {
		list[i] = -1
	}
	for _, r := range b.Adapters {
		place, ok := a.places[r.Adapter]
		for i := r.From; ok && i < r.To; i++ {
			list[i], found = int32(place), true
		}
	}
	if !found {
		return nil
	}
	return list
}

// width is how many numbers A·x of the batch at hand is, 0 where no row has an adapter beside the
// weight.
func (y *adaptable) width() int {
	if len(y.places) == 0 {
		return 0
	}
	return y.beside.Width()
}

// concerns says that a row of the batch at hand has an adapter beside the weight.
func (y *adaptable) concerns() bool { return y.width() > 0 }

// add adds to dst, the complete products of x with a weight, what the adapters of its rows do: the
// rank has all of x.
func (y *adaptable) add(r *rank, dst, x compute.View) {
	width := y.width()
	if width == 0 {
		return
	}
	low := &r.adapters.low
	r.dev.Resize(low, 1, width)
	y.beside.Add(dst, low.Memory, x)
}

// summed makes sum, [rows of x][out], the products of x with a weight that is divided by input
// features, of all ranks and with adapters.
func (y *adaptable) summed(r *rank, w compute.Weight, sum *Tensor, x *Tensor) error {
	out := w.Out()
	from := x.Rows * out
	r.dev.Resize(sum, 1, from+y.width())
	main := compute.View{Memory: sum.Memory, Rows: x.Rows, Width: out, Stride: out}
	w.Product(main, x.All(), nil)
	y.beside.Lower(sum.Memory, from, x.All())
	if err := r.allReduce(sum); err != nil {
		return err
	}
	y.beside.Raise(main, sum.Memory, from)
	sum.Rows, sum.Width = x.Rows, out
	return nil
}

// runs are the parts of the weight, those of one module that lie together at a time: B of a module
// is multiplied at once for each of its runs, A once for all.
func (y *adaptable) runs() iter.Seq[[]part] {
	return func(yield func([]part) bool) {
		for from, to := 0, 0; from < len(y.parts); from = to {
			for to < len(y.parts) && y.parts[to].module == y.parts[from].module {
				to++
			}
			if !yield(y.parts[from:to]) {
				return
			}
		}
	}
}

// lower is what is read of A of a rank beside a part, raise what is of B.
func (p *part) lower(rank int) compute.Source {
	return compute.Source{Rows: rank, Cols: p.cols, RowHi: rank, ColLo: p.colLo, ColHi: p.colHi}
}

func (p *part) raise(rank int) compute.Source {
	return compute.Source{Rows: p.rows, Cols: rank, RowLo: p.rowLo, RowHi: p.rowHi, ColHi: rank}
}

// adapts notes that adapters may stand beside a weight of parts.
func (l *Loader) adapts(chunks int, parts ...part) *adaptable {
	y := &adaptable{parts: parts, chunks: chunks}
	if l.dev != nil {
		y.beside = l.dev.Beside()
	}
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

// WeighAdapters takes note of so many adapters of a rank beside every weight that there may be one
// beside.
func (l *Loader) WeighAdapters(count, rank int) error {
	if count == 0 {
		return nil
	}
	sum, low := int64(0), 0
	weigh := func(chunks int, s ...compute.Source) error {
		bytes, err := l.scale.planner.PackedBytes(chunks, s...)
		sum += pages(bytes)
		return err
	}
	for _, y := range l.adaptable {
		var a []compute.Source
		known := map[string]bool{}
		for run := range y.runs() {
			if m := run[0].module; !known[m] {
				known[m] = true
				a = append(a, run[0].lower(rank))
			}
			var b []compute.Source
			for i := range run {
				b = append(b, run[i].raise(rank))
			}
			if err := weigh(1, b...); err != nil {
				return err
			}
		}
		if err := weigh(y.chunks, a...); err != nil {
			return err
		}
		low = max(low, rank*len(a))
	}
	l.scale.Packed += int64(count) * sum
	l.scale.Width += int64(2 * low) // beside sums, and alone
	return nil
}

// Adapted says whether the adapter of an id is there.
func (l *Loader) Adapted(id uint32) bool {
	_, ok := l.adapters.places[id]
	return ok
}

// Adaptation is an adapter that is being made beside the layers, weight by weight.
type Adaptation struct {
	loader  *Loader
	id      uint32
	src     Source
	modules map[string]*lora.Module
	made    []*compute.LowRank
	// of lists the modules of this stage as transformers names them.
	of func() ([]lora.Shape, error)
}

// Adapt begins to make this rank's share of an adapter, whose tensors src has, beside the layers.
// Modules of other stages are left out; of lists the modules of this one, of which a checkpoint may
// have some under other names, with other rows: GGUF of several architectures does.
func (l *Loader) Adapt(id uint32, a *lora.Adapter, of func() ([]lora.Shape, error),
	src Source) *Adaptation {
	y := &Adaptation{loader: l, id: id, src: src, of: of,
		modules: make(map[string]*lora.Module, len(a.Modules))}
	for i := range a.Modules {
		y.modules[a.Modules[i].Name] = &a.Modules[i]
	}
	return y
}

// Step makes what the adapter has beside some more weights. It returns true when that is all of it:
// from then on rows of its id have it. On an error nothing is kept.
func (y *Adaptation) Step(weights int) (done bool, err error) {
	l := y.loader
	if l.Adapted(y.id) {
		y.Free()
		return true, nil
	}
	for ; weights > 0 && len(y.made) < len(l.adaptable); weights-- {
		w, err := l.lowRank(l.adaptable[len(y.made)], y.modules, y.src)
		if err != nil {
			y.Free()
			return false, err
		}
		y.made = append(y.made, w)
	}
	if len(y.made) < len(l.adaptable) {
		return false, nil
	}
	if err := y.complete(); err != nil {
		y.Free()
		return false, err
	}
	s := &l.adapters
	place := s.count
	if n := len(s.free); n > 0 {
		place, s.free = s.free[n-1], s.free[:n-1]
	} else {
		s.count++
	}
	for i, w := range l.adaptable {
		for len(w.places) <= place {
			w.places = append(w.places, nil)
		}
		w.places[place] = y.made[i]
		w.beside.Set(place, y.made[i])
	}
	if s.places == nil {
		s.places = map[uint32]int{}
	}
	s.places[y.id] = place
	y.made = nil
	return true, nil
}

// complete refuses an adapter of a module of this stage that no layer has been given.
func (y *Adaptation) complete() error {
	left := maps.Clone(y.modules)
	for _, m := range y.loader.Adaptable() {
		delete(left, m.Name)
	}
	if len(left) == 0 {
		return nil
	}
	stage, err := y.of()
	if err != nil {
		return err
	}
	for _, m := range stage {
		if left[m.Name] != nil {
			return fmt.Errorf("module %s is adapted, and the checkpoint has its weights under "+
				"other names: adapters need the one that transformers writes", m.Name)
		}
	}
	return nil
}

// Free gives up what is not done.
func (y *Adaptation) Free() {
	for _, w := range y.made {
		w.Free()
	}
	y.made = nil
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
		y.beside.Set(place, nil)
		y.places[place].Free()
		y.places[place] = nil
	}
}

// lowRank makes what an adapter has beside a weight, nil for nothing.
func (l *Loader) lowRank(y *adaptable, modules map[string]*lora.Module,
	src Source) (w *compute.LowRank, err error) {
	var a []compute.Source
	w = &compute.LowRank{}
	from := map[*lora.Module]int{}
	rank, at := 0, 0
	var names []string
	for run := range y.runs() {
		m := modules[run[0].module]
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
		s := run[0].lower(m.Rank)
		s.DType, s.Data = dtype, t.Data
		a = append(a, s)
		names = append(names, m.A)
		from[m], rank = rank, rank+m.Rank
	}
	if len(a) == 0 {
		return nil, nil
	}
	defer func() {
		if err != nil {
			w.Free()
			w = nil
		}
	}()
	if w.Down, err = l.packed(y.chunks, names, a...); err != nil {
		return w, err
	}
	scaled := map[*lora.Module][]byte{}
	for run := range y.runs() {
		first := at
		for i := range run {
			at += run[i].rowHi - run[i].rowLo
		}
		m := modules[run[0].module]
		if m == nil {
			continue
		}
		if scaled[m] == nil {
			if scaled[m], err = scaledB(src, m); err != nil {
				return w, err
			}
		}
		var b []compute.Source
		for i := range run {
			s := run[i].raise(m.Rank)
			s.DType, s.Data = compute.Float32, scaled[m]
			b = append(b, s)
		}
		up := compute.Upward{From: from[m], Rank: m.Rank, At: first}
		if up.Weight, err = l.packed(1, []string{m.B}, b...); err != nil {
			return w, err
		}
		w.Up = append(w.Up, up)
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
