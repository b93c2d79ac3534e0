package cpu_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu"
	"github.com/eagleray/eagleray/internal/compute/cpu/isa"
)

// coded are random codes of a type; with an offset if there is room for it in the group.
func coded(r *rand.Rand, t compute.CodeType, rows, cols, group int, offset bool) compute.Codes {
	c := compute.Codes{Type: t, Rows: rows, Cols: cols, Group: group, Code: make([]byte, rows*cols)}
	for i := range c.Values {
		c.Values[i] = float32(i - 8)
	}
	for i := range c.Code {
		c.Code[i] = byte(r.IntN(120))
	}
	cells := rows * c.Groups()
	for range cells {
		c.Scale = append(c.Scale, float32(r.NormFloat64())/64)
		if offset {
			c.Offset = append(c.Offset, float32(r.NormFloat64())/64)
		}
	}
	return c
}

// dequantised is a plain source of the same numbers.
func dequantised(c *compute.Codes) compute.Source {
	data := make([]byte, 0, 4*c.Rows*c.Cols)
	row := make([]float32, c.Cols)
	for r := range c.Rows {
		for col := range c.Cols {
			at := r * c.Groups()
			if c.Group > 0 {
				at += col / c.Group
			}
			v := c.Number(c.Code[r*c.Cols+col]) * c.Scale[at]
			if c.Offset != nil {
				v += c.Offset[at]
			}
			if c.Order != nil {
				row[c.Order[col]] = v
			} else {
				row[col] = v
			}
		}
		for _, v := range row {
			b := math.Float32bits(v)
			data = append(data, byte(b), byte(b>>8), byte(b>>16), byte(b>>24))
		}
	}
	return compute.Source{DType: compute.Float32, Data: data, Rows: c.Rows, RowHi: c.Rows,
		Cols: c.Cols, ColHi: c.Cols}
}

func codesDevice(t *testing.T, set isa.ISA) *cpu.Device {
	t.Helper()
	d, err := cpu.New(cpu.Options{Threads: 2, ISA: set.String(), DType: compute.Float32})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d
}

// near wants products of as many terms of the same numbers.
func near(t *testing.T, what string, got, want []float32) {
	t.Helper()
	for i, w := range want {
		if off := math.Abs(float64(got[i] - w)); !(off < 1e-4*(1+math.Abs(float64(w)))) {
			t.Fatalf("%s: element %d is %v, not %v", what, i, got[i], w)
		}
	}
}

// mixedCodes are sources of which two matrices, then a third, can be made, all of 96 columns.
func mixedCodes(r *rand.Rand) []compute.Codes {
	order := make([]int32, 96)
	for i, v := range r.Perm(96) {
		order[i] = int32(v)
	}
	list := []compute.Codes{
		coded(r, compute.Code4, 24, 96, 32, true), coded(r, compute.Code4, 9, 96, 32, true),
		coded(r, compute.Code8, 40, 96, 16, false), coded(r, compute.CodeE4M3, 17, 96, 0, false),
	}
	list[2].Order = order
	return list
}

// TestUnlikeCodes stacks rectangles that are quantised in different ways, and a plain matrix, and
// wants of each call what the numbers themselves give.
func TestUnlikeCodes(t *testing.T) {
	for _, set := range isa.All() {
		d := codesDevice(t, set)
		r := rand.New(rand.NewPCG(1, uint64(set)))
		sources := mixedCodes(r)
		var plain []compute.Source
		n := 0
		for i := range sources {
			plain = append(plain, dequantised(&sources[i]))
			n += sources[i].Rows
		}
		for _, chunks := range []int{1, 4} {
			w, err := d.PackCodes(chunks, sources...)
			if err != nil {
				t.Fatal(err)
			}
			tail, err := d.Pack(chunks, plain[0])
			if err != nil {
				t.Fatal(err)
			}
			w = d.Join(w, tail)
			all := append(slices.Clone(plain), plain[0])
			want, err := d.Pack(chunks, all...)
			if err != nil {
				t.Fatal(err)
			}
			out := n + sources[0].Rows
			if w.Out() != out || w.In() != 96 || want.Out() != out {
				t.Fatalf("%d of %d, %d", w.Out(), w.In(), want.Out())
			}
			for _, rows := range []int{1, 3, 20} {
				what := fmt.Sprintf("%v, %d chunks, %d rows", set, chunks, rows)
				x := cpu.Over(random(rows*100), rows, 100).Columns(3, 96)
				bias := d.Vector(random(out))
				var got, right compute.Tensor
				d.Resize(&got, rows, out)
				d.Resize(&right, rows, out)
				w.Product(got.All(), x, bias)
				want.Product(right.All(), x, bias)
				near(t, what, got.Floats(), right.Floats())
				w.ProductAdded(got.All(), x)
				want.ProductAdded(right.All(), x)
				near(t, what+", added", got.Floats(), right.Floats())
				w.ProductChunks(&got, x)
				want.ProductChunks(&right, x)
				if got.Rows != chunks*rows || got.Width != out {
					t.Fatalf("%s: chunks are %d x %d", what, got.Rows, got.Width)
				}
				// The chunks of ordered columns are others.
				near(t, what+", chunks", summed(&got, chunks), summed(&right, chunks))
			}
			if w.Bytes() <= tail.Bytes() {
				t.Errorf("%v: %d bytes of %d", set, w.Bytes(), tail.Bytes())
			}
			planned, err := cpu.Planner{}.CodesBytes(chunks, sources...)
			if err != nil || int64(w.Bytes()-tail.Bytes()) > planned {
				t.Errorf("%v: %d bytes of codes, planned were %d: %v", set, w.Bytes()-tail.Bytes(),
					planned, err)
			}
			w.Free()
			want.Free()
		}
	}
}

