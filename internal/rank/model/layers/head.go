package layers

import (
	"math"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/link/status"
)

// Head computes logits. The vocabulary is divided among the ranks, the last one has what is left.
type Head struct {
	*rank
	weight compute.Weight
	bias   compute.Memory // nil for none
	vocab  int
	// share is the number of entries that each rank sends, the last one's padded.
	share int
	opt   HeadOptions
	// lengths has the reciprocals of the lengths of the weight's rows, nil for rows as they are.
	lengths compute.Memory

	part, gathered, logits Tensor
}

// VocabularyShare is the number of entries of each rank of a group of size but the last.
func VocabularyShare(vocab, size int) int { return (vocab + size - 1) / size }

// HeadOptions are what is done to logits.
type HeadOptions struct {
	// Multiplier is what they are multiplied by, 0 is 1; Cap, if positive, caps them after it: each
	// v becomes Cap·tanh(v/Cap).
	Multiplier, Cap float32
	// Bias is the module that has a bias, "" for none.
	Bias string
	// UnitRows says that the rows of the weight are divided by their lengths.
	UnitRows bool
}

// Head makes the layer of a module of vocab by in features, which may be the token embedding.
func (l *Loader) Head(module string, vocab, in int, opt HeadOptions) *Head {
	p := whole(module, vocab, in)
	share := VocabularyShare(vocab, l.group.Size)
	p.rowLo = l.group.Rank * share
	p.rowHi = min(p.rowLo+share, vocab)
	before := l.bytes
	y := &Head{rank: l.rank, weight: l.weightIn(l.outside(), 1, p), vocab: vocab, share: share,
		opt: opt}
	if opt.Bias != "" {
		p.module = opt.Bias
		y.bias = l.bias(p)
	}
	if opt.UnitRows {
		y.lengths = l.lengths(p)
	}
	l.head = l.bytes - before
	return y
}

// lengths are the reciprocals of the lengths of a part's rows.
func (l *Loader) lengths(p part) compute.Memory {
	l.columns()
	name, shape := p.tensor()
	t, err := l.src.Tensor(name, shape...)
	if l.fail(err) {
		return nil
	}
	defer l.src.Release(t)
	if l.scale != nil {
		l.scale.Vectors += 4 * int64(p.rowHi-p.rowLo)
		return nil
	}
	var list []float32
	for row := p.rowLo; row < p.rowHi; row++ {
		v, err := decode(t, row*p.cols, (row+1)*p.cols)
		if l.fail(err) {
			return nil
		}
		var sum float64
		for _, x := range v {
			sum += float64(x) * float64(x)
		}
		list = append(list, float32(1/max(math.Sqrt(sum), 1e-12)))
	}
	return l.upload(list)
}

// Forward returns the logits of all rows of x, [rows][vocabulary], on rank 0, and nil on others.
func (y *Head) Forward(x *Tensor) (*Tensor, error) {
	logits, err := y.multiply(x)
	if err != nil || logits == nil {
		return nil, err
	}
	if y.opt.Multiplier != 0 {
		y.dev.Scale(logits, y.opt.Multiplier)
	}
	if y.opt.Cap > 0 {
		y.dev.TanhCap(logits, y.opt.Cap)
	}
	return logits, nil
}

// multiply returns the products of all ranks, on rank 0.
func (y *Head) multiply(x *Tensor) (*Tensor, error) {
	n, width := x.Rows, y.weight.Out()
	if y.group.Size == 1 {
		y.dev.Resize(&y.logits, n, y.vocab)
		y.product(y.logits.All(), x)
		return &y.logits, nil
	}
	// Every rank sends rows of the same length.
	y.dev.Resize(&y.part, n, y.share)
	y.product(y.part.Columns(0, width), x)
	var all *Tensor
	if y.group.Rank == 0 {
		all = &y.gathered
		y.dev.Resize(all, y.group.Size*n, y.share)
	}
	err := y.await(status.Logits, func() error { return y.group.Comm.Gather(all, &y.part, 0) })
	if err != nil || all == nil {
		return nil, err
	}
	y.dev.Resize(&y.logits, n, y.vocab)
	for r := range y.group.Size {
		at := r * y.share
		width := min(y.share, y.vocab-at)
		from := all.Below(r*n).Columns(0, width)
		from.Rows = n
		y.dev.Copy(y.logits.Columns(at, width), from)
	}
	return &y.logits, nil
}

// product makes dst the logits of this rank.
func (y *Head) product(dst compute.View, x *Tensor) {
	y.weight.Product(dst, x.All(), y.bias)
	if y.lengths != nil {
		y.byColumn(dst, y.lengths)
	}
}
