package cuda_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cuda"
	"github.com/eagleray/eagleray/internal/compute/cuda/double"
)

// run has a device compute a step, and fails with it.
func run(t *testing.T, d *cuda.Device, b *compute.Batch, pass func()) {
	t.Helper()
	d.Begin(b, nil)
	err := d.Run(t, true, func() error { pass(); return d.Err() })
	if err == nil {
		err = d.Finish()
	}
	if err != nil {
		t.Fatalf("positions %v: %v", b.Position, err)
	}
}

// TestReplayedPositions does steps again at positions that none was recorded at: a sequence goes on
// in a block table that has room for twice as many.
func TestReplayedPositions(t *testing.T) {
	d := machine(t, &double.Driver{Check: true})
	frequencies := []float32{1, 0.25}
	y := d.Rotary(frequencies, func(int) float64 { return 1 }, 0)
	var angles compute.Tensor
	for _, p := range []int32{2048, 2049, 2050, 2051, 3071, 3072, 4095, 4096, 4097, 4098, 8191} {
		b := &compute.Batch{Tokens: []int32{0}, Slots: []int32{p}, Position: []int32{p},
			Seq: []int32{0}, States: []int32{0}, Tables: [][]int32{make([]int32, p/16+1)}}
		run(t, d, b, func() { y.Angles(&angles, b.Position) })
		angle, got := float64(float32(p)*frequencies[1]), angles.Floats()
		if math.Abs(float64(got[1])-math.Cos(angle)) > 1e-6 ||
			math.Abs(float64(got[3])-math.Sin(angle)) > 1e-6 {
			t.Fatalf("position %d after %d replays: %v", p, d.Replays(), got)
		}
	}
	if d.Replays() == 0 {
		t.Error("no step was done again")
	}
}

// TestAmongIsNotRecorded has texts attend to themselves in steps of one shape, the last of which
// needs more room than those before: nothing can be allocated in a graph.
func TestAmongIsNotRecorded(t *testing.T) {
	d := machine(t, &double.Driver{Check: true})
	s := &subject{device: d, t: t, random: rand.New(rand.NewPCG(1, 1))}
	x, y := s.tensor(20, 96), new(compute.Tensor)
	d.Resize(y, 20, 32)
	args := compute.AttentionArgs{Heads: 2, KVHeads: 2, HeadDim: 16, Scale: 0.25,
		Ahead: math.MaxInt32}
	for _, n := range []int{10, 10, 10, 19} {
		b, _, _ := batchOf(16, sequence{0, n}, sequence{0, 20 - n})
		b.Slots, b.Tables = nil, nil
		run(t, d, b, func() {
			d.AttentionAmong(b, args, y, x.Columns(0, 32), x.Columns(32, 32), x.Columns(64, 32))
		})
	}
}

// TestHostIsNotRecorded has steps filled in by the host, as rows of quantised embeddings are, among
// others that are done again.
func TestHostIsNotRecorded(t *testing.T) {
	d := machine(t, &double.Driver{Check: true})
	var x, y compute.Tensor
	for step := float32(0); step < 6; step++ {
		for rows := 1; rows < 3; rows++ {
			b, _, _ := batchOf(16, []sequence{{9, 1}, {9, 1}}[:rows]...)
			run(t, d, b, func() {
				d.Resize(&x, rows, 8)
				if d.Zero(&x); rows == 1 {
					x.Floats()[0] = step
					x.Memory.Filled()
				}
				d.Resize(&y, rows, 8)
				d.Copy(y.All(), x.All())
			})
			if got, want := y.Floats()[0], step*float32(2-rows); got != want {
				t.Errorf("%d rows, step %g: %g instead of %g", rows, step, got, want)
			}
		}
	}
	if d.Replays() == 0 {
		t.Error("no step was done again")
	}
}
