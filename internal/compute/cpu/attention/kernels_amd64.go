package attention

import (
	"unsafe"

	"github.com/eagleray/eagleray/internal/compute"
)

// avx2Kernels returns the kernels of the element kind.
func avx2Kernels(k compute.DType) *kernels {
	switch k {
	case compute.BFloat16:
		return &kernels{
			qk1BF16, qk2BF16, qk4BF16, qk6BF16, nil,
			pv1x1BF16, pv1x2BF16, pv1x4BF16, pv2x2BF16, pv4BF16, pv6BF16, nil, nil,
			1, 2, turnBF16,
		}
	case compute.Float16:
		return &kernels{
			qk1F16, qk2F16, qk4F16, qk6F16, nil,
			pv1x1F16, pv1x2F16, pv1x4F16, pv2x2F16, pv4F16, pv6F16, nil, nil,
			1, 2, turnF16,
		}
	case compute.Int8:
		return &kernels{
			qk1Int8, qk2Int8, qk4Int8, qk6Int8, nil,
			pv1x1Int8, pv1x2Int8, pv1x4Int8, pv2x2Int8, pv4Int8, pv6Int8, nil, nil,
			1, 2, turnCodes,
		}
	case compute.E4M3:
		return &kernels{
			qk1E4M3, qk2E4M3, qk4E4M3, qk6E4M3, nil,
			pv1x1E4M3, pv1x2E4M3, pv1x4E4M3, pv2x2E4M3, pv4E4M3, pv6E4M3, nil, nil,
			1, 2, turnCodes,
		}
	}
	return &kernels{
		qk1F32, qk2F32, qk4F32, qk6F32, nil,
		pv1x1F32, pv1x2F32, pv1x4F32, pv2x2F32, pv4F32, pv6F32, nil, nil,
		1, 2, turnF32,
	}
}

// avx512Kernels returns those of AVX-512, and those of AVX2 for fewer queries.
func avx512Kernels(k compute.DType) *kernels {
	all := avx2Kernels(k)
	all.wide = 2
	switch k {
	case compute.BFloat16:
		all.qk4, all.qk6, all.qk12 = qk4x2BF16, qk6x2BF16, qk12x2BF16
		all.pv4, all.pv6 = pv4x2BF16, pv6x2BF16
		all.pv12, all.pv12x2 = pv12BF16, pv12x2BF16
	case compute.Float16:
		all.qk4, all.qk6, all.qk12 = qk4x2F16, qk6x2F16, qk12x2F16
		all.pv4, all.pv6 = pv4x2F16, pv6x2F16
		all.pv12, all.pv12x2 = pv12F16, pv12x2F16
	case compute.Int8:
		all.qk4, all.qk6, all.qk12 = qk4x2Int8, qk6x2Int8, qk12x2Int8
		all.pv4, all.pv6 = pv4x2Int8, pv6x2Int8
		all.pv12, all.pv12x2 = pv12Int8, pv12x2Int8
		all.qk1, all.qk2 = qk1x4Int8, qk2x4Int8
		all.pv1x4, all.pv2, all.pair = pv1x4x512Int8, pv2x4Int8, 4
	case compute.E4M3:
		all.qk4, all.qk6, all.qk12 = qk4x2E4M3, qk6x2E4M3, qk12x2E4M3
		all.pv4, all.pv6 = pv4x2E4M3, pv6x2E4M3
		all.pv12, all.pv12x2 = pv12E4M3, pv12x2E4M3
		all.qk1, all.qk2 = qk1x4E4M3, qk2x4E4M3
		all.pv1x4, all.pv2, all.pair = pv1x4x512E4M3, pv2x4E4M3, 4
	default:
		all.qk4, all.qk6, all.qk12 = qk4x2F32, qk6x2F32, qk12x2F32
		all.pv4, all.pv6 = pv4x2F32, pv6x2F32
		all.pv12, all.pv12x2 = pv12F32, pv12x2F32
	}
	return all
}

