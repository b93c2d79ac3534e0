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

// deltaLayer is a layer with a gated delta rule, of random weights.
func deltaLayer(d *cpu.Device) *compute.DeltaArgs {
	a := &compute.DeltaArgs{KeyHeads: 2, ValueHeads: 6, KeyDim: 16, ValueDim: 24, Kernel: 4,
		Eps: 1e-6}
	a.Convolution = d.Vector(random(a.KeyHeads * a.Kernel * a.Channels()))
	a.Decay = d.Vector([]float32{-0.1, -1, -2, -0.01, -0.5, -3})
	a.Shift = d.Vector([]float32{0.5, -1, 2, 30, 0, -4})
	a.Norm = d.Vector(random(a.ValueDim))
	return a
}

// deltaSequence is rows of a sequence from a position on, its states in a slot.
type deltaSequence struct {
	slot, start int32
	x           []float32
}

// runDelta computes sequences in one step and returns the rows that it makes.
func runDelta(d *cpu.Device, c compute.Cache, a *compute.DeltaArgs,
	sequences ...deltaSequence) []float32 {
	b := new(compute.Batch)
	var x []float32
	for i, s := range sequences {
		for r := range len(s.x) / a.Width() {
			b.Seq = append(b.Seq, int32(i))
			b.Position = append(b.Position, s.start+int32(r))
		}
		b.States = append(b.States, s.slot)
		x = append(x, s.x...)
	}
	dst := new(compute.Tensor)
	d.Resize(dst, b.Rows(), a.ValueHeads*a.ValueDim)
	d.Delta(c, 1, b, a, dst, cpu.Over(x, b.Rows(), a.Width()).All())
	return dst.Floats()
}

func deltaCache(t testing.TB, d *cpu.Device, a *compute.DeltaArgs, states int) compute.Cache {
	t.Helper()
	c, err := d.NewCache(compute.CacheShape{Layers: []compute.CacheLayer{{Heads: 1, Dim: 2},
		{Kind: compute.State, Heads: a.KeyHeads, Dim: a.Floats()}}, Blocks: 1, BlockSize: 16,
		DType: compute.BFloat16, States: states})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Free() })
	return c
}

// TestDelta holds the gated delta rule to its formula in float64, whatever was in the slot before.
func TestDelta(t *testing.T) {
	for _, set := range []isa.ISA{isa.Portable, isa.Best()} {
		d := device(t, set, 2)
		a := deltaLayer(d)
		c := deltaCache(t, d, a, 3)
		x := random(37 * a.Width())
		runDelta(d, c, a, deltaSequence{2, 0, random(5 * a.Width())})
		got, want := runDelta(d, c, a, deltaSequence{2, 0, x}), deltaReference(a, x)
		for i, v := range got {
			if math.Abs(float64(v)-want[i]) > 1e-4*(1+math.Abs(want[i])) {
				t.Fatalf("%v: row %d, feature %d is %v, not %v", set, i/144, i%144, v, want[i])
			}
		}
	}
}

// TestDeltaSameBits cuts a sequence in steps, on one thread and on several, beside another sequence
// and alone, and wants the same bits.
func TestDeltaSameBits(t *testing.T) {
	d := device(t, isa.Best(), 1)
	a := deltaLayer(d)
	x, other := random(41*a.Width()), random(9*a.Width())
	want := slices.Clone(runDelta(d, deltaCache(t, d, a, 3), a, deltaSequence{0, 0, x}))
	for _, step := range []int{1, 2, 7, 40} {
		e := device(t, isa.Portable, 3)
		c := deltaCache(t, e, a, 3)
		var got []float32
		for at := 0; at < 41; at += step {
			n := min(step, 41-at)
			rows := runDelta(e, c, a, deltaSequence{1, 0, other},
				deltaSequence{0, int32(at), x[at*a.Width() : (at+n)*a.Width()]})
			got = append(got, rows[9*a.ValueHeads*a.ValueDim:]...)
		}
		for i := range want {
			if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
				t.Fatalf("in steps of %d, element %d is %x, not %x", step, i,
					math.Float32bits(got[i]), math.Float32bits(want[i]))
			}
		}
	}
}

// TestDeltaKept has the states after some rows kept, and goes on from one of them: with the bits of
// a sequence that ended there.
func TestDeltaKept(t *testing.T) {
	d := device(t, isa.Best(), 2)
	a := deltaLayer(d)
	x := random(12 * a.Width())
	want := slices.Clone(runDelta(d, deltaCache(t, d, a, 4), a, deltaSequence{0, 0, x}))
	c := deltaCache(t, d, a, 4)
	wrong := append(slices.Clone(x[:5*a.Width()]), random(3*a.Width())...)
	b := &compute.Batch{States: []int32{0}, Seq: make([]int32, 8),
		Kept: []int32{-1, -1, -1, 3, 2, 1, 3, -1}}
	for i := range int32(8) {
		b.Position = append(b.Position, i)
	}
	dst := new(compute.Tensor)
	d.Resize(dst, 8, a.ValueHeads*a.ValueDim)
	d.Delta(c, 1, b, a, dst, cpu.Over(wrong, 8, a.Width()).All())
	c.CopyState(0, 2) // that after the fifth row
	got := runDelta(d, c, a, deltaSequence{0, 5, x[5*a.Width():]})
	for i, v := range got {
		if v != want[5*a.ValueHeads*a.ValueDim+i] {
			t.Fatalf("element %d is %v, not %v", i, v, want[5*a.ValueHeads*a.ValueDim+i])
		}
	}
}

