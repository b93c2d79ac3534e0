package cuda_test

import (
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu"
	"github.com/eagleray/eagleray/internal/compute/cuda"
	"github.com/eagleray/eagleray/internal/compute/cuda/double"
)

// someCodes are codes of 40 x 160 in groups.
func someCodes(kind compute.CodeType, group int) compute.Codes {
	c := compute.Codes{Type: kind, Rows: 40, Cols: 160, Group: group, Code: make([]byte, 40*160)}
	c.Scale = make([]float32, c.Rows*c.Groups())
	for i := range c.Scale {
		c.Scale[i] = 1.0 / float32(i+3)
	}
	return c
}

// inOrder has the columns in the opposite order.
func inOrder(c compute.Codes) compute.Codes {
	for i := range c.Cols {
		c.Order = append(c.Order, int32(c.Cols-1-i))
	}
	return c
}

func onDouble(t *testing.T, dtype compute.DType) *cuda.Device {
	d, err := cuda.New(cuda.Options{Driver: &double.Driver{}, DType: dtype, Threads: 1,
		PTX: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d
}

// TestCodesBytes holds what is planned for quantised weights to what they take.
func TestCodesBytes(t *testing.T) {
	d, planner := onDouble(t, compute.BFloat16), cuda.Planner{DType: compute.BFloat16}
	offsets := someCodes(compute.Code4, 32)
	offsets.Offset = offsets.Scale
	for _, codes := range [][]compute.Codes{
		{someCodes(compute.Code4, 32)},
		{someCodes(compute.Code4, 24)}, // which is kept as plain numbers
		{inOrder(someCodes(compute.Code4, 32)), inOrder(someCodes(compute.Code4, 32))},
		{someCodes(compute.CodeE4M3, 0), someCodes(compute.CodeE4M3, 0)},
		{someCodes(compute.Code4, 16), someCodes(compute.Code8, 16), offsets},
	} {
		for _, chunks := range []int{1, 2, 4} {
			want, err := planner.CodesBytes(chunks, codes...)
			if err != nil {
				t.Fatal(err)
			}
			w, err := d.PackCodes(chunks, codes...)
			if err != nil {
				t.Fatal(err)
			}
			if got := int64(w.Bytes()); got > want || got < want*8/10 || w.Out() != 40*len(codes) {
				t.Errorf("%v of %d, %d matrices in %d chunks: %d of %d bytes, %d output features",
					codes[0].Type, codes[0].Group, len(codes), chunks, got, want, w.Out())
			}
			w.Free()
		}
	}
}

// TestCodesOfRanks wants the bits of each chunk from the ranks that have a share of them, whose
// chunks begin within groups, and within products.
func TestCodesOfRanks(t *testing.T) {
	const rows, out, chunks = 3, 20, 8
	for _, shape := range []struct{ in, group int }{{576, 32}, {576, 16}, {720, 48}, {360, 0}} {
		d := onDouble(t, compute.BFloat16)
		s := &subject{device: d, t: t, random: rand.New(rand.NewPCG(3, 4))}
		code, x := make([]byte, out*shape.in), s.floats(rows*shape.in)
		for i := range code {
			code[i] = byte(s.random.Uint32())
		}
		groups := 1
		if shape.group > 0 {
			groups = shape.in / shape.group
		}
		scale := s.floats(out * groups)
		// share is the chunks of one of some ranks.
		share := func(rank, ranks int) []float32 {
			n := shape.in / ranks
			from := rank * n
			c := compute.Codes{Type: compute.Code8, Rows: out, Cols: n, From: from, Of: shape.in,
				Group: shape.group}
			first, last := 0, 1
			if shape.group > 0 {
				c.Lead = from % shape.group
				first, last = from/shape.group, (from+n+shape.group-1)/shape.group
			}
			for r := range out {
				c.Code = append(c.Code, code[r*shape.in+from:][:n]...)
				c.Scale = append(c.Scale, scale[r*groups+first:r*groups+last]...)
			}
			w, err := d.PackCodes(chunks/ranks, c)
			if err != nil {
				t.Fatal(err)
			}
			in, y := new(compute.Tensor), new(compute.Tensor)
			d.Resize(in, rows, n)
			for r := range rows {
				copy(in.Row(r), x[r*shape.in+from:][:n])
			}
			in.Memory.Filled()
			w.ProductChunks(y, in.All())
			return append([]float32(nil), y.Floats()...)
		}
		want := share(0, 1)
		for _, ranks := range []int{2, 4} {
			var got []float32
			for rank := range ranks {
				got = append(got, share(rank, ranks)...)
			}
			for i, v := range want {
				if math.Float32bits(v) != math.Float32bits(got[i]) {
					t.Fatalf("%d in groups of %d by %d ranks: sum %d is %v, not %v", shape.in,
						shape.group, ranks, i, got[i], v)
				}
			}
		}
	}
}

// TestUnsoundCodes wants scales and codes that are no numbers named.
func TestUnsoundCodes(t *testing.T) {
	nan := float32(math.NaN())
	for _, tc := range []struct {
		name, want string
		dtype      compute.DType
		source     int
		spoil      func(c *compute.Codes)
	}{
		{"scale", "row 7, group 2", compute.BFloat16, 1, func(c *compute.Codes) {
			c.Scale[7*c.Groups()+2] = nan
		}},
		{"offset", "row 0, group 1", compute.BFloat16, 0, func(c *compute.Codes) {
			c.Offset = make([]float32, len(c.Scale))
			c.Offset[1] = float32(math.Inf(-1))
		}},
		{"code", "element [3, 17] is NaN", compute.BFloat16, 1, func(c *compute.Codes) {
			c.Code[3*c.Cols+17], c.Code[9*c.Cols] = 0xff, 0x7f
		}},
		{"none", "", compute.Float16, 0, func(*compute.Codes) {}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := onDouble(t, tc.dtype)
			codes := []compute.Codes{someCodes(compute.CodeE4M3, 32),
				someCodes(compute.CodeE4M3, 32)}
			tc.spoil(&codes[tc.source])
			_, err := d.PackCodes(1, codes...)
			if tc.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			var bad *compute.NotFinite
			if !errors.As(err, &bad) || bad.Source != tc.source ||
				!strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v", err)
			}
		})
	}
}

// TestInt8 wants integers made at load to be those of CPUs, and only sums to differ, by rounding.
func TestInt8(t *testing.T) {
	host, err := cpu.New(cpu.Options{Threads: 1, DType: compute.Float32})
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	d := onDouble(t, compute.BFloat16)
	var want []float32
	for _, dev := range []interface {
		device
		PackInt8(chunks int, sources ...compute.Source) (compute.Weight, error)
	}{host, d} {
		s := &subject{device: dev, t: t, random: rand.New(rand.NewPCG(2, 2)), exact: true}
		src := s.source(33, 200)
		src.RowLo, src.ColLo, src.ColHi = 3, 64, 192
		w, err := dev.PackInt8(2, src)
		if err != nil {
			t.Fatal(err)
		}
		x, y := s.tensor(3, 128), s.tensor(3, 30)
		w.Product(y.All(), x.All(), nil)
		got := y.Floats()
		if want == nil {
			want = append(want, got...)
			continue
		}
		for i, v := range want {
			if math.Abs(float64(got[i]-v)) > 0.01 {
				t.Errorf("number %d is %v, not %v", i, got[i], v)
			}
		}
	}
	if d.Err() != nil {
		t.Error(d.Err())
	}
}
