package attention

import (
	"unsafe"

	"github.com/eagleray/eagleray/internal/compute"
)

// orderedKernels are those of the kinds that tiles take.
func orderedKernels(k compute.DType) *ordered {
	switch k {
	case compute.BFloat16:
		return &ordered{qkOrdered1BF16, qkOrdered2BF16,
			pvOrdered1x1BF16, pvOrdered1x4BF16, pvOrdered2x4BF16}
	case compute.Int8:
		return &ordered{qkOrdered1Int8, qkOrdered2Int8,
			pvOrdered1x1Int8, pvOrdered1x4Int8, pvOrdered2x4Int8}
	case compute.E4M3:
		return &ordered{qkOrdered1E4M3, qkOrdered2E4M3,
			pvOrdered1x1E4M3, pvOrdered1x4E4M3, pvOrdered2x4E4M3}
	}
	return nil
}

//go:noescape
func qkOrdered1BF16(base unsafe.Pointer, offs *int, tiles int,
	q *uint16, qStride, dim int, out *float32, outStride int)

//go:noescape
func qkOrdered2BF16(base unsafe.Pointer, offs *int, tiles int,
	q *uint16, qStride, dim int, out *float32, outStride int)

//go:noescape
func pvOrdered1x1BF16(base unsafe.Pointer, offs *int, first, count, slices int,
	p *uint16, pStride int, acc *float32, accStride int)

//go:noescape
func pvOrdered1x4BF16(base unsafe.Pointer, offs *int, first, count, slices int,
	p *uint16, pStride int, acc *float32, accStride int)

//go:noescape
func pvOrdered2x4BF16(base unsafe.Pointer, offs *int, first, count, slices int,
	p *uint16, pStride int, acc *float32, accStride int)

//go:noescape
func qkOrdered1Int8(base unsafe.Pointer, offs *int, tiles int,
	q *uint16, qStride, dim int, out *float32, outStride int)

//go:noescape
func qkOrdered2Int8(base unsafe.Pointer, offs *int, tiles int,
	q *uint16, qStride, dim int, out *float32, outStride int)

//go:noescape
func pvOrdered1x1Int8(base unsafe.Pointer, offs *int, first, count, slices int,
	p *uint16, pStride int, acc *float32, accStride int)

//go:noescape
func pvOrdered1x4Int8(base unsafe.Pointer, offs *int, first, count, slices int,
	p *uint16, pStride int, acc *float32, accStride int)

//go:noescape
func pvOrdered2x4Int8(base unsafe.Pointer, offs *int, first, count, slices int,
	p *uint16, pStride int, acc *float32, accStride int)

//go:noescape
func qkOrdered1E4M3(base unsafe.Pointer, offs *int, tiles int,
	q *uint16, qStride, dim int, out *float32, outStride int)

//go:noescape
func qkOrdered2E4M3(base unsafe.Pointer, offs *int, tiles int,
	q *uint16, qStride, dim int, out *float32, outStride int)

//go:noescape
func pvOrdered1x1E4M3(base unsafe.Pointer, offs *int, first, count, slices int,
	p *uint16, pStride int, acc *float32, accStride int)

//go:noescape
func pvOrdered1x4E4M3(base unsafe.Pointer, offs *int, first, count, slices int,
	p *uint16, pStride int, acc *float32, accStride int)

//go:noescape
func pvOrdered2x4E4M3(base unsafe.Pointer, offs *int, first, count, slices int,
	p *uint16, pStride int, acc *float32, accStride int)
