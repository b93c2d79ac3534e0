//go:build !amd64

package gemm

import (
	"unsafe"

	"github.com/eagleray/eagleray/internal/compute/cpu/isa"
)

func (e *epilogue) runVector() int { return 0 }

func vectorKernels(Options) *kernelSet { return nil }

// Rows are rounded for vector kernels only.
func halfRow([]uint16, []float32) {}

func roundRow(_, _ []float32) {}

func (c *codes) vectorCodes(isa.ISA, bool) *kernelSet { return nil }

func (c *codes) vectorDots(isa.ISA) *kernelSet { return nil }

func roundSpan(to, x unsafe.Pointer, blocks int, _ bool) (scale float32, even, odd int32) {
	return portableRound(to, x, blocks)
}

func roundSpans(_, _ unsafe.Pointer, _ int, _ []float32, _ int, _ []spanSums) {}
