package layers

import (
	"fmt"
	"slices"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/link/balance"
)

// Experts move between ranks in two steps, so that all ranks have them or none: LoadExperts makes
// those that a rank is to hold beside those that it does, and MoveExperts, which cannot fail, has
// rows go to them from the next step on. Between the two steps, and after one that failed on some
// rank, DropExperts undoes the first.

// mixtureAt is the mixture of a layer whose experts can move; nil is a layer of another stage, or
// without one.
func (l *Loader) mixtureAt(layer int) *Mixture {
	i := slices.IndexFunc(l.movable, func(y *Mixture) bool { return y.at == layer })
	if i < 0 {
		return nil
	}
	return l.movable[i]
}

// LoadExperts makes the experts that this rank lacks of a layer's placement.
func (l *Loader) LoadExperts(layer int, p balance.Placement) error {
	y := l.mixtureAt(layer)
	if y == nil {
		return nil
	}
	y.drop()
	g := l.group.Experts
	ranks, err := g.Slots(len(y.mix.Experts))
	if err == nil {
		err = p.Check(len(y.mix.Experts), ranks)
	}
	if err != nil {
		return fmt.Errorf("experts of layer %d: %w", layer, err)
	}
	y.coming, l.progress = map[int]compute.Expert{}, nil
	for _, e := range p[g.Share] {
		if y.mix.Experts[e].Down != nil {
			continue
		}
		x := y.make(e)
		if l.err != nil {
			err := l.err
			l.err = nil // the layers are what they were
			y.release(&x)
			y.drop()
			return fmt.Errorf("expert %d of layer %d: %w", e, layer, err)
		}
		y.coming[e] = x
	}
	return nil
}

// MoveExperts makes a placement for which LoadExperts was called the one that counts.
func (l *Loader) MoveExperts(layer int, p balance.Placement) {
	y, g := l.mixtureAt(layer), l.group.Experts
	if y == nil {
		return
	}
	for e := range y.mix.Experts {
		if x := &y.mix.Experts[e]; x.Down != nil && !slices.Contains(p[g.Share], e) {
			y.release(x)
			y.mix.Experts[e] = compute.Expert{DownBias: x.DownBias}
		}
	}
	for e, x := range y.coming {
		y.put(e, x)
	}
	y.coming = nil
	y.place(p)
	g.Put(layer, p)
}

// DropExperts frees what LoadExperts has made.
func (l *Loader) DropExperts() {
	for _, y := range l.movable {
		y.drop()
	}
}

func (y *Mixture) drop() {
	for _, x := range y.coming {
		y.release(&x)
	}
	y.coming = nil
}

// release frees the weights of an expert; their memory is kept for the next ones.
func (y *Mixture) release(x *compute.Expert) {
	for _, w := range []compute.Weight{x.GateUp, x.Down} {
		if w == nil {
			continue
		}
		i := slices.Index(y.loader.weights, w)
		y.loader.weights = slices.Delete(y.loader.weights, i, i+1)
		y.loader.entries = slices.Delete(y.loader.entries, i, i+1)
		y.dev.Retire(w)
	}
}