//go:noescape
func qk1BF16(base unsafe.Pointer, offs *int, tiles int,
	q *float32, qStride, dim int, scale float32, out *float32, outStride int)

//go:noescape
func qk2BF16(base unsafe.Pointer, offs *int, tiles int,
	q *float32, qStride, dim int, scale float32, out *float32, outStride int)

//go:noescape
func qk4BF16(base unsafe.Pointer, offs *int, tiles int,
	q *float32, qStride, dim int, scale float32, out *float32, outStride int)

//go:noescape
func qk6BF16(base unsafe.Pointer, offs *int, tiles int,
	q *float32, qStride, dim int, scale float32, out *float32, outStride int)

//go:noescape
func pv1x1BF16(base unsafe.Pointer, offs *int, first, count, slices int,
	p *float32, pStride int, acc *float32, accStride int)

//go:noescape
func pv1x2BF16(base unsafe.Pointer, offs *int, first, count, slices int,
	p *float32, pStride int, acc *float32, accStride int)

//go:noescape
func pv1x4BF16(base unsafe.Pointer, offs *int, first, count, slices int,
	p *float32, pStride int, acc *float32, accStride int)

//go:noescape
func pv2x2BF16(base unsafe.Pointer, offs *int, first, count, slices int,
	p *float32, pStride int, acc *float32, accStride int)

//go:noescape
func pv4BF16(base unsafe.Pointer, offs *int, first, count, slices int,
	p *float32, pStride int, acc *float32, accStride int)

//go:noescape
func pv6BF16(base unsafe.Pointer, offs *int, first, count, slices int,
	p *float32, pStride int, acc *float32, accStride int)

//go:noescape
func qk1F16(base unsafe.Pointer, offs *int, tiles int,
	q *float32, qStride, dim int, scale float32, out *float32, outStride int)

//go:noescape
func qk2F16(base unsafe.Pointer, offs *int, tiles int,
	q *float32, qStride, dim int, scale float32, out *float32, outStride int)

//go:noescape
func qk4F16(base unsafe.Pointer, offs *int, tiles int,
	q *float32, qStride, dim int, scale float32, out *float32, outStride int)

//go:noescape
func qk6F16(base unsafe.Pointer, offs *int, tiles int,
	q *float32, qStride, dim int, scale float32, out *float32, outStride int)

//go:noescape
func pv1x1F16(base unsafe.Pointer, offs *int, first, count, slices int,
	p *float32, pStride int, acc *float32, accStride int)

//go:noescape
func pv1x2F16(base unsafe.Pointer, offs *int, first, count, slices int,
	p *float32, pStride int, acc *float32, accStride int)

//go:noescape
func pv1x4F16(base unsafe.Pointer, offs *int, first, count, slices int,
	p *float32, pStride int, acc *float32, accStride int)

//go:noescape
func pv2x2F16(base unsafe.Pointer, offs *int, first, count, slices int,
	p *float32, pStride int, acc *float32, accStride int)

//go:noescape
func pv4F16(base unsafe.Pointer, offs *int, first, count, slices int,
	p *float32, pStride int, acc *float32, accStride int)

//go:noescape
func pv6F16(base unsafe.Pointer, offs *int, first, count, slices int,
	p *float32, pStride int, acc *float32, accStride int)

//go:noescape
func qk1F32(base unsafe.Pointer, offs *int, tiles int,
	q *float32, qStride, dim int, scale float32, out *float32, outStride int)

//go:noescape
func qk2F32(base unsafe.Pointer, offs *int, tiles int,
	q *float32, qStride, dim int, scale float32, out *float32, outStride int)

//go:noescape
func qk4F32(base unsafe.Pointer, offs *int, tiles int,
	q *float32, qStride, dim int, scale float32, out *float32, outStride int)

//go:noescape
func qk6F32(base unsafe.Pointer, offs *int, tiles int,
	q *float32, qStride, dim int, scale float32, out *float32, outStride int)

