package layers

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
)

// tensorsOf is a source of tensors that are written by hand.
type tensorsOf map[string]checkpoint.Tensor

func (s tensorsOf) open(name string, shape []int) (checkpoint.Tensor, error) {
	t, ok := s[name]
	if !ok || !slices.Equal(t.Shape, shape) {
		return t, fmt.Errorf("tensor %q has shape %v, not %v", name, t.Shape, shape)
	}
	t.Name = name
	return t, nil
}

func (s tensorsOf) Tensor(name string, shape ...int) (checkpoint.Tensor, error) {
	return s.open(name, shape)
}

func (s tensorsOf) Stored(name string, _ checkpoint.DType, shape ...int) (checkpoint.Tensor,
	error) {
	return s.open(name, shape)
}

func (s tensorsOf) Header(name string) (checkpoint.Tensor, bool) {
	t, ok := s[name]
	t.Name = name
	return t, ok
}

func (s tensorsOf) Has(name string) bool                { return s[name].Shape != nil }
func (s tensorsOf) Release(checkpoint.Tensor)           {}
func (s tensorsOf) Rest(checkpoint.Tensor)              {}
func (s tensorsOf) Watch(checkpoint.Tensor) func() bool { return nil }

func raw(d checkpoint.DType, shape []int, data ...byte) checkpoint.Tensor {
	return checkpoint.Tensor{DType: d, Shape: shape, Data: data}
}

