//go:build !amd64

package attention

import "github.com/eagleray/eagleray/internal/compute"

// avx2Kernels is never called where isa.Available refuses AVX2.
func avx2Kernels(compute.DType) *kernels { return nil }

// avx512Kernels is never called where isa.Available refuses AVX-512.
func avx512Kernels(compute.DType) *kernels { return nil }

// orderedKernels is never called where isa.Available refuses AMX.
func orderedKernels(compute.DType) *ordered { return nil }