//go:noescape
func pv1x1F32(base unsafe.Pointer, offs *int, first, count, slices int,
	p *float32, pStride int, acc *float32, accStride int)

//go:noescape
func pv1x2F32(base unsafe.Pointer, offs *int, first, count, slices int,
	p *float32, pStride int, acc *float32, accStride int)

//go:noescape
func pv1x4F32(base unsafe.Pointer, offs *int, first, count, slices int,
	p *float32, pStride int, acc *float32, accStride int)

//go:noescape
func pv2x2F32(base unsafe.Pointer, offs *int, first, count, slices int,
	p *float32, pStride int, acc *float32, accStride int)

//go:noescape
func pv4F32(base unsafe.Pointer, offs *int, first, count, slices int,
	p *float32, pStride int, acc *float32, accStride int)

//go:noescape
func pv6F32(base unsafe.Pointer, offs *int, first, count, slices int,
	p *float32, pStride int, acc *float32, accStride int)

//go:noescape
func turnBF16(dst, src unsafe.Pointer, slices int)

//go:noescape
func turnF16(dst, src unsafe.Pointer, slices int)

//go:noescape
func turnF32(dst, src unsafe.Pointer, slices int)

//go:noescape
func qk12x2BF16(base unsafe.Pointer, offs *int, tiles int,
	q *float32, qStride, dim int, scale float32, out *float32, outStride int)

//go:noescape
func pv12x2BF16(base unsafe.Pointer, offs *int, first, count, slices int,
	p *float32, pStride int, acc *float32, accStride int)

//go:noescape
func pv12BF16(base unsafe.Pointer, offs *int, first, count, slices int,
	p *float32, pStride int, acc *float32, accStride int)

//go:noescape
func qk12x2F16(base unsafe.Pointer, offs *int, tiles int,
	q *float32, qStride, dim int, scale float32, out *float32, outStride int)

//go:noescape
func pv12x2F16(base unsafe.Pointer, offs *int, first, count, slices int,
	p *float32, pStride int, acc *float32, accStride int)

//go:noescape
func pv12F16(base unsafe.Pointer, offs *int, first, count, slices int,
	p *float32, pStride int, acc *float32, accStride int)

//go:noescape
func qk12x2F32(base unsafe.Pointer, offs *int, tiles int,
	q *float32, qStride, dim int, scale float32, out *float32, outStride int)

//go:noescape
func pv12x2F32(base unsafe.Pointer, offs *int, first, count, slices int,
	p *float32, pStride int, acc *float32, accStride int)

//go:noescape
func pv12F32(base unsafe.Pointer, offs *int, first, count, slices int,
	p *float32, pStride int, acc *float32, accStride int)

//go:noescape
func qk4x2BF16(base unsafe.Pointer, offs *int, tiles int,
	q *float32, qStride, dim int, scale float32, out *float32, outStride int)

//go:noescape
func pv4x2BF16(base unsafe.Pointer, offs *int, first, count, slices int,
	p *float32, pStride int, acc *float32, accStride int)

//go:noescape
func qk6x2BF16(base unsafe.Pointer, offs *int, tiles int,
	q *float32, qStride, dim int, scale float32, out *float32, outStride int)

//go:noescape
func pv6x2BF16(base unsafe.Pointer, offs *int, first, count, slices int,
	p *float32, pStride int, acc *float32, accStride int)

//go:noescape
func qk4x2F16(base unsafe.Pointer, offs *int, tiles int,
	q *float32, qStride, dim int, scale float32, out *float32, outStride int)

//go:noescape
func pv4x2F16(base unsafe.Pointer, offs *int, first, count, slices int,
	p *float32, pStride int, acc *float32, accStride int)

//go:noescape
func qk6x2F16(base unsafe.Pointer, offs *int, tiles int,
	q *float32, qStride, dim int, scale float32, out *float32, outStride int)