// summed is the sum of the chunks of a product.
func summed(parts *compute.Tensor, chunks int) []float32 {
	v := parts.Floats()
	size := len(v) / chunks
	sum := slices.Clone(v[:size])
	for i, x := range v[size:] {
		sum[i%size] += x
	}
	return sum
}

// TestCodedExperts computes a mixture of experts of codes, and of the same numbers.
func TestCodedExperts(t *testing.T) {
	const hidden, inner, experts, chunks = 64, 96, 5, 4
	for _, set := range isa.All() {
		d := codesDevice(t, set)
		r := rand.New(rand.NewPCG(2, uint64(set)))
		mix := func(pack func(chunks int, c compute.Codes) (compute.Weight, error),
			sources []compute.Codes) *compute.Mixture {
			m := &compute.Mixture{Routing: compute.Routing{PerToken: 2, Normalise: true},
				Gating: compute.Gating{Activation: compute.SiLU}, Chunks: chunks}
			for e := range experts {
				up, err := pack(1, sources[2*e])
				if err != nil {
					t.Fatal(err)
				}
				down, err := pack(chunks, sources[2*e+1])
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(up.Free)
				t.Cleanup(down.Free)
				m.Experts = append(m.Experts, compute.Expert{GateUp: up, Down: down})
			}
			return m
		}
		var sources []compute.Codes
		for range experts {
			sources = append(sources, coded(r, compute.Code4, 2*inner, hidden, 32, false),
				coded(r, compute.Code4, hidden, inner, 32, false))
		}
		codes := mix(func(chunks int, c compute.Codes) (compute.Weight, error) {
			return d.PackCodes(chunks, c)
		}, sources)
		plain := mix(func(chunks int, c compute.Codes) (compute.Weight, error) {
			return d.Pack(chunks, dequantised(&c))
		}, sources)
		for _, rows := range []int{1, 30} {
			x, scores := random(rows*hidden), random(rows*experts)
			var got, want compute.Tensor
			d.Mix(&got, cpu.Over(x, rows, hidden), cpu.Over(slices.Clone(scores), rows, experts),
				codes)
			d.Mixed(&got, codes)
			d.Mix(&want, cpu.Over(x, rows, hidden), cpu.Over(slices.Clone(scores), rows, experts),
				plain)
			d.Mixed(&want, plain)
			near(t, fmt.Sprintf("%v, %d rows", set, rows), got.Floats(), want.Floats())
		}
	}
}

// TestCodesRetired wants the memory of a retired weight, or of a reserved one, to be that of the
// next.
func TestCodesRetired(t *testing.T) {
	d := codesDevice(t, isa.Best())
	r := rand.New(rand.NewPCG(3, 3))
	sources := mixedCodes(r)
	x := cpu.Over(random(96), 1, 96)
	product := func(w compute.Weight) []float32 {
		var y compute.Tensor
		d.Resize(&y, 1, w.Out())
		w.Product(y.All(), x.All(), nil)
		return slices.Clone(y.Floats())
	}
	w, err := d.PackCodes(2, sources...)
	if err != nil {
		t.Fatal(err)
	}
	want := product(w)
	if err := d.Reserve([]compute.Weight{w}); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		next, err := d.PackCodes(2, sources...)
		if err != nil {
			t.Fatal(err)
		}
		if got := product(next); !slices.Equal(got, want) {
			t.Fatal("a weight in the memory of another has other products")
		}
		d.Retire(w)
		w = next
	}
	w.Free()
}

// TestCodesNotFinite wants the source to be named that has a scale which is no number.
func TestCodesNotFinite(t *testing.T) {
	d := codesDevice(t, isa.Best())
	r := rand.New(rand.NewPCG(4, 4))
	for i := range mixedCodes(r) {
		sources := mixedCodes(r)
		sources[i].Scale[len(sources[i].Scale)-1] = float32(math.Inf(1))
		_, err := d.PackCodes(1, sources...)
		var bad *compute.NotFinite
		if !errors.As(err, &bad) || bad.Source != i {
			t.Errorf("source %d: %v", i, err)
		}
	}
}
