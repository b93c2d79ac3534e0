package cpu

import (
	"math"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu/attention"
	"github.com/eagleray/eagleray/internal/compute/cpu/pool"
	"github.com/eagleray/eagleray/internal/compute/cpu/vec"
)

// recurrenceTask is a recurrence in flight. A chunk is one key head of one sequence: rows are
// computed one after the other, in prefill too, so that no bits depend on how prompts are cut.
type recurrenceTask struct {
	d     *Device
	args  *compute.Recurrence
	rule  rule
	bias  []float32 // of the convolution, nil for none
	cache *attention.Cache
	layer int
	batch *compute.Batch
	dst   []float32
	x     compute.View
	// runs are the sequences of the batch; at is the first row of each that is computed now, of
	// rows at most.
	runs     runs
	at, rows int
	scratch  []recurrenceScratch // of each thread
	ones     []float32
}

// rule is how a row changes a state, and what is found in it.
type rule interface {
	// gather makes row what a key head's channels are of x.
	gather(row []float32, head int, x []float32)
	// update makes the columns of dst of a key head's value heads what they find in their states
	// after a row of x, whose channels are s.mixed.
	update(v *vec.Ops, s *recurrenceScratch, head int, x, dst []float32)
}

// recurrenceScratch is what a thread computes in.
type recurrenceScratch struct {
	sum, mixed     []float32 // channels before and after SiLU
	change, out    []float32 // ValueDim
	power          [1]float32
	window, states []float32 // parts of the state
}

func (t *recurrenceTask) init(d *Device) {
	t.d, t.scratch = d, make([]recurrenceScratch, d.pool.Threads())
}

// recur makes dst what a rule makes of the rows of x and of the states of a layer.
func (d *Device) recur(c compute.Cache, layer int, b *compute.Batch, args *compute.Recurrence,
	y rule, bias compute.Memory, dst *compute.Tensor, x compute.View) {
	t := &d.recurrence
	t.args, t.rule, t.bias = args, y, floats(bias)
	t.cache, t.layer, t.batch = c.(*attention.Cache), layer, b
	t.dst, t.x = floats(dst.Memory), x
	longest := t.runs.find(b)
	if n := args.Channels(); len(t.ones) < n {
		t.ones = make([]float32, n)
		for i := range t.ones {
			t.ones[i] = 1
		}
	}
	t.rows = max(1, pool.MostWork/(4*args.Group()*args.KeyDim*args.ValueDim))
	for t.at = 0; t.at < longest; t.at += t.rows {
		d.pool.Run(t, (len(t.runs)-1)*args.KeyHeads)
	}
	// Keep no reference to the caller's memory.
	t.args, t.rule, t.bias, t.cache, t.batch, t.dst = nil, nil, nil, nil, nil, nil
	t.x = compute.View{}
}

// Do computes some rows of a key head of a sequence.
func (t *recurrenceTask) Do(chunk, thread int) {
	a := t.args
	run, head := chunk/a.KeyHeads, chunk%a.KeyHeads
	from, end := int(t.runs[run])+t.at, int(t.runs[run+1])
	to := min(end, from+t.rows)
	if from >= to {
		return
	}
	s := &t.scratch[thread]
	n := a.Floats()
	state := t.cache.State(t.layer, int(t.batch.States[t.batch.Seq[from]]))[head*n : (head+1)*n]
	if t.batch.Position[from] == 0 {
		clear(state)
	}
	channels := a.Channels()
	inputs := (a.Kernel - 1) * channels
	s.window, s.states = state[:inputs], state[inputs:]
	s.sum, s.mixed = grow(s.sum, channels), grow(s.mixed, channels)
	s.change, s.out = grow(s.change, a.ValueDim), grow(s.out, a.ValueDim)
	x, width := view(t.x), a.ValueHeads*a.ValueDim
	weights := floats(a.Convolution)[head*a.Kernel*channels:][:a.Kernel*channels]
	var bias []float32
	if t.bias != nil {
		bias = t.bias[head*channels:]
	}
	for r := from; r < to; r++ {
		row := x[r*t.x.Stride:][:t.x.Width]
		t.rule.gather(s.mixed, head, row)
		convolve(t.d.vec, s.sum, weights, bias, s.window, s.mixed)
		t.d.vec.SiluMul(s.mixed, s.sum, t.ones)
		t.rule.update(t.d.vec, s, head, row, t.dst[r*width:(r+1)*width])
		if kept := t.batch.Kept; len(kept) > 0 && kept[r] >= 0 {
			copy(t.cache.State(t.layer, int(kept[r]))[head*n:(head+1)*n], state)
		}
	}
	s.window, s.states = nil, nil
}

// convolve makes sum the sum of a bias, nil for none, of the inputs of a window, the earliest
// first, and of the row's, each multiplied by the weights of its place, and moves the window on.
func convolve(v *vec.Ops, sum, weights, bias, window, row []float32) {
	n := len(sum)
	clear(sum)
	if bias != nil {
		copy(sum, bias)
	}
	for at := 0; at < len(window); at += n {
		v.AddProducts(sum, weights[at:], window[at:])
	}
	v.AddProducts(sum, weights[len(window):], row)
	if last := len(window) - n; last >= 0 {
		copy(window, window[n:])
		copy(window[last:], row)
	}
}

// softplus is ln(1+exp(x)).
func (s *recurrenceScratch) softplus(v *vec.Ops, x float32) float32 {
	if x > 20 { // it is x in float32
		return x
	}
	return float32(math.Log1p(float64(s.exp(v, x))))
}

func (s *recurrenceScratch) exp(v *vec.Ops, x float32) float32 {
	s.power[0] = x
	v.ExpSum(s.power[:], 0)
	return s.power[0]
}

func (s *recurrenceScratch) sigmoid(v *vec.Ops, x float32) float32 {
	s.power[0] = x
	v.Sigmoid(s.power[:])
	return s.power[0]
}

// runs are where the sequences begin among the rows of a batch, and their end.
type runs []int32

// find makes them those of a batch, and returns how many rows the longest has.
func (r *runs) find(b *compute.Batch) (longest int) {
	*r = (*r)[:0]
	for i, seq := range b.Seq {
		if i == 0 || b.Seq[i-1] != seq {
			*r = append(*r, int32(i))
		}
		longest = max(longest, i+1-int((*r)[len(*r)-1]))
	}
	*r = append(*r, int32(b.Rows()))
	return longest
}