//go:noescape
func pv6x2F16(base unsafe.Pointer, offs *int, first, count, slices int,
	p *float32, pStride int, acc *float32, accStride int)

//go:noescape
func qk4x2F32(base unsafe.Pointer, offs *int, tiles int,
	q *float32, qStride, dim int, scale float32, out *float32, outStride int)

//go:noescape
func pv4x2F32(base unsafe.Pointer, offs *int, first, count, slices int,
	p *float32, pStride int, acc *float32, accStride int)

//go:noescape
func qk6x2F32(base unsafe.Pointer, offs *int, tiles int,
	q *float32, qStride, dim int, scale float32, out *float32, outStride int)

//go:noescape
func pv6x2F32(base unsafe.Pointer, offs *int, first, count, slices int,
	p *float32, pStride int, acc *float32, accStride int)

//go:noescape
func qk1Int8(base unsafe.Pointer, offs *int, tiles int,
	q *float32, qStride, dim int, scale float32, out *float32, outStride int)

//go:noescape
func qk2Int8(base unsafe.Pointer, offs *int, tiles int,
	q *float32, qStride, dim int, scale float32, out *float32, outStride int)

//go:noescape
func qk4Int8(base unsafe.Pointer, offs *int, tiles int,
	q *float32, qStride, dim int, scale float32, out *float32, outStride int)

//go:noescape
func qk6Int8(base unsafe.Pointer, offs *int, tiles int,
	q *float32, qStride, dim int, scale float32, out *float32, outStride int)

//go:noescape
func pv1x1Int8(base unsafe.Pointer, offs *int, first, count, slices int,
	p *float32, pStride int, acc *float32, accStride int)

//go:noescape
func pv1x2Int8(base unsafe.Pointer, offs *int, first, count, slices int,
	p *float32, pStride int, acc *float32, accStride int)

//go:noescape
func pv1x4Int8(base unsafe.Pointer, offs *int, first, count, slices int,
	p *float32, pStride int, acc *float32, accStride int)

//go:noescape
func pv2x2Int8(base unsafe.Pointer, offs *int, first, count, slices int,
	p *float32, pStride int, acc *float32, accStride int)

//go:noescape
func pv4Int8(base unsafe.Pointer, offs *int, first, count, slices int,
	p *float32, pStride int, acc *float32, accStride int)

//go:noescape
func pv6Int8(base unsafe.Pointer, offs *int, first, count, slices int,
	p *float32, pStride int, acc *float32, accStride int)

//go:noescape
func qk12x2Int8(base unsafe.Pointer, offs *int, tiles int,
	q *float32, qStride, dim int, scale float32, out *float32, outStride int)

//go:noescape
func pv12x2Int8(base unsafe.Pointer, offs *int, first, count, slices int,
	p *float32, pStride int, acc *float32, accStride int)

//go:noescape
func pv12Int8(base unsafe.Pointer, offs *int, first, count, slices int,
	p *float32, pStride int, acc *float32, accStride int)

//go:noescape
func qk4x2Int8(base unsafe.Pointer, offs *int, tiles int,
	q *float32, qStride, dim int, scale float32, out *float32, outStride int)

//go:noescape
func pv4x2Int8(base unsafe.Pointer, offs *int, first, count, slices int,
	p *float32, pStride int, acc *float32, accStride int)

//go:noescape
func qk6x2Int8(base unsafe.Pointer, offs *int, tiles int,
	q *float32, qStride, dim int, scale float32, out *float32, outStride int)

//go:noescape
func pv6x2Int8(base unsafe.Pointer, offs *int, first, count, slices int,
	p *float32, pStride int, acc *float32, accStride int)

//go:noescape
func qk1E4M3(base unsafe.Pointer, offs *int, tiles int,
	q *float32, qStride, dim int, scale float32, out *float32, outStride int)

//go:noescape
func qk2E4M3(base unsafe.Pointer, offs *int, tiles int,
	q *float32, qStride, dim int, scale float32, out *float32, outStride int)

