package cpu

import (
	"cmp"
	"slices"

	"github.com/eagleray/eagleray/internal/compute"
)

// adaptedRows are n rows of the batch at hand, step apart, of the adapter in a place.
type adaptedRows struct{ place, from, n, step int }

// of are the rows of a view.
func (r adaptedRows) of(v compute.View) compute.View {
	v.From += r.from * v.Stride
	v.Rows, v.Stride = r.n, r.step*v.Stride
	return v
}

// adapted are the rows of the batch at hand that have an adapter. Those of one are together where
// they lie equally far apart, as of requests that decode, so that its weights are read once. Their
// order is that of the batch, which ranks have in common: places are a rank's own.
type adapted struct {
	rows  []adaptedRows
	first []int // the first row of the adapter in each place, of those that have rows
	list  []compute.Product
}

// begin finds the rows by the places of their adapters, negative for none.
func (a *adapted) begin(places []int32) {
	a.rows = a.rows[:0]
	for i, place := range places {
		n := len(a.rows)
		switch {
		case place < 0:
		case i > 0 && places[i-1] == place:
			a.rows[n-1].n++
		default:
			a.rows = append(a.rows, adaptedRows{int(place), i, 1, 1})
		}
	}
	if len(a.rows) < 2 {
		return
	}
	for _, r := range slices.Backward(a.rows) {
		for len(a.first) <= r.place {
			a.first = append(a.first, 0)
		}
		a.first[r.place] = r.from
	}
	slices.SortFunc(a.rows, func(x, y adaptedRows) int {
		return cmp.Or(cmp.Compare(min(x.n, 2), min(y.n, 2)),
			cmp.Compare(a.first[x.place], a.first[y.place]), cmp.Compare(x.from, y.from))
	})
	last := 0
	for _, r := range a.rows[1:] {
		o := &a.rows[last]
		far := r.from - (o.from + (o.n-1)*o.step)
		if r.n == 1 && r.place == o.place && (o.n == 1 || far == o.step) {
			o.n, o.step = o.n+1, far
			continue
		}
		last++
		a.rows[last] = r
	}
	a.rows = a.rows[:last+1]
}

// beside is what adapters have beside a weight, by place, nil for nothing.
type beside struct {
	d      *Device
	places []*compute.LowRank
}

// Beside makes room for what adapters have beside a weight.
func (d *Device) Beside() compute.Beside { return &beside{d: d} }

// Set implements compute.Beside.
func (y *beside) Set(place int, w *compute.LowRank) {
	for len(y.places) <= place {
		y.places = append(y.places, nil)
	}
	y.places[place] = w
}

// of returns what the adapter of some rows has beside the weight, nil for nothing.
func (y *beside) of(r adaptedRows) *compute.LowRank {
	if r.place >= len(y.places) {
		return nil
	}
	return y.places[r.place]
}

// Width implements compute.Beside.
func (y *beside) Width() (n int) {
	for _, rows := range y.d.adapted.rows {
		if w := y.of(rows); w != nil {
			n += rows.n * w.Down.Out()
		}
	}
	return n
}

// Add implements compute.Beside. A row's part of low is read by no other.
func (y *beside) Add(dst compute.View, low compute.Memory, x compute.View) {
	y.products(lowers|raises, dst, low, 0, x)
}

// Lower implements compute.Beside: what it makes of rows follows that of those before.
func (y *beside) Lower(low compute.Memory, at int, x compute.View) {
	y.products(lowers, compute.View{}, low, at, x)
}

// Raise implements compute.Beside.
func (y *beside) Raise(dst compute.View, low compute.Memory, at int) {
	y.products(raises, dst, low, at, compute.View{})
}

// Which products with an adapter are computed.
const (
	lowers = 1 << iota // A·x
	raises             // B·(A·x)
)

func (y *beside) products(which int, dst compute.View, low compute.Memory, at int, x compute.View) {
	list := y.d.adapted.list[:0]
	for _, rows := range y.d.adapted.rows {
		w := y.of(rows)
		if w == nil {
			continue
		}
		rank := w.Down.Out()
		made := compute.View{Memory: low, From: at, Rows: rows.n, Width: rank, Stride: rank}
		at += rows.n * rank
		if which&lowers != 0 {
			list = append(list, compute.Product{Weight: w.Down, X: rows.of(x), Dst: made})
		}
		if which&raises == 0 {
			continue
		}
		for i := range w.Up {
			b := &w.Up[i]
			list = append(list, compute.Product{Weight: b.Weight, Add: true,
				After: which&lowers != 0,
				Dst:   rows.of(dst).Columns(b.At, b.Out()), X: made.Columns(b.From, b.Rank)})
		}
	}
	y.d.Products(list)
	y.d.adapted.list = list
}
