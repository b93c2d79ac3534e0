package compute

// LowRank is what an adapter has beside a weight: it adds B·(A·x) to the weight's products (LoRA,
// https://arxiv.org/abs/2106.09685).
type LowRank struct {
	// Down is A of all modules that the weight is made of, one above the other, cut in chunks as
	// the weight is; Up are their B.
	Down Weight
	Up   []Upward
}

// Upward is B of one module: it multiplies Rank numbers of A·x from one on, and adds what it makes
// of them to output features from At on.
type Upward struct {
	Weight
	From, Rank, At int
}

// Free frees the weights.
func (w *LowRank) Free() {
	if w == nil {
		return
	}
	if w.Down != nil {
		w.Down.Free()
	}
	for _, b := range w.Up {
		b.Free()
	}
}

// Beside is what adapters have beside one weight, by the places that they have in a model. Whose
// rows those of the batch at hand are, the device was told when the step began. The bits of a row
// depend on its input and its adapter alone.
type Beside interface {
	// Set has the adapter in a place have w beside the weight, nil for nothing. Its weights stay
	// the caller's.
	Set(place int, w *LowRank)
	// Width is how many numbers A·x of all rows of the batch at hand is, 0 where none has an
	// adapter beside the weight.
	Width() int
	// Add computes A·x of all rows that have an adapter, into low, and adds B·(A·x) to dst. Where
	// ranks sum the one before the other, Lower and Raise do so: A·x is in low from an element on.
	Add(dst View, low Memory, x View)
	Lower(low Memory, at int, x View)
	Raise(dst View, low Memory, at int)
}
