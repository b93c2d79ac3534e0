package cpu_test

import (
	"slices"
	"sync/atomic"
	"testing"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu"
	"github.com/eagleray/eagleray/internal/compute/cpu/isa"
	"github.com/eagleray/eagleray/internal/compute/cpu/pool"
)

// TestMovesOnOneThread wants operations of many rows to show on one thread, too, that they move:
// one chunk counted for each pool.MostWork multiply-adds at least, and the bits that three threads
// give.
func TestMovesOnOneThread(t *testing.T) {
	const rows, wide, heads, headDim = 512, 512, 16, 64
	x, weight, bias := random(rows*2*wide), random(wide), random(wide + 1)[:wide]
	big := random(4 << 20)
	matrix := func(d *cpu.Device) compute.Weight {
		data := make([]byte, 2*2*wide*wide)
		for i := 1; i < len(data); i += 2 {
			data[i] = byte(0x38 + i*i%8) // numbers of either size
		}
		w, err := d.Pack(1, compute.Source{Data: data, Rows: 2 * wide, Cols: wide,
			RowHi: 2 * wide, ColHi: wide})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(w.Free)
		return w
	}
	all := func(v []float32) *compute.Tensor { return cpu.Over(v, len(big)/wide, wide) }
	elements := func(op func(d *cpu.Device, dst *compute.Tensor)) operation {
		return operation{size: len(big), work: len(big) * 32, run: func(d *cpu.Device,
			dst []float32) func() {
			return func() { op(d, all(dst)) }
		}}
	}
	for name, op := range map[string]operation{
		"Linear": {size: rows * 2 * wide, work: rows * 2 * wide * wide, run: func(d *cpu.Device,
			dst []float32) func() {
			w := matrix(d)
			return func() {
				w.Product(cpu.Over(dst, rows, 2*wide).All(), cpu.Over(x, rows, wide).All(), nil)
			}
		}},
		"Attention": {size: rows * heads * headDim, work: rows * rows / 2 * 2 * heads * headDim,
			run: func(d *cpu.Device, dst []float32) func() {
				c, err := d.NewCache(compute.CacheShape{Blocks: rows / 16, BlockSize: 16,
					Layers: []compute.CacheLayer{{Heads: heads, Dim: headDim}},
					DType:  compute.BFloat16})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = c.Free() })
				b := &compute.Batch{Tables: [][]int32{make([]int32, rows/16)}, Seq: make([]int32,
					rows)}
				for i := range int32(rows) {
					b.Position, b.Slots = append(b.Position, i), append(b.Slots, i)
					b.Tables[0][i/16] = i / 16
				}
				d.WriteCache(c, 0, cpu.Over(big, rows, heads*headDim).All(),
					cpu.Over(big[1:], rows, heads*headDim).All(),
					compute.CacheScales{}, b.Slots)
				args := compute.AttentionArgs{Heads: heads, KVHeads: heads, HeadDim: headDim,
					Scale: 0.2}
				return func() {
					d.Attention(c, 0, b, args, cpu.Over(dst, rows, heads*headDim),
						cpu.Over(x, rows, heads*headDim).All())
				}
			}},
		"RMSNorm": elements(func(d *cpu.Device, dst *compute.Tensor) {
			d.RMSNorm(dst, all(big), d.Vector(weight), 1e-6)
		}),
		"LayerNorm": elements(func(d *cpu.Device, dst *compute.Tensor) {
			d.LayerNorm(dst, all(big), d.Vector(weight), d.Vector(bias), 1e-6)
		}),
		"Add": elements(func(d *cpu.Device, dst *compute.Tensor) { d.Add(dst, all(big)) }),
		"GELU": elements(func(d *cpu.Device, dst *compute.Tensor) {
			d.Copy(dst.All(), all(big).All())
			d.Activate(compute.GELU, dst)
		}),
		"Heads": elements(func(d *cpu.Device, dst *compute.Tensor) {
			d.Copy(dst.All(), all(big).All())
			d.Heads(dst.All(), headDim, d.Vector(weight[:headDim]), 1e-6,
				cpu.Over(big, len(big)/wide, headDim))
		}),
	} {
		t.Run(name, func(t *testing.T) {
			var moved atomic.Uint64
			d := device(t, isa.Best(), 1)
			got, want := make([]float32, op.size), make([]float32, op.size)
			run := op.run(d, got)
			d.Pool().Count(&moved)
			run()
			d.Pool().Count(nil)
			if least := uint64(op.work / pool.MostWork); moved.Load() < least {
				t.Errorf("%d multiply-adds moved %d times, not %d", op.work, moved.Load(), least)
			}
			op.run(device(t, isa.Best(), 3), want)()
			if !slices.Equal(got, want) {
				t.Error("one thread gives other bits than three")
			}
		})
	}
}

// operation is one of a device, for a result of so many elements: run makes ready what computes it,
// which is worth so many multiply-adds.
type operation struct {
	size, work int
	run        func(d *cpu.Device, dst []float32) func()
}
