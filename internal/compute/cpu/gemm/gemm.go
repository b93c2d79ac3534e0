// Package gemm multiplies fp32 activations with packed weights on the CPU: y = x·Wᵀ for one row
// (decoding) up to thousands (prefill), by the same kernels over the same packed weights.
//
// # Numerics
//
// Every output element is one chain of operations: an accumulator starts at zero and takes the
// products of its row of x and its row of W in the order of K. So its bits depend on these two
// rows, the instruction set and the options of the matrix, and on nothing else: not on the number
// of rows, the tile an element falls into, the number of threads, or which other rows of W are
// packed beside it. With Chunks > 1 the chain is cut into that many independent ones, which are
// summed as a balanced binary tree (see TreeSum); tensor-parallel ranks that hold 1/t of the chunks
// each and continue the tree over ranks get the bits of a single rank.
//
// On AVX2 and AVX-512 each step of the chain is a fused multiply-add in fp32 and both give the same
// bits. The portable kernels round the product first and differ from them in the last bits.
// Quantised weights have a chain for each run of columns that share a scale, see PackCodes.
//
// With Rounded at the level AVX512BF16 the step is VDPBF16PS, which takes two products at once and
// flushes denormals. At the level AMX the order is that of TDPBF16PS, also for few rows, which
// AVX-512 multiplies: a piece of K is cut into blocks of 32, the last one shorter; the products of
// a block's even steps are one chain of fused multiply-adds from zero, those of its odd steps
// another; the sum of the two is added to the accumulator. Denormals are taken as zero, and become
// zero.
package gemm

import (
	"cmp"
	"errors"
	"fmt"
	"unsafe"

	"github.com/eagleray/eagleray/internal/compute/cpu/isa"
	"github.com/eagleray/eagleray/internal/sys/offheap"
)

// Kind is the type of stored weights.
type Kind uint8

const (
	// BF16 is bfloat16: the upper half of an fp32.
	BF16 Kind = iota
	// F16 is IEEE 754 binary16.
	F16
	// F32 is IEEE 754 binary32.
	F32
	// I8 is bytes and a scale for each row of W, the largest magnitude in the whole row of the
	// source divided by 127: element i is round(w[i]/scale), to nearest even. Only packed matrices
	// have it; they are what PackCodes makes of such codes.
	I8
	kinds
)

// stored tells whether sources may be of the kind.
func (k Kind) stored() bool { return k < I8 }

// Size returns the bytes of one element.
func (k Kind) Size() int {
	return [...]int{BF16: 2, F16: 2, F32: 4, I8: 1}[k]
}

// String returns the name of the kind: bf16, f16, f32 or i8.
func (k Kind) String() string {
	if k >= kinds {
		return fmt.Sprintf("kind(%d)", uint8(k))
	}
	return [kinds]string{"bf16", "f16", "f32", "i8"}[k]
}

// Source is a rectangle of a stored matrix: rows RowLo … RowHi-1 and columns ColLo … ColHi-1.
type Source struct {
	Kind Kind
	// Data is the whole matrix, row-major [Rows][Cols] unless strides say otherwise, little endian.
	// It is read by Pack only and needs no alignment.
	Data         []byte
	Rows, Cols   int
	RowLo, RowHi int
	ColLo, ColHi int
	// RowStride and ColStride are how many elements lie between the beginnings of rows, and between
	// those of a row; 0 is Cols, and 1. Then Data ends with the last element, or later.
	RowStride, ColStride int
}

// strides are RowStride and ColStride, or what 0 stands for.
func (s *Source) strides() (row, col int) {
	return cmp.Or(s.RowStride, s.Cols), cmp.Or(s.ColStride, 1)
}