//go:noescape
func qk4E4M3(base unsafe.Pointer, offs *int, tiles int,
	q *float32, qStride, dim int, scale float32, out *float32, outStride int)

//go:noescape
func qk6E4M3(base unsafe.Pointer, offs *int, tiles int,
	q *float32, qStride, dim int, scale float32, out *float32, outStride int)

//go:noescape
func pv1x1E4M3(base unsafe.Pointer, offs *int, first, count, slices int,
	p *float32, pStride int, acc *float32, accStride int)

//go:noescape
func pv1x2E4M3(base unsafe.Pointer, offs *int, first, count, slices int,
	p *float32, pStride int, acc *float32, accStride int)

//go:noescape
func pv1x4E4M3(base unsafe.Pointer, offs *int, first, count, slices int,
	p *float32, pStride int, acc *float32, accStride int)

//go:noescape
func pv2x2E4M3(base unsafe.Pointer, offs *int, first, count, slices int,
	p *float32, pStride int, acc *float32, accStride int)

//go:noescape
func pv4E4M3(base unsafe.Pointer, offs *int, first, count, slices int,
	p *float32, pStride int, acc *float32, accStride int)

//go:noescape
func pv6E4M3(base unsafe.Pointer, offs *int, first, count, slices int,
	p *float32, pStride int, acc *float32, accStride int)

//go:noescape
func qk12x2E4M3(base unsafe.Pointer, offs *int, tiles int,
	q *float32, qStride, dim int, scale float32, out *float32, outStride int)

//go:noescape
func pv12x2E4M3(base unsafe.Pointer, offs *int, first, count, slices int,
	p *float32, pStride int, acc *float32, accStride int)

//go:noescape
func pv12E4M3(base unsafe.Pointer, offs *int, first, count, slices int,
	p *float32, pStride int, acc *float32, accStride int)

//go:noescape
func qk4x2E4M3(base unsafe.Pointer, offs *int, tiles int,
	q *float32, qStride, dim int, scale float32, out *float32, outStride int)

//go:noescape
func pv4x2E4M3(base unsafe.Pointer, offs *int, first, count, slices int,
	p *float32, pStride int, acc *float32, accStride int)

//go:noescape
func qk6x2E4M3(base unsafe.Pointer, offs *int, tiles int,
	q *float32, qStride, dim int, scale float32, out *float32, outStride int)

//go:noescape
func pv6x2E4M3(base unsafe.Pointer, offs *int, first, count, slices int,
	p *float32, pStride int, acc *float32, accStride int)

//go:noescape
func turnCodes(dst, src unsafe.Pointer, slices int)

//go:noescape
func qk1x4Int8(base unsafe.Pointer, offs *int, tiles int,
	q *float32, qStride, dim int, scale float32, out *float32, outStride int)

//go:noescape
func qk2x4Int8(base unsafe.Pointer, offs *int, tiles int,
	q *float32, qStride, dim int, scale float32, out *float32, outStride int)

//go:noescape
func pv1x4x512Int8(base unsafe.Pointer, offs *int, first, count, slices int,
	p *float32, pStride int, acc *float32, accStride int)

//go:noescape
func pv2x4Int8(base unsafe.Pointer, offs *int, first, count, slices int,
	p *float32, pStride int, acc *float32, accStride int)

//go:noescape
func qk1x4E4M3(base unsafe.Pointer, offs *int, tiles int,
	q *float32, qStride, dim int, scale float32, out *float32, outStride int)

//go:noescape
func qk2x4E4M3(base unsafe.Pointer, offs *int, tiles int,
	q *float32, qStride, dim int, scale float32, out *float32, outStride int)

//go:noescape
func pv1x4x512E4M3(base unsafe.Pointer, offs *int, first, count, slices int,
	p *float32, pStride int, acc *float32, accStride int)

//go:noescape
func pv2x4E4M3(base unsafe.Pointer, offs *int, first, count, slices int,
	p *float32, pStride int, acc *float32, accStride int)
