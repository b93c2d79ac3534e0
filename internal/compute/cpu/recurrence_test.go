package cpu_test

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu"
	"github.com/eagleray/eagleray/internal/compute/cpu/isa"
)

// stateLayer is a layer that keeps a state of a request.
type stateLayer struct {
	*compute.Recurrence
	width   int
	compute func(d *cpu.Device, c compute.Cache, b *compute.Batch, dst *compute.Tensor,
		x compute.View)
	// reference is its formula in float64, for a sequence from its beginning on.
	reference func(x []float32) []float64
}

// out is how many numbers the layer makes of a row.
func (l *stateLayer) out() int { return l.ValueHeads * l.ValueDim }

// stateLayers are one of each kind.
var stateLayers = map[string]func(d *cpu.Device) *stateLayer{"delta": deltaLayer,
	"scan": scanLayer, "scan without bias": func(d *cpu.Device) *stateLayer {
		return newScanLayer(d, false)
	}}

// stateSequence is rows of a sequence from a position on, its states in a slot.
type stateSequence struct {
	slot, start int32
	x           []float32
}

// run computes sequences in one step and returns the rows that it makes.
func (l *stateLayer) run(d *cpu.Device, c compute.Cache, sequences ...stateSequence) []float32 {
	b := new(compute.Batch)
	var x []float32
	for i, s := range sequences {
		for r := range len(s.x) / l.width {
			b.Seq = append(b.Seq, int32(i))
			b.Position = append(b.Position, s.start+int32(r))
		}
		b.States = append(b.States, s.slot)
		x = append(x, s.x...)
	}
	dst := new(compute.Tensor)
	d.Resize(dst, b.Rows(), l.out())
	l.compute(d, c, b, dst, cpu.Over(x, b.Rows(), l.width).All())
	return dst.Floats()
}

func (l *stateLayer) cache(t testing.TB, d *cpu.Device, states int) compute.Cache {
	t.Helper()
	c, err := d.NewCache(compute.CacheShape{Layers: []compute.CacheLayer{{Heads: 1, Dim: 2},
		{Kind: compute.State, Heads: l.KeyHeads, Dim: l.Floats()}}, Blocks: 1, BlockSize: 16,
		DType: compute.BFloat16, States: states})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Free() })
	return c
}

// TestStates holds layers with states to their formulas in float64, whatever was in the slot
// before.
func TestStates(t *testing.T) {
	for name, layer := range stateLayers {
		for _, set := range []isa.ISA{isa.Portable, isa.Best()} {
			d := device(t, set, 2)
			l := layer(d)
			c := l.cache(t, d, 3)
			x := random(37 * l.width)
			l.run(d, c, stateSequence{2, 0, random(5 * l.width)})
			got, want := l.run(d, c, stateSequence{2, 0, x}), l.reference(x)
			for i, v := range got {
				if math.Abs(float64(v)-want[i]) > 1e-4*(1+math.Abs(want[i])) {
					t.Fatalf("%s, %v: row %d, feature %d is %v, not %v", name, set, i/l.out(),
						i%l.out(), v, want[i])
				}
			}
		}
	}
}

// TestStatesSameBits cuts a sequence in steps, on one thread and on several, beside another
// sequence and alone, and wants the same bits.
func TestStatesSameBits(t *testing.T) {
	for name, layer := range stateLayers {
		d := device(t, isa.Best(), 1)
		l := layer(d)
		x, other := random(41*l.width), random(9*l.width)
		want := slices.Clone(l.run(d, l.cache(t, d, 3), stateSequence{0, 0, x}))
		for _, step := range []int{1, 2, 7, 40} {
			e := device(t, isa.Portable, 3)
			c := l.cache(t, e, 3)
			var got []float32
			for at := 0; at < 41; at += step {
				n := min(step, 41-at)
				rows := l.run(e, c, stateSequence{1, 0, other},
					stateSequence{0, int32(at), x[at*l.width : (at+n)*l.width]})
				got = append(got, rows[9*l.out():]...)
			}
			for i := range want {
				if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
					t.Fatalf("%s, in steps of %d, element %d is %x, not %x", name, step, i,
						math.Float32bits(got[i]), math.Float32bits(want[i]))
				}
			}
		}
	}
}

// TestStatesKept has the states after some rows kept, and goes on from one of them: with the bits
// of a sequence that ended there.
func TestStatesKept(t *testing.T) {
	for name, layer := range stateLayers {
		d := device(t, isa.Best(), 2)
		l := layer(d)
		x := random(12 * l.width)
		want := slices.Clone(l.run(d, l.cache(t, d, 4), stateSequence{0, 0, x}))
		c := l.cache(t, d, 4)
		wrong := append(slices.Clone(x[:5*l.width]), random(3*l.width)...)
		b := &compute.Batch{States: []int32{0}, Seq: make([]int32, 8),
			Kept: []int32{-1, -1, -1, 3, 2, 1, 3, -1}}
		for i := range int32(8) {
			b.Position = append(b.Position, i)
		}
		dst := new(compute.Tensor)
		d.Resize(dst, 8, l.out())
		l.compute(d, c, b, dst, cpu.Over(wrong, 8, l.width).All())
		c.CopyState(0, 2) // that after the fifth row
		got := l.run(d, c, stateSequence{0, 5, x[5*l.width:]})
		for i, v := range got {
			if v != want[5*l.out()+i] {
				t.Fatalf("%s: element %d is %v, not %v", name, i, v, want[5*l.out()+i])
			}
		}
	}
}

// BenchmarkStates is a layer of Qwen3-Next-80B, and one of Granite 4 Small: a row of each of some
// sequences, and a prompt.
func BenchmarkStates(b *testing.B) {
	for name, layer := range map[string]func(d *cpu.Device) *stateLayer{
		"delta": func(d *cpu.Device) *stateLayer {
			return newDeltaLayer(d, compute.Recurrence{KeyHeads: 16, ValueHeads: 32, KeyDim: 128,
				ValueDim: 128, Kernel: 4, Decay: d.Vector(slices.Repeat([]float32{-1}, 32)),
				Shift: d.Vector(random(32))})
		},
		"scan": func(d *cpu.Device) *stateLayer {
			return scanOf(d, compute.ScanArgs{Groups: 1, Recurrence: compute.Recurrence{
				KeyHeads: 32, ValueHeads: 128, KeyDim: 128, ValueDim: 64, Kernel: 4,
				Decay: d.Vector(slices.Repeat([]float32{-1}, 128)),
				Shift: d.Vector(random(128))}}, true)
		}} {
		for _, c := range []struct{ sequences, rows int }{{1, 1}, {16, 1}, {1, 256}} {
			b.Run(fmt.Sprintf("%s/%dx%d", name, c.sequences, c.rows), func(b *testing.B) {
				d, err := cpu.New(cpu.Options{Threads: 1})
				if err != nil {
					b.Fatal(err)
				}
				defer d.Close()
				l := layer(d)
				cache := l.cache(b, d, c.sequences)
				var all []stateSequence
				for i := range c.sequences {
					all = append(all, stateSequence{int32(i), 0, random(c.rows * l.width)})
				}
				for b.Loop() {
					l.run(d, cache, all...)
				}
				heads := float64(b.N * c.sequences * c.rows * l.ValueHeads)
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/heads, "ns/head")
			})
		}
	}
}
