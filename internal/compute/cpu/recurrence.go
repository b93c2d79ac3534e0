package cpu

import (
	"math"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu/attention"
	"github.com/eagleray/eagleray/internal/compute/cpu/vec"
)

// recurrenceTask is a recurrence in flight, whose parts are key heads.
type recurrenceTask struct {
	d    *Device
	args *compute.Recurrence
	rule rule
	bias []float32 // of the convolution, nil for none
	stateRows
	dst     []float32
	x       compute.View
	scratch []recurrenceScratch // of each thread
	ones    []float32
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
	t.dst, t.x = floats(dst.Memory), x
	if n := args.Channels(); len(t.ones) < n {
		t.ones = make([]float32, n)
		for i := range t.ones {
			t.ones[i] = 1
		}
	}
	t.run(d.pool, t, stateRows{cache: c.(*attention.Cache), layer: layer, batch: b,
		parts: args.KeyHeads, floats: args.Floats()},
		4*args.Group()*args.KeyDim*args.ValueDim)
	// Keep no reference to the caller's memory.
	t.args, t.rule, t.bias, t.dst, t.x = nil, nil, nil, nil, compute.View{}
}

// Do computes some rows of a key head of a sequence.
func (t *recurrenceTask) Do(chunk, thread int) {
	head, from, to := t.chunk(chunk)
	if from >= to {
		return
	}
	a, s, state := t.args, &t.scratch[thread], t.state(head, from)
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
		t.copyOut(head, r, state)
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
