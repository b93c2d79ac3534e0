package cpu

import (
	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu/gemm"
)

// memory is float32 values in this machine's memory. It keeps what its largest shape took, so that
// steps allocate nothing.
type memory struct {
	data []float32
	// blocks are the values where products alone read them, if so says that they lie there.
	blocks   gemm.Blocks
	inBlocks bool
}

// Host implements compute.Memory.
func (m *memory) Host() []float32 { return m.data }

// Filled implements compute.Memory: what is written is there.
func (m *memory) Filled() {}

// Vector is a copy of v, which is as long.
func (d *Device) Vector(v []float32) compute.Memory {
	return &memory{data: append([]float32(nil), v...)}
}

// Resize gives t a shape; what it held is not kept.
func (d *Device) Resize(t *compute.Tensor, rows, width int) {
	m, _ := t.Memory.(*memory)
	if m == nil {
		m = new(memory)
		t.Memory = m
	}
	m.data, m.inBlocks = grow(m.data, rows*width), false
	t.Rows, t.Width = rows, width
}

// Extend adds rows to t, to be filled; those it has are kept.
func (d *Device) Extend(t *compute.Tensor, rows int) {
	before := floats(t.Memory)
	d.Resize(t, t.Rows+rows, t.Width)
	copy(floats(t.Memory), before)
}

// floats are the values of a memory of this device, nil for nil.
func floats(m compute.Memory) []float32 {
	if m == nil {
		return nil
	}
	return m.(*memory).data
}

// view are the values of a view from its first one on.
func view(v compute.View) []float32 { return floats(v.Memory)[v.From:] }

// grow returns s with n elements, keeping its memory when it is large enough. Contents are not
// kept.
func grow[E any](s []E, n int) []E {
	if cap(s) >= n {
		return s[:n]
	}
	return make([]E, n+n/4)[:n]
}
