package gemm

import (
	"fmt"
	"unsafe"

	"github.com/eagleray/eagleray/internal/compute/cpu/isa"
)

// epilogue turns the partial sums of a tile into output: for every row and column the tree sum of
// the chunks, plus one more addend where there is one (a bias, or the output itself). Strides are
// in bytes; parts and dst hold fp32. Additions of single elements have the same bits on every
// instruction set.
type epilogue struct {
	dst         unsafe.Pointer
	dstStride   uintptr // from a row to the next
	parts       unsafe.Pointer
	partStride  uintptr // from a row to the next
	chunkStride uintptr // from a chunk to the next
	add         unsafe.Pointer
	addStride   uintptr // from a row to the next; 0 for a bias
	chunks      int
	rows, cols  int
	// streams says that the output is too large to be in a cache when it is read.
	streams bool
	wide    bool // AVX-512 may be used
}

// run computes the output; vector says that AVX2 may be used.
func (e *epilogue) run(vector bool) {
	done := 0
	if vector {
		done = e.runVector()
	}
	if done == e.cols {
		return
	}
	for r := range e.rows {
		for c := done; c < e.cols; c++ {
			at := uintptr(c) * 4
			sum := e.tree(unsafe.Add(e.parts, uintptr(r)*e.partStride+at))
			if e.add != nil {
				sum += *(*float32)(unsafe.Add(e.add, uintptr(r)*e.addStride+at))
			}
			*(*float32)(unsafe.Add(e.dst, uintptr(r)*e.dstStride+at)) = sum
		}
	}
}

// tree sums one element's chunks.
func (e *epilogue) tree(first unsafe.Pointer) float32 {
	part := func(i int) float32 { return *(*float32)(unsafe.Add(first, uintptr(i)*e.chunkStride)) }
	switch e.chunks {
	case 1:
		return part(0)
	case 2:
		return part(0) + part(1)
	case 4:
		return (part(0) + part(1)) + (part(2) + part(3))
	}
	return ((part(0) + part(1)) + (part(2) + part(3))) + ((part(4) + part(5)) + (part(6) + part(7)))
}

// TreeSum writes to dst the sum of the partial results of the given number of chunks (1, 2, 4 or
// 8), parts[chunk·len(dst) + i], as a balanced binary tree: ((0+1)+(2+3))+((4+5)+(6+7)). It is the
// sum Mul makes of its own chunks; a tree over the tensor-parallel ranks continues it. dst must not
// overlap parts, except that it may be its first part. Other numbers of chunks panic.
func TreeSum(dst, parts []float32, chunks int) {
	if chunks < 1 || chunks > maxPieces || chunks&(chunks-1) != 0 {
		panic(fmt.Sprintf("gemm: sum of %d chunks", chunks))
	}
	n := len(dst)
	if n == 0 {
		return
	}
	parts = parts[:n*chunks]
	e := epilogue{dst: unsafe.Pointer(&dst[0]), parts: unsafe.Pointer(&parts[0]),
		chunkStride: uintptr(n) * 4, chunks: chunks, rows: 1, cols: n}
	e.run(isa.Available(isa.AVX2))
}
