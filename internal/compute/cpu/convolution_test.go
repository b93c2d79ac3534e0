package cpu_test

import (
	"math"
	"slices"
	"testing"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu"
	"github.com/eagleray/eagleray/internal/compute/cpu/isa"
)

// convolutionLayer is a gated short convolution of random weights.
func convolutionLayer(d *cpu.Device, bias bool) *compute.ConvolutionArgs {
	a := &compute.ConvolutionArgs{Parts: 4, Channels: 21, Kernel: 3}
	a.Weights = d.Vector(random(a.Parts * a.Kernel * a.Channels))
	if bias {
		a.Bias = d.Vector(random(a.Out()))
	}
	return a
}

// runConvolution computes rows of a sequence from a position on, behind others of another one.
func runConvolution(t *testing.T, d *cpu.Device, c compute.Cache, a *compute.ConvolutionArgs,
	start int, x, before []float32, kept ...int32) []float32 {
	t.Helper()
	width := 3 * a.Out()
	b := &compute.Batch{States: []int32{1, 0}}
	for i := range len(before) / width {
		b.Seq, b.Position = append(b.Seq, 0), append(b.Position, int32(i))
	}
	first := b.Rows()
	for i := range len(x) / width {
		b.Seq, b.Position = append(b.Seq, 1), append(b.Position, int32(start+i))
	}
	if kept != nil {
		b.Kept = append(slices.Repeat([]int32{-1}, first), kept...)
	}
	dst := new(compute.Tensor)
	d.Resize(dst, b.Rows(), a.Out())
	all := append(slices.Clone(before), x...)
	d.Convolve(c, 0, b, a, dst, cpu.Over(all, b.Rows(), width).All())
	return slices.Clone(dst.Floats()[first*a.Out():])
}

func convolutionCache(t *testing.T, d *cpu.Device, a *compute.ConvolutionArgs) compute.Cache {
	t.Helper()
	c, err := d.NewCache(compute.CacheShape{Layers: []compute.CacheLayer{{Kind: compute.State,
		Heads: a.Parts, Dim: a.Floats()}}, Blocks: 1, BlockSize: 16, DType: compute.BFloat16,
		States: 3})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Free() })
	return c
}

// TestConvolution holds the gated short convolution to its formula in float64, whatever was in the
// state before, and wants the same bits of steps of any length, beside another sequence and alone,
// and after a state that was kept.
func TestConvolution(t *testing.T) {
	for _, bias := range []bool{false, true} {
		d := device(t, isa.Best(), 1)
		a := convolutionLayer(d, bias)
		width := 3 * a.Out()
		x, other := random(19*width), random(5*width)
		c := convolutionCache(t, d, a)
		runConvolution(t, d, c, a, 0, random(4*width), nil)
		want := runConvolution(t, d, c, a, 0, x, nil)
		for i, v := range want {
			if ref := convolutionReference(a, x, i/a.Out(), i%a.Out()); math.Abs(
				float64(v)-ref) > 1e-5*(1+math.Abs(ref)) {
				t.Fatalf("row %d, channel %d is %v, not %v", i/a.Out(), i%a.Out(), v, ref)
			}
		}
		for _, step := range []int{1, 2, 7} {
			e := device(t, isa.Portable, 3)
			c := convolutionCache(t, e, a)
			var got []float32
			for at := 0; at < 19; at += step {
				rows := x[at*width : min(at+step, 19)*width]
				got = append(got, runConvolution(t, e, c, a, at, rows, other)...)
			}
			if !slices.Equal(got, want) {
				t.Errorf("in steps of %d rows are others", step)
			}
		}
		c = convolutionCache(t, d, a)
		wrong := append(slices.Clone(x[:3*width]), random(2*width)...)
		runConvolution(t, d, c, a, 0, wrong, nil, -1, -1, 2, -1, -1)
		c.CopyState(0, 2)
		got := runConvolution(t, d, c, a, 3, x[3*width:], nil)
		if !slices.Equal(got, want[3*a.Out():]) {
			t.Error("after a state that was kept rows are others")
		}
	}
}

// convolutionReference is a channel of a row by compute.ConvolutionArgs' formula.
func convolutionReference(a *compute.ConvolutionArgs, x []float32, row, channel int) float64 {
	n, out := a.Channels, a.Out()
	at := func(r, i int) float64 { return float64(x[r*3*out+i*out+channel]) }
	sum := 0.0
	if a.Bias != nil {
		sum = float64(a.Bias.Host()[channel])
	}
	for j := range a.Kernel {
		if r := row - a.Kernel + 1 + j; r >= 0 {
			w := a.Weights.Host()[(channel/n*a.Kernel+j)*n+channel%n]
			sum += float64(w) * (at(r, 0) * at(r, 2))
		}
	}
	return sum * at(row, 1)
}
