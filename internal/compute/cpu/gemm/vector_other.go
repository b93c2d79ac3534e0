//go:build !amd64

package gemm

func (e *epilogue) runVector() int { return 0 }

func vectorKernels(Options) *kernelSet { return nil }

// Rows are rounded for vector kernels only.
func halfRow([]uint16, []float32) {}

func roundRow(_, _ []float32) {}
