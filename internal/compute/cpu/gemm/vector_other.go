//go:build !amd64

package gemm

import "github.com/eagleray/eagleray/internal/compute/cpu/isa"

func (e *epilogue) runVector() int { return 0 }

func vectorKernels(Options) *kernelSet { return nil }

func roundRow(dst []uint16, src []float32) { roundRowPortable(dst, src) }

func (c *codes) vectorCodes(isa.ISA, bool) *kernelSet { return nil }