// deltaReference is compute.DeltaArgs' formula for a sequence from its beginning on.
func deltaReference(a *compute.DeltaArgs, x []float32) (out []float64) {
	rows, group := len(x)/a.Width(), a.ValueHeads/a.KeyHeads
	sigmoid := func(v float64) float64 { return 1 / (1 + math.Exp(-v)) }
	at := func(r, i int) float64 { return float64(x[r*a.Width()+i]) }
	keys := a.KeyHeads * a.KeyDim
	out = make([]float64, rows*a.ValueHeads*a.ValueDim)
	for h := range a.ValueHeads {
		kh := h / group
		// mixed is a channel of the key head at a row, after the convolution.
		mixed := func(r, channel, input int) float64 {
			sum := 0.0
			for j := range a.Kernel {
				if from := r - a.Kernel + 1 + j; from >= 0 {
					w := a.Convolution.Host()[(kh*a.Kernel+j)*a.Channels()+channel]
					sum += float64(w) * at(from, input)
				}
			}
			return sum * sigmoid(sum)
		}
		s := make([]float64, a.KeyDim*a.ValueDim)
		for r := range rows {
			q, k := make([]float64, a.KeyDim), make([]float64, a.KeyDim)
			qq, kk := 1e-6, 1e-6
			for i := range q {
				q[i] = mixed(r, i, kh*a.KeyDim+i)
				k[i] = mixed(r, a.KeyDim+i, keys+kh*a.KeyDim+i)
				qq, kk = qq+q[i]*q[i], kk+k[i]*k[i]
			}
			z := 2*keys + a.ValueHeads*a.ValueDim
			b, decay := z+a.ValueHeads*a.ValueDim+h, z+a.ValueHeads*a.ValueDim+a.ValueHeads+h
			g := math.Exp(float64(a.Decay.Host()[h]) *
				math.Log1p(math.Exp(at(r, decay)+float64(a.Shift.Host()[h]))))
			beta := sigmoid(at(r, b))
			o, squares := make([]float64, a.ValueDim), 0.0
			for j := range o {
				v := mixed(r, 2*a.KeyDim+h%group*a.ValueDim+j, 2*keys+h*a.ValueDim+j)
				read := 0.0
				for i := range k {
					s[i*a.ValueDim+j] *= g
					read += k[i] / math.Sqrt(kk) * s[i*a.ValueDim+j]
				}
				for i := range k {
					s[i*a.ValueDim+j] += k[i] / math.Sqrt(kk) * beta * (v - read)
					o[j] += q[i] / math.Sqrt(qq*float64(a.KeyDim)) * s[i*a.ValueDim+j]
				}
				squares += o[j] * o[j]
			}
			for j := range o {
				gate := at(r, z+h*a.ValueDim+j)
				out[(r*a.ValueHeads+h)*a.ValueDim+j] = o[j] /
					math.Sqrt(squares/float64(a.ValueDim)+float64(a.Eps)) *
					float64(a.Norm.Host()[j]) * gate * sigmoid(gate)
			}
		}
	}
	return out
}

// BenchmarkDelta is a layer of Qwen3-Next-80B: a row of each of some sequences, and a prompt.
func BenchmarkDelta(b *testing.B) {
	for _, c := range []struct{ sequences, rows int }{{1, 1}, {16, 1}, {1, 256}} {
		b.Run(fmt.Sprintf("%dx%d", c.sequences, c.rows), func(b *testing.B) {
			d, err := cpu.New(cpu.Options{Threads: 1})
			if err != nil {
				b.Fatal(err)
			}
			defer d.Close()
			a := &compute.DeltaArgs{KeyHeads: 16, ValueHeads: 32, KeyDim: 128, ValueDim: 128,
				Kernel: 4, Eps: 1e-6}
			a.Convolution = d.Vector(random(a.KeyHeads * a.Kernel * a.Channels()))
			a.Decay, a.Shift = d.Vector(random(32)), d.Vector(random(32))
			a.Norm = d.Vector(random(a.ValueDim))
			cache := deltaCache(b, d, a, c.sequences)
			var all []deltaSequence
			for i := range c.sequences {
				all = append(all, deltaSequence{int32(i), 0, random(c.rows * a.Width())})
			}
			for b.Loop() {
				runDelta(d, cache, a, all...)
			}
			rows := float64(b.N * c.sequences * c.rows)
			b.ReportMetric(float64(b.Elapsed().Microseconds())/rows, "µs/row")
		})
	}
}