// row is count elements of a row from a column on: those of Data, or gathered into buffer where
// they do not lie side by side.
func (s *Source) row(n, from, count int, buffer []byte) []byte {
	size := s.Kind.Size()
	down, right := s.strides()
	at := (n*down + from*right) * size
	if right == 1 {
		return s.Data[at : at+count*size]
	}
	buffer = buffer[:count*size]
	if size == 2 {
		for i := range count {
			copy(buffer[2*i:2*i+2], s.Data[at:])
			at += 2 * right
		}
		return buffer
	}
	for i := range count {
		copy(buffer[4*i:4*i+4], s.Data[at:])
		at += 4 * right
	}
	return buffer
}

// Options say how a matrix is packed and multiplied.
type Options struct {
	// Kind is the packed type. Values of another kind are converted: exactly where the packed kind
	// can hold them, else rounded to nearest even.
	Kind Kind
	// Chunks is the number of pieces (1, 2, 4 or 8) K is cut into, each an independent sum. Piece i
	// is [i·K/Chunks, (i+1)·K/Chunks), rounded down. When the source is a column range that falls
	// on the same grid of a finer cut of the whole matrix (a tensor-parallel rank's part: pieces j
	// … j+Chunks-1 of g = 2, 4 or 8 pieces), the grid of the whole matrix is used, so that all
	// ranks together have the pieces a single rank would have, even if K is odd.
	Chunks int
	// ISA selects the kernels; it must be available on this machine.
	ISA isa.ISA
	// Rounded has Mul round the rows of x to bf16 (to nearest even), for which it needs Kind BF16,
	// and AVX512BF16 or AMX; or, for Kind I8 and codes that are integers, to int8 (see dots.go).
	// Otherwise x stays fp32.
	Rounded bool
	// Spare, when not nil, has memory that is used before the system is asked for more.
	Spare *Spare
	// Finite refuses sources with an element that is infinite or NaN, or becomes so in the matrix's
	// type, by a *NotFinite.
	Finite bool
}

// ErrOptions is wrapped by errors about options that do not fit each other or this machine.
var ErrOptions = errors.New("invalid matrix options")

// ErrSource is wrapped by errors about sources whose sizes or ranges do not fit.
var ErrSource = errors.New("invalid matrix source")

const (
	maxPieces = 8
	groupSize = 4 // panels a kernel takes at most; the widths of all kernels divide it
)

// Matrix is a packed weight matrix [N][K]. It is immutable and may be used by many goroutines at a
// time. Its memory lies outside the Go heap until Free.
//
// Packed form: panels of nr rows of W. Within a panel K runs outermost, every piece padded to an
// even length with a zero. Two steps of K lie together: for BF16 as [nr][2], so that one 32-bit
// lane holds both factors of a row, for the others as [2][nr]. Rows missing in the last panel are
// zero.
type Matrix struct {
	n, k    int
	kind    Kind
	rounded bool
	kernels *kernelSet
	mem     offheap.Memory
	base    unsafe.Pointer
	pieces  int
	start   [maxPieces + 1]int // where each piece of K begins
	packed  [maxPieces + 1]int // where it begins in the packed form, in steps of K
	stride  uintptr            // bytes of a panel
	codes   *codes             // of quantised weights, else nil
	flags   int                // flagFollows, where the processor does
}

// N returns the number of rows of W, the length of an output row.
func (m *Matrix) N() int { return m.n }

// K returns the number of columns of W, the length of a row of x.
func (m *Matrix) K() int { return m.k }

// Chunks returns the number of pieces K is cut into.
func (m *Matrix) Chunks() int { return m.pieces }

// Bytes returns the memory the packed form takes.
func (m *Matrix) Bytes() int { return len(m.mem.Bytes()) }

// Free releases the packed weights. The matrix must not be used afterwards.
func (m *Matrix) Free() {
	// Nothing else unmaps it.
	_ = m.mem.Free()
	*m = Matrix{}
}

// panels returns the number of panels.
func (m *Matrix) panels() int { return ceilDiv(m.n, m.kernels.nr) }

// stepBytes is those of a step of K of a panel.
func (m *Matrix) stepBytes() int { return m.kernels.nr * m.kind.Size() }

func ceilDiv(a, b int) int { return (a + b - 1) / b }
