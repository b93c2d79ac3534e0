package layers

// Head computes logits. The vocabulary is divided among the ranks, the last one has what is left.
type Head struct {
	*rank
	weight weight
	vocab  int
	// share is the number of entries that each rank sends, the last one's padded.
	share int
	opt   HeadOptions

	part, gathered Tensor
}

// VocabularyShare is the number of entries of each rank of a group of size but the last.
func VocabularyShare(vocab, size int) int { return (vocab + size - 1) / size }

// HeadOptions are what is done to logits.
type HeadOptions struct {
	// Multiplier is what they are multiplied by, 0 is 1; Cap, if positive, caps them after it: each
	// v becomes Cap·tanh(v/Cap).
	Multiplier, Cap float32
}

// Head makes the layer of a module of vocab by in features, which may be the token embedding.
func (l *Loader) Head(module string, vocab, in int, opt HeadOptions) *Head {
	p := whole(module, vocab, in)
	share := VocabularyShare(vocab, l.group.Size)
	p.rowLo = l.group.Rank * share
	p.rowHi = min(p.rowLo+share, vocab)
	before := l.bytes
	y := &Head{rank: l.rank, weight: l.weight(1, p), vocab: vocab, share: share,
		opt: opt}
	l.head = l.bytes - before
	return y
}

// Forward computes the logits of all rows of x: dst is [rows][vocabulary] on rank 0 and not used on
// other ranks.
func (y *Head) Forward(dst []float32, x *Tensor) error {
	err := y.multiply(dst, x)
	if err != nil || y.group.Rank != 0 {
		return err
	}
	if y.opt.Multiplier != 0 {
		y.dev.Scale(dst, y.opt.Multiplier, x.rows, y.vocab)
	}
	if y.opt.Cap > 0 {
		y.dev.TanhCap(dst, y.opt.Cap, x.rows, y.vocab)
	}
	return nil
}

// multiply makes dst the products of all ranks.
func (y *Head) multiply(dst []float32, x *Tensor) error {
	n := x.rows
	if y.group.Size == 1 {
		y.weight.mul(y.dev, dst, x.data, n, nil)
		return nil
	}
	// Every rank sends rows of the same length.
	y.part.Resize(n, y.share)
	if width := y.weight.out(); width == y.share {
		y.weight.mul(y.dev, y.part.data, x.data, n, nil)
	} else {
		y.sum.Resize(n, width)
		y.weight.mul(y.dev, y.sum.data, x.data, n, nil)
		for i := range n {
			copy(y.part.Row(i), y.sum.Row(i))
		}
	}
	var all []float32
	if y.group.Rank == 0 {
		y.gathered.Resize(y.group.Size*n, y.share)
		all = y.gathered.data
	}
	y.report(true)
	err := y.group.Comm.Gather(all, y.part.data, 0)
	y.report(false)
	if err != nil || y.group.Rank != 0 {
		return err
	}
	for i := range n {
		for r := range y.group.Size {
			at := r * y.share
			width := min(y.share, y.vocab-at)
			copy(dst[i*y.vocab+at:i*y.vocab+at+width], y.gathered.Row(r*n+i))
		}
	}
	return nil
}
