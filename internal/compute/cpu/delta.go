package cpu

import (
	"math"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu/attention"
	"github.com/eagleray/eagleray/internal/compute/cpu/pool"
)

// deltaTask is the gated delta rule in flight. A chunk is one key head of one sequence: rows are
// computed one after the other, in prefill too, so that no bits depend on how prompts are cut.
type deltaTask struct {
	d     *Device
	args  *compute.DeltaArgs
	cache *attention.Cache
	layer int
	batch *compute.Batch
	dst   []float32
	x     []float32
	ld    int
	runs  runs
	// at is the first row of each run that is computed now, of rows at most.
	at, rows int
	scratch  []deltaScratch // of each thread
	ones     []float32
}

// deltaScratch is what a thread computes in.
type deltaScratch struct {
	sum, mixed     []float32 // channels before and after SiLU
	product        []float32 // of channels by their weights
	delta, out     []float32 // ValueDim
	power          [1]float32
	convolution, s []float32 // parts of the state
}

// normEps is added to the squared length of queries and keys.
const normEps = 1e-6

func (t *deltaTask) init(d *Device) {
	t.d, t.scratch = d, make([]deltaScratch, d.pool.Threads())
}

// Delta makes dst what a gated delta rule makes of the rows of x (see compute.DeltaArgs).
func (d *Device) Delta(c compute.Cache, layer int, b *compute.Batch, args *compute.DeltaArgs,
	dst *compute.Tensor, x compute.View) {
	t := &d.delta
	t.args, t.cache, t.layer, t.batch = args, c.(*attention.Cache), layer, b
	t.dst, t.x, t.ld = floats(dst.Memory), view(x), x.Stride
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
	t.args, t.cache, t.batch, t.dst, t.x = nil, nil, nil, nil, nil
}

// Do computes some rows of a key head of a sequence.
func (t *deltaTask) Do(chunk, thread int) {
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
	window := (a.Kernel - 1) * channels
	s.convolution, s.s = state[:window], state[window:]
	s.sum, s.mixed = grow(s.sum, channels), grow(s.mixed, channels)
	s.product = grow(s.product, channels)
	s.delta, s.out = grow(s.delta, a.ValueDim), grow(s.out, a.ValueDim)
	for r := from; r < to; r++ {
		x := t.x[r*t.ld : r*t.ld+a.Width()]
		t.convolve(s, head, x)
		t.update(s, head, x, t.dst[r*a.ValueHeads*a.ValueDim:])
		if kept := t.batch.Kept; len(kept) > 0 && kept[r] >= 0 {
			copy(t.cache.State(t.layer, int(kept[r]))[head*n:(head+1)*n], state)
		}
	}
	s.convolution, s.s = nil, nil
}

// convolve makes mixed what the convolution makes of a row's channels of a key head, and moves the
// window on.
func (t *deltaTask) convolve(s *deltaScratch, head int, x []float32) {
	a, n := t.args, len(s.sum)
	keys := a.KeyHeads * a.KeyDim
	values := a.Group() * a.ValueDim
	weights := floats(a.Convolution)[head*a.Kernel*n : (head+1)*a.Kernel*n]
	row := s.mixed
	copy(row, x[head*a.KeyDim:][:a.KeyDim])
	copy(row[a.KeyDim:], x[keys+head*a.KeyDim:][:a.KeyDim])
	copy(row[2*a.KeyDim:], x[2*keys+head*values:][:values])
	convolve(t.d.vec, s.sum, s.product, weights, s.convolution, row)
	t.d.vec.SiluMul(s.mixed, s.sum, t.ones)
}

// update computes the outputs of a row's value heads of a key head, and their states after it.
func (t *deltaTask) update(s *deltaScratch, head int, x, dst []float32) {
	a, v := t.args, t.d.vec
	q, k := s.mixed[:a.KeyDim], s.mixed[a.KeyDim:2*a.KeyDim]
	v.Scale(q, q, reciprocal(v.Dot(q, q))/float32(math.Sqrt(float64(a.KeyDim))))
	v.Scale(k, k, reciprocal(v.Dot(k, k)))
	z := x[2*a.KeyHeads*a.KeyDim+a.ValueHeads*a.ValueDim:]
	betas := z[a.ValueHeads*a.ValueDim:]
	size := a.KeyDim * a.ValueDim
	for i := range a.Group() {
		h := head*a.Group() + i
		g, beta := t.decay(s, h, betas[a.ValueHeads+h]), t.sigmoid(s, betas[h])
		m := s.s[i*size : (i+1)*size]
		v.Scale(m, m, g)
		clear(s.out)
		for j, kj := range k {
			v.Axpy(s.out, kj, m[j*a.ValueDim:(j+1)*a.ValueDim])
		}
		value := s.mixed[2*a.KeyDim+i*a.ValueDim:][:a.ValueDim]
		for j := range s.delta {
			s.delta[j] = beta * (value[j] - s.out[j])
		}
		clear(s.out)
		for j, kj := range k {
			row := m[j*a.ValueDim : (j+1)*a.ValueDim]
			v.Axpy(row, kj, s.delta)
			v.Axpy(s.out, q[j], row)
		}
		v.RMSNorm(s.out, s.out, floats(a.Norm), a.Eps)
		v.SiluMul(dst[h*a.ValueDim:][:a.ValueDim], z[h*a.ValueDim:][:a.ValueDim], s.out)
	}
}

// reciprocal is that of a length, by its square.
func reciprocal(square float32) float32 {
	return float32(1 / math.Sqrt(float64(square+normEps)))
}

// decay is what the state of a value head is multiplied by: exp(Decay·softplus(x+Shift)).
func (t *deltaTask) decay(s *deltaScratch, head int, x float32) float32 {
	x += floats(t.args.Shift)[head]
	if s.power[0] = x; x <= 20 { // above, softplus is x in float32
		t.d.vec.ExpSum(s.power[:], 0)
		s.power[0] = float32(math.Log1p(float64(s.power[0])))
	}
	s.power[0] *= floats(t.args.Decay)[head]
	t.d.vec.ExpSum(s.power[:], 0)
	return s.power[0]
}

func (t *deltaTask) sigmoid(s *deltaScratch, x float32) float32 {
	s.power[0] = x
	t.d.vec.Sigmoid(s.power[:])
	return s.power[0]
}