// numbers decodes a part as the weights that its codes stand for.
func numbers(t *testing.T, src Source, f Format, p part) (list []float32) {
	t.Helper()
	d, err := cpu.New(cpu.Options{Threads: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	l := NewLoader(d, Group{Size: 1}, src, nil)
	o := opener{l: l}
	defer o.release()
	blocks, err := Stored{Of: func(string) Format { return f }}.blocks(&o, []part{p})
	if err != nil {
		t.Fatal(err)
	}
	var all decoding
	if l.decode(&all, blocks); all.err != nil {
		t.Fatal(all.err)
	}
	c := &blocks[0].codes
	if err := c.Check(); err != nil {
		t.Fatal(err)
	}
	u := unpacking{c, make([]byte, 4*c.Rows*c.Cols)}
	for row := range c.Rows {
		u.Do(row, 0)
	}
	for i := range c.Rows * c.Cols {
		list = append(list, number(checkpoint.Tensor{DType: checkpoint.F32, Data: u.data}, i))
	}
	return list
}

// pieceOf is rows and columns of module m, of 8 by 8.
func pieceOf(rowLo, rowHi, colLo, colHi int) part {
	return part{module: "m", rows: 8, cols: 8, rowLo: rowLo, rowHi: rowHi, colLo: colLo,
		colHi: colHi}
}

// TestFormats unpacks matrices of 8 by 8 that are written down byte by byte.
func TestFormats(t *testing.T) {
	zeros := make([]byte, 64)
	with := func(n int, at int, b ...byte) []byte {
		data := slices.Clone(zeros[:n])
		copy(data[at:], b)
		return data
	}
	half1, half2 := []byte{0, 0x3c}, []byte{0, 0x40} // 1 and 2 as float16
	scales := slices.Concat(slices.Repeat(half1, 8), slices.Repeat(half2, 8))
	gptq := tensorsOf{
		// One word of 8 input features for each output feature: that of 2 has codes 0 to 7.
		"m.qweight": raw(checkpoint.I32, []int{1, 8}, with(32, 8, 0x10, 0x32, 0x54, 0x76)...),
		// One word of 8 output features for each group: of 2 the codes are 2 and 4, less one.
		"m.qzeros": raw(checkpoint.I32, []int{2, 1}, 0, 0x01, 0, 0, 0, 0x03, 0, 0),
		"m.scales": raw(checkpoint.F16, []int{2, 8}, scales...),
	}
	awq := tensorsOf{
		// One word of 8 output features for each input feature: 2 is the second half byte.
		"m.qweight": raw(checkpoint.I32, []int{8, 1}, 0, 0, 0, 0, 0x10, 0, 0, 0, 0x20, 0, 0, 0,
			0x30, 0, 0, 0, 0x40, 0, 0, 0, 0x50, 0, 0, 0, 0x60, 0, 0, 0, 0x70, 0, 0, 0),
		"m.qzeros": raw(checkpoint.I32, []int{2, 1}, 0x20, 0, 0, 0, 0x40, 0, 0, 0),
		"m.scales": raw(checkpoint.F16, []int{2, 8}, scales...),
	}
	ordered := tensorsOf{
		"m.qweight": gptq["m.qweight"], "m.qzeros": gptq["m.qzeros"], "m.scales": gptq["m.scales"],
		"m.g_idx": raw(checkpoint.I32, []int{8}, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0,
			1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0),
	}
	both := slices.Concat(slices.Repeat(slices.Concat(half1, half2), 8))
	packed := tensorsOf{
		"m.weight_packed": raw(checkpoint.I32, []int{8, 1}, with(32, 8, 0x10, 0x32, 0x54, 0x76)...),
		"m.weight_scale":  raw(checkpoint.F16, []int{8, 2}, both...),
		"m.weight_shape":  raw(checkpoint.I64, []int{2}, with(16, 0, 8, 0, 0, 0, 0, 0, 0, 0, 8)...),
		// One word of 8 output features and each of two groups.
		"m.weight_zero_point": raw(checkpoint.I32, []int{1, 2}, 0, 0x02, 0, 0, 0, 0x04, 0, 0),
	}
	narrow := maps.Clone(packed)
	narrow["m.weight_shape"] = raw(checkpoint.I32, []int{2}, 8, 0, 0, 0, 8, 0, 0, 0)
	block := tensorsOf{
		"m.weight": raw(checkpoint.F8E4M3, []int{8, 8}, with(64, 16, 0x38, 0xb8, 0x40, 0x3c, 0x38,
			0xb8, 0x40, 0x3c)...),
		"m.weight_scale_inv": raw(checkpoint.F16, []int{2, 2}, slices.Concat(half1, half2, half2,
			half2)...),
	}
	bytes := tensorsOf{
		"m.weight": raw(checkpoint.I8, []int{8, 8}, with(64, 16, 127, 0x81, 0, 1)...),
		"m.SCB":    raw(checkpoint.F32, []int{8}, with(32, 8, 0, 0, 0xfe, 0x42)...), // 127
	}
	const state = `{"quant_type":"nf4","blocksize":4,"shape":[8,8],"nested_offset":1}`
	// Of a byte's numbers the first is in the high half.
	blocks4 := tensorsOf{
		"m.weight":        raw(checkpoint.U8, []int{32, 1}, with(32, 8, 0x01, 0x23, 0x10, 0x32)...),
		"m.weight.absmax": raw(checkpoint.U8, []int{16}, with(16, 4, 1, 2)...),
		"m.weight.quant_map": raw(checkpoint.F32, []int{16}, with(64, 4, 0, 0, 0x80, 0x3f, 0, 0, 0,
			0x40, 0, 0, 0x80, 0x40)...), // 0, 1, 2, 4
		"m.weight.nested_quant_map": raw(checkpoint.F32, []int{256}, slices.Concat(with(16, 4, 0, 0,
			0x80, 0x3f, 0, 0, 0, 0x40), make([]byte, 1008))...), // 0, 1, 2
		"m.weight.nested_absmax": raw(checkpoint.F32, []int{1}, 0, 0, 0x80, 0x3f),
		"m.weight.quant_state.bitsandbytes__nf4": raw(checkpoint.U8, []int{len(state)},
			[]byte(state)...),
	}
	for _, tc := range []struct {
		name string
		src  tensorsOf
		Format
		part
		want []float32
	}{
		{"gptq", gptq, GPTQ{Bits: 4, Group: 4}, pieceOf(2, 3, 0, 8),
			[]float32{-2, -1, 0, 1, 0, 2, 4, 6}},
		{"gptq_v2", gptq, GPTQ{Bits: 4, Group: 4, Exact: true}, pieceOf(2, 3, 0, 8),
			[]float32{-1, 0, 1, 2, 2, 4, 6, 8}},
		{"gptq from within a group", gptq, GPTQ{Bits: 4, Group: 4}, pieceOf(2, 3, 3, 6),
			[]float32{1, 0, 2}},
		{"gptq in an order", ordered, GPTQ{Bits: 4, Group: 4}, pieceOf(2, 3, 0, 8),
			[]float32{-8, -1, -4, 1, 0, 3, 4, 5}},
		{"awq", awq, AWQ{Group: 4}, pieceOf(1, 3, 0, 8),
			[]float32{0, 0, 0, 0, 0, 0, 0, 0, -2, -1, 0, 1, 0, 2, 4, 6}},
		{"awq from within a group", awq, AWQ{Group: 4}, pieceOf(2, 3, 5, 8), []float32{2, 4, 6}},
		{"packed", packed, Packed{Bits: 4, Group: 4, Symmetric: true}, pieceOf(2, 3, 0, 8),
			[]float32{-8, -7, -6, -5, -8, -6, -4, -2}},
		{"packed with a shape of 32 bits", narrow, Packed{Bits: 4, Group: 4, Symmetric: true},
			pieceOf(2, 3, 0, 8), []float32{-8, -7, -6, -5, -8, -6, -4, -2}},
		{"packed with zero points", packed, Packed{Bits: 4, Group: 4}, pieceOf(2, 3, 1, 7),
			[]float32{-1, 0, 1, 0, 2, 4}},
		{"fp8 in blocks", block, Scaled{Float: true, Scale: ".weight_scale_inv", Rows: 4, Cols: 4},
			pieceOf(2, 3, 0, 8), []float32{1, -1, 2, 1.5, 2, -2, 4, 3}},
		{"eight bits", bytes, Scaled{Scale: ".SCB", Rows: 1, Largest: 127}, pieceOf(2, 3, 0, 4),
			[]float32{127, -127, 0, 1}},
		{"nf4", blocks4, Blocks4{Type: "nf4", Nested: true}, pieceOf(2, 3, 0, 8),
			[]float32{0, 2, 4, 8, 3, 0, 12, 6}},
		{"nf4 from within a byte", blocks4, Blocks4{Type: "nf4", Nested: true}, pieceOf(2, 3, 3, 6),
			[]float32{8, 3, 0}},
	} {
		if got := numbers(t, tc.src, tc.Format, tc.part); !slices.Equal(got, tc.want) {
			t.Errorf("%s: %v, not %v", tc.name, got, tc.want)
		}
	}
}

// TestTiles wants codes that lie in tiles refused, and not in rows only.
func TestTiles(t *testing.T) {
	src := tensorsOf{"m.weight": raw(checkpoint.I8, []int{8, 8}, make([]byte, 64)...),
		"m.SCB":           raw(checkpoint.F32, []int{8}, make([]byte, 32)...),
		"m.weight_format": raw(checkpoint.U8, nil, 0)}
	f := Scaled{Scale: ".SCB", Rows: 1, Largest: 127, Order: ".weight_format"}
	numbers(t, src, f, pieceOf(0, 8, 0, 8))
	src["m.weight_format"] = raw(checkpoint.U8, nil, 2)
	p := pieceOf(0, 8, 0, 8)
	o := opener{l: NewLoader(nil, Group{Size: 1}, src, nil)}
	if f.open(&o, &p); o.err == nil || !strings.Contains(o.err.Error(), `"m.weight_format" is 2`) {
		t.Errorf("error %v", o.err)
	}
}

// TestInt4 rounds a row so that the number of largest magnitude stays as it is.
func TestInt4(t *testing.T) {
	v := []float32{-0.5, 0.25, 0.0625, 0.03125, 0.09375, 0.49, 0, -0.44}
	data := make([]byte, 4*len(v))
	for i, x := range v {
		putUint32(data[4*i:], math.Float32bits(x))
	}
	m := &rounded{&compute.Source{DType: compute.Float32, Data: data, Rows: 1, Cols: 8, RowHi: 1,
		ColHi: 8}, 4, "m"}
	for _, lead := range []int{0, 1} {
		c := compute.Codes{Values: signed, Rows: 1, Cols: 8 - lead, Group: 4, Lead: lead,
			Code: make([]byte, 8-lead), Scale: make([]float32, 2)}
		if err := m.decode(&c, 0, run{0, 1, 1}, lead); err != nil {
			t.Fatal(err)
		}
		if want := []byte{0, 12, 9, 8, 6, 0, 8, 15}; !slices.Equal(c.Code, want[lead:]) ||
			c.Scale[0] != 0.0625 || c.Scale[1] != 0.49/-8 {
			t.Errorf("%v, %v, not %v", c.Code, c.Scale, want[lead:])
		}
	}
	putUint32(data[4:], 0x7fc00000)
	c := compute.Codes{Rows: 1, Cols: 8, Group: 4, Code: make([]byte, 8), Scale: make([]float32, 2)}
	err := m.decode(&c, 0, run{0, 1, 1}, 0)
	if err == nil || !strings.Contains(err.Error(), `"m": element [0 1] is NaN`) {
		t.Error(err)
	}
}
