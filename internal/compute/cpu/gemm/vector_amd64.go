package gemm

import (
	"github.com/eagleray/eagleray/internal/compute/cpu/isa"
	"github.com/eagleray/eagleray/internal/sys/half"
)

//go:generate go run ./gen

// vectorKernels returns the assembler kernels for the options, or nil for the portable set.
func vectorKernels(o Options) *kernelSet {
	switch {
	case o.ISA == isa.Portable:
		return nil
	case o.Rounded && o.ISA == isa.AVX512BF16:
		return &avx512DOT
	case o.Rounded:
		return &amxBLOCK
	case o.ISA == isa.AVX2:
		return [kinds]*kernelSet{&avx2BF16, &avx2F16, &avx2F32, &avx2I8}[o.Kind]
	}
	return [kinds]*kernelSet{&avx512BF16, &avx512F16, &avx512F32, &avx512I8}[o.Kind]
}

// halfRow rounds src to bf16 in dst, which is at least as long. It is called only where there is
// AVX2.
func halfRow(dst []uint16, src []float32) {
	n := len(src) &^ 15
	if n > 0 {
		roundAVX2(&dst[:n][0], &src[0], n)
	}
	for i, v := range src[n:] {
		dst[n+i] = half.ToBF16(v)
	}
}

// roundRow rounds src to bf16 in dst, which is at least as long, as fp32. It is called only where
// there is AVX2.
func roundRow(dst, src []float32) {
	n := len(src) &^ 7
	if n > 0 {
		roundFloatsAVX2(&dst[:n][0], &src[0], n)
	}
	for i, v := range src[n:] {
		dst[n+i] = BF16.round(v)
	}
}

// roundAVX2 rounds n elements, a positive multiple of 16, as half.ToBF16 does.
//
//go:noescape
func roundAVX2(dst *uint16, src *float32, n int)

// roundFloatsAVX2 rounds n elements, a positive multiple of 8, as half.ToBF16 does.
//
//go:noescape
func roundFloatsAVX2(dst, src *float32, n int)
