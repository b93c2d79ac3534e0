//go:build !amd64

package attention

// avx2Kernels is never called where isa.Available refuses AVX2.
func avx2Kernels(Kind) *kernels { return nil }
