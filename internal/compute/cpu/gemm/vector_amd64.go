package gemm

import "github.com/eagleray/eagleray/internal/compute/cpu/isa"

//go:generate go run ./gen

// vectorKernels returns the assembler kernels for the options, or nil for the portable set.
func vectorKernels(o Options) *kernelSet {
	switch {
	case o.ISA == isa.Portable:
		return nil
	case o.BF16Dot:
		return &avx512DOT
	case o.ISA == isa.AVX2:
		return [kinds]*kernelSet{&avx2BF16, &avx2F16, &avx2F32, &avx2I8}[o.Kind]
	}
	return [kinds]*kernelSet{&avx512BF16, &avx512F16, &avx512F32, &avx512I8}[o.Kind]
}

// roundRow rounds src to bf16 in dst, which is at least as long. It is called only where there is
// the bf16 dot product, hence AVX2.
func roundRow(dst []uint16, src []float32) {
	n := len(src) &^ 15
	if n > 0 {
		roundAVX2(&dst[:n][0], &src[0], n)
	}
	roundRowPortable(dst[n:], src[n:])
}

// roundAVX2 rounds n elements, a positive multiple of 16, as half.ToBF16 does.
//
//go:noescape
func roundAVX2(dst *uint16, src *float32, n int)
