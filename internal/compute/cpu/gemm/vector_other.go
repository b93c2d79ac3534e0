//go:build !amd64

package gemm

func (e *epilogue) runVector() int { return 0 }

func vectorKernels(Options) *kernelSet { return nil }

func roundRow(dst []uint16, src []float32) { roundRowPortable(dst, src) }
