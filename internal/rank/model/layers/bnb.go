package layers

import (
	"math"
	"slices"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
)

// Blocks4 is bitsandbytes' layout of four bits: of a module weight, bytes of two codes, the first
// in the high half, [output features·input features/2][1]; weight.quant_map, the numbers that they
// stand for; weight.absmax, a scale for each block of neighbouring codes; and
// weight.quant_state.bitsandbytes__ and the type's name, a JSON object.
//
// With Nested scales are bytes: each stands for a number of weight.nested_quant_map, multiplied by
// one of weight.nested_absmax, to which quant_state's nested_offset is added.
type Blocks4 struct {
	// Type is nf4 or fp4.
	Type   string
	Nested bool
}

// blockState is what quant_state says.
type blockState struct {
	block, nestedBlock int
	offset             float32
}

// mostState bounds the size of a quant_state.
const mostState = 4096

// open implements Format.
func (f Blocks4) open(o *opener, p *part) matrix {
	if o.plain(p, ".weight.absmax") {
		return nil
	}
	state := f.state(o, p)
	if o.err != nil {
		return nil
	}
	name := p.module + ".weight"
	m := &tabled{Codes: compute.Codes{Rows: p.rows, Cols: p.cols, Group: state.block},
		weights: newGrid(p.rows, p.cols, 1, 2, false),
		scales:  newGrid(p.rows, p.cols, 1, state.block, false)}
	blocks := p.rows * m.scales.cols
	m.weights.Tensor = o.tensor(name, checkpoint.U8, p.rows*p.cols/2, 1)
	numbers := o.tensor(name+".quant_map", checkpoint.Invalid, len(m.Values))
	absmax := checkpoint.Invalid
	if f.Nested {
		absmax = checkpoint.U8
	}
	m.scales.Tensor = o.tensor(name+".absmax", absmax, blocks)
	if f.Nested {
		nested := o.tensor(name+".nested_quant_map", checkpoint.Invalid, 256)
		largest := o.tensor(name+".nested_absmax", checkpoint.Invalid,
			(blocks+state.nestedBlock-1)/state.nestedBlock)
		m.scale = func(row, col int) float32 {
			i := m.scales.index(row, col)
			return number(nested, int(m.scales.Data[i]))*number(largest, i/state.nestedBlock) +
				state.offset
		}
		m.finite = func() bool {
			most := largestOf(nested)*largestOf(largest) + math.Abs(float64(state.offset))
			return most < math.MaxFloat32
		}
	}
	if o.err == nil && len(numbers.Data) > 0 {
		for i := range m.Values {
			m.Values[i] = number(numbers, i)
			if v := float64(m.Values[i]); math.IsInf(v, 0) || v != v {
				o.fail("tensor %q: element [%d] is %v", numbers.Name, i, v)
			}
		}
	}
	m.code = m.halves(p.cols/2, true)
	return m
}

// state reads quant_state.
func (f Blocks4) state(o *opener, p *part) blockState {
	usual := blockState{block: 64, nestedBlock: 256}
	name := p.module + ".weight.quant_state.bitsandbytes__" + f.Type
	if !o.has(name, p.module+".weight.absmax") {
		return usual
	}
	h, _ := o.header(name)
	if len(h.Shape) != 1 || h.Shape[0] > mostState {
		o.fail("tensor %q has shape %v, which is no text of at most %d bytes", h.Name, h.Shape,
			mostState)
		return usual
	}
	t := o.tensor(h.Name, checkpoint.U8, h.Shape...)
	if o.err != nil || len(t.Data) == 0 {
		return usual
	}
	j, err := checkpoint.ReadFields(t.Data)
	if err != nil {
		o.fail("tensor %q: %w", h.Name, err)
		return usual
	}
	s := blockState{block: j.Integer("blocksize", 64, 2, 1<<20),
		nestedBlock: j.Integer("nested_blocksize", 256, 1, 1<<20),
		offset:      float32(j.Number("nested_offset", 0, math.Inf(-1)))}
	j.Only("quant_type", f.Type)
	shape := j.Numbers("shape")
	switch want := []float64{float64(p.rows), float64(p.cols)}; {
	case j.Err() != nil:
		o.fail("tensor %q: %w", h.Name, j.Err())
	case !slices.Equal(shape, want):
		o.fail("tensor %q has shape %v, but config.json asks for %v", h.Name, shape, want)
	case p.cols%s.block != 0:
		o.fail("module %q: blocks of %d weights do not divide its %d input features", p.module,
			s.block, p.cols)
	}
	return s
}

// largestOf is the largest magnitude of a tensor's elements, NaN if one of them is.
func largestOf(t checkpoint.Tensor) (most float64) {
	for i := range t.Elements() {
		most = max(most, math.Abs(float64(number(t, i))))
	}
	return most
}
