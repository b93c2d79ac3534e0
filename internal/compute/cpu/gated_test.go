package cpu_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu"
	"github.com/eagleray/eagleray/internal/compute/cpu/isa"
	"github.com/eagleray/eagleray/internal/sys/half"
)

// TestGatedProduct wants what products with the next weight make of a product and of a gating of
// it, whether the device makes both at once or not.
func TestGatedProduct(t *testing.T) {
	for _, set := range isa.All() {
		d, err := cpu.New(cpu.Options{Threads: 2, ISA: set.String(), DType: compute.BFloat16})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(d.Close)
		r := rand.New(rand.NewPCG(31, 32))
		for range 40 {
			rows, in, out := 1+r.IntN(70), 1+r.IntN(300), 2*(1+r.IntN(300))
			if r.IntN(3) > 0 {
				out = 64 * (1 + r.IntN(9))
			}
			gating := compute.Gating{Activation: []compute.Activation{compute.ReLU, compute.SiLU,
				compute.GELU, compute.GELUTanh}[r.IntN(4)]}
			if r.IntN(5) == 0 {
				gating = compute.Gating{Limit: 1.5}
			}
			var bias compute.Memory
			if r.IntN(4) == 0 {
				bias = d.Vector(random(out))
			}
			w := packed(t, d, r, 1, out, in)
			next := packed(t, d, r, 1<<r.IntN(4), 40, out/2)
			x := cpu.Over(random(rows*in), rows, in)
			var both, gated, room compute.Tensor
			var want, got [3]compute.Tensor
			d.Resize(&both, rows, out)
			w.Product(both.All(), x.All(), bias)
			d.Gate(gating, &gated, &both)
			products(d, next, &gated, &want)
			d.GatedProduct(gating, &gated, &room, w, x.All(), bias, next)
			products(d, next, &gated, &got)
			for k := range want {
				for i, v := range want[k].Floats() {
					if g := got[k].Floats()[i]; math.Float32bits(g) != math.Float32bits(v) {
						t.Fatalf("%v, %v of %d rows of %d -> %d: product %d: [%d] is %v, not %v",
							set, gating, rows, in, out, k, i, g, v)
					}
				}
			}
			next.Free()
			w.Free()
		}
	}
}

// packed is a weight of random bfloat16.
func packed(t *testing.T, d *cpu.Device, r *rand.Rand, chunks, out, in int) compute.Weight {
	t.Helper()
	source := compute.Source{DType: compute.BFloat16, Rows: out, Cols: in, RowHi: out, ColHi: in}
	for range out * in {
		h := half.ToBF16(float32(r.NormFloat64()))
		source.Data = append(source.Data, byte(h), byte(h>>8))
	}
	w, err := d.Pack(chunks, source)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// products makes the three products there are.
func products(d *cpu.Device, w compute.Weight, x *compute.Tensor, to *[3]compute.Tensor) {
	d.Resize(&to[0], x.Rows, w.Out())
	w.Product(to[0].All(), x.All(), d.Vector(random(w.Out())))
	d.Resize(&to[1], x.Rows, w.Out())
	d.Zero(&to[1])
	w.ProductAdded(to[1].All(), x.All())
	w.ProductChunks(&to[2], x.All())
}
