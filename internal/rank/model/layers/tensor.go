package layers

import "unsafe"

// Tensor is a matrix of activations, [rows][width] of float32, in the device's memory. Its zero
// value is empty. It keeps the memory of the largest shape it had, so that steps allocate nothing.
type Tensor struct {
	data        []float32 // rows·width values
	rows, width int
}

// Resize gives t a shape; what it held is not kept.
func (t *Tensor) Resize(rows, width int) {
	t.data = grow(t.data, rows*width)
	t.rows, t.width = rows, width
}

// extend adds rows to t, to be filled.
func (t *Tensor) extend(rows int) {
	before := t.data
	t.Resize(t.rows+rows, t.width)
	copy(t.data, before)
}

// Bytes are the values as they lie in memory, row after row: what another process is sent, or to be
// filled with what it sent. They are the tensor's own memory, valid until the next Resize.
func (t *Tensor) Bytes() []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(t.data))), 4*len(t.data))
}

// Floats are the values, row after row, in the same memory.
func (t *Tensor) Floats() []float32 { return t.data }

// Multiply multiplies x by a factor.
func (r *rank) Multiply(x *Tensor, factor float32) {
	r.dev.Scale(x.data, factor, x.rows, x.width)
}

// AddTo adds x to sum.
func (r *rank) AddTo(sum, x *Tensor) { r.dev.Add(sum.data, x.data, x.rows, x.width) }

// Pick makes t the given rows of x, in that order.
func (t *Tensor) Pick(x *Tensor, rows []int32) {
	t.Resize(len(rows), x.width)
	for i, r := range rows {
		copy(t.Row(i), x.Row(int(r)))
	}
}

// Row is one row of the tensor, in its memory.
func (t *Tensor) Row(i int) []float32 { return t.data[i*t.width : (i+1)*t.width] }

// grow returns s with n elements, keeping its memory when it is large enough. Contents are not
// kept.
func grow[E any](s []E, n int) []E {
	if cap(s) >= n {
		return s[:n]
	}
	return make([]E, n+n/4)[:n]
}
