package stages

import (
	"errors"
	"testing"

	"github.com/eagleray/eagleray/internal/compute/cuda/double"
	"github.com/eagleray/eagleray/internal/compute/cuda/ptx"
)

// What a decoding step is predicted by: the copy bandwidth of an H200 that was measured elsewhere,
// and what the boundary between two kernels of a graph takes of an H100 (Hazy Research, 2025-05).
const (
	h200Bandwidth  = 4.3e12
	kernelBoundary = 1.3e-6
	// Its 132 multiprocessors begin an instruction of four warps each at a time.
	h200Issues = 132 * 4 * 1.755e9
)

// asked is what a step asks of a GPU's memory, how many kernels it has, and the instructions of
// their warps.
type asked struct{ bytes, kernels, instructions float64 }

func (a asked) plus(b asked, times float64) asked {
	return asked{a.bytes + times*b.bytes, a.kernels + times*b.kernels,
		a.instructions + times*b.instructions}
}

// askedOf counts a decoding step of one sequence, which is not computed before: its numbers are
// none.
func askedOf(t *testing.T, shape Shape) (a asked) {
	t.Helper()
	cfg, err := shape.config()
	if err != nil {
		t.Fatal(err)
	}
	r := &run{Options: &Options{}}
	drv := &double.Driver{Threads: 2, Observe: func(_ string, s ptx.Stats) {
		a.bytes += float64(s.GlobalRead + s.GlobalWritten)
		a.kernels++
		a.instructions += float64(s.Instructions)
	}}
	r.Driver, r.Machine = drv, drv
	s, err := r.session(&shape, cfg, 1, 1, shape.context)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := errors.Join(s.close()); err != nil {
			t.Error(err)
		}
	}()
	if err := s.wait(); err != nil {
		t.Fatal(err)
	}
	a = asked{}
	if _, _, _, err := s.timed(s.decode(&shape, 1), 1); err != nil {
		t.Fatal(err)
	}
	return a
}

// TestPredicted predicts a decoding step of Qwen3-8B from what the machine counts of one layer and
// of a part of the head: no more than 1.2 times the floor of its weights and its cache, where these
// are not quantised.
func TestPredicted(t *testing.T) {
	if testing.Short() {
		t.Skip("a minute")
	}
	for _, whole := range measured()[1:] {
		if whole.Experts > 0 {
			continue // the machine's memory has room for no layer of them
		}
		t.Run(whole.Name, func(t *testing.T) { predict(t, whole) })
	}
}

func predict(t *testing.T, whole Shape) {
	part := func(layers, vocabulary int) Shape {
		s := whole
		s.Layers, s.Vocabulary = layers, vocabulary
		return s
	}
	one, two := askedOf(t, part(1, 1024)), askedOf(t, part(2, 1024))
	wide := askedOf(t, part(1, 2048))
	layer, thousand := two.plus(one, -1), wide.plus(one, -1)
	all := one.plus(layer, float64(whole.Layers-1))
	all.bytes += thousand.bytes * (float64(whole.Vocabulary)/1024 - 1)
	work := whole.decoding(1, whole.context)
	floor := work.Bytes() / h200Bandwidth
	predicted := all.bytes/h200Bandwidth + all.kernels*kernelBoundary
	t.Logf("a layer: %.4g MB of %.4g, %v kernels; a step: %.4g GB of %.4g, %v kernels: "+
		"%.3g ms, the floor is %.3g: %.3g; instructions are begun in %.3g ms", layer.bytes/1e6,
		(work.Bytes()-2*whole.headNumbers())/float64(whole.Layers)/1e6, layer.kernels,
		all.bytes/1e9, work.Bytes()/1e9, all.kernels, 1e3*predicted, 1e3*floor, predicted/floor,
		1e3*(all.instructions+thousand.instructions*(float64(whole.Vocabulary)/1024-1))/h200Issues)
	if whole.Quantization == "" && predicted > 1.2*floor {
		t.Errorf("a step is predicted to take %.3g times its floor", predicted/floor)
	}
}
