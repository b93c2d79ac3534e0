package libcuda

import (
	"fmt"
	"unsafe"

	"github.com/eagleray/eagleray/internal/compute/cuda/driver"
)

// What tensor maps are made of, of CUtensorMapDataType, CUtensorMapInterleave, CUtensorMapSwizzle,
// CUtensorMapL2promotion and CUtensorMapFloatOOBfill.
const (
	elements16    = 1
	notInterleave = 0
	swizzle128    = 3
	promote256    = 3
	zerosOutside  = 0

	boxColumns    = 64 // of 16 bits: what the swizzle is of
	tensorMapSize = 128
	tensorAlign   = 64
)

// tensor is what a tensor map is made of, and room for one.
type tensor struct {
	room    [tensorMapSize + tensorAlign]byte
	dims    [3]uint64
	strides [2]uint64
	box     [3]uint32
	steps   [3]uint32
}

// TensorMap describes a tensor to copies of kernels. Drivers before CUDA 12.0 have none.
func (c *context) TensorMap(t *driver.Tensor) (m driver.TensorMap, err error) {
	if err := c.ended(); err != nil {
		return m, err
	}
	if c.library.addresses[cuTensorMapEncodeTiled] == 0 {
		return m, &driver.Error{Call: cuTensorMapEncodeTiled.String(), Code: driver.NotFound,
			Name: "CUDA_ERROR_NOT_FOUND", Detail: "the driver is older than CUDA 12.0"}
	}
	f := c.calls.acquire()
	defer c.calls.release(f)
	e := &f.tensor
	e.dims = [...]uint64{uint64(t.Columns), uint64(t.Rows), 0}
	e.strides = [...]uint64{uint64(t.Stride), 0}
	e.box, e.steps = [...]uint32{boxColumns, uint32(t.Box), 0}, [...]uint32{1, 1, 1}
	rank := 2
	if t.Places > 0 {
		e.dims = [...]uint64{uint64(t.Columns), uint64(t.Places), uint64(t.Rows)}
		e.strides = [...]uint64{uint64(t.Apart), uint64(t.Stride)}
		e.box, rank = [...]uint32{boxColumns, 1, uint32(t.Box)}, 3
	}
	address := func(p unsafe.Pointer) uintptr { return uintptr(p) }
	skip := -address(unsafe.Pointer(&e.room)) % tensorAlign
	f.args = [len(f.args)]uintptr{address(unsafe.Pointer(&e.room[skip])),
		elements16, uintptr(rank), uintptr(t.Base), address(unsafe.Pointer(&e.dims)),
		address(unsafe.Pointer(&e.strides)), address(unsafe.Pointer(&e.box)),
		address(unsafe.Pointer(&e.steps)), notInterleave, swizzle128, promote256, zerosOutside}
	code := c.library.call(cuTensorMapEncodeTiled, f.args[:]...)
	if code != 0 {
		return m, c.failed(cuTensorMapEncodeTiled, code, fmt.Sprintf("%d rows of %d numbers, "+
			"%d bytes apart, in boxes of %d", t.Rows, t.Columns, t.Stride, t.Box))
	}
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&m)), tensorMapSize), e.room[skip:])
	return m, nil
}
