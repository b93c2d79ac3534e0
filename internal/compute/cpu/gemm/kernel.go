package gemm

import (
	"unsafe"

	"github.com/eagleray/eagleray/internal/compute/cpu/isa"
	"github.com/eagleray/eagleray/internal/sys/half"
)

// kernel multiplies a tile: some rows of x with some panels of W over some steps of K. Rows and
// panels are fixed per kernel.
//
//	w, wStride  first panel, and bytes from a panel to the next
//	x, xStride  first row, and bytes from a row to the next
//	pairs       pairs of steps of K
//	flags       flagContinue, flagOdd, flagFollows and flagSecond
//	c, cStride  first row of the tile in memory, and bytes from a row to the next; the columns of
//	            adjacent panels are adjacent
//	soon        memory that is multiplied soon, of panels wStride apart: for every pair of steps
//	            as many lines of it as the pair has are fetched, but not by portable kernels
//	soonStep    bytes from the lines of a pair to those of the next
//
// A kernel never touches x beyond its steps of K. It is one uninterruptible call, so the caller
// bounds the steps (see maxSteps).
type kernel func(w unsafe.Pointer, wStride uintptr, x unsafe.Pointer, xStride uintptr,
	pairs, flags int, c unsafe.Pointer, cStride uintptr, soon unsafe.Pointer, soonStep uintptr)

const (
	flagContinue = 1 // begin with the sums in c, not with zero
	flagOdd      = 2 // one more, single step of K follows the pairs
	flagFollows  = 4 // nothing is fetched for few rows: see isa.Follows
	flagSecond   = 8 // what is fetched goes to the second cache: the first has what tiles share
)

// follows is what flags have of it.
func follows() int {
	if isa.Follows() {
		return flagFollows
	}
	return 0
}

const (
	maxRows  = 12 // rows of the highest tile of any instruction set
	maxWidth = 4  // panels of the widest one
	// maxSteps of K per kernel call keep it below about 100 µs even when the weights come from slow
	// memory: Go cannot interrupt assembler, and a garbage collection waits for it.
	maxSteps = 4096
)

// kernelSet is the kernels of an instruction set for one kind of weights.
type kernelSet struct {
	nr     int // rows of W in a panel
	rows   int // rows of x in the highest tile
	square int // rows of the tiles that many rows are cut into; 0 for the highest
	// again is the square tile of the most panels for weights that are in a cache: it fetches a
	// line for every four pairs.
	again  kernel
	vector bool
	halves bool // x is bf16, not fp32
	// blocks says that amx.Multiply is the kernel, or of codes amx.MultiplyCodes, of any number of
	// rows: x lies in its blocks.
	blocks bool
	// many, if not nil, are the kernels for rows from from on, with the same bits: of the same
	// panels, or of those of float32 that widen makes of some pairs of steps, one or more.
	many  *kernelSet
	from  int
	widen func(dst, src unsafe.Pointer, pairs int)
	// by rows of x and number of panels; widths are 1, 2 and 4
	kernels [maxRows + 1][maxWidth + 1]kernel
	codes   *codeKernels // of quantised weights, in place of kernels
}

// many rows are those that square tiles are for.
const many = 256

// high is how many rows the tiles of a product of so many rows have at most.
func (s *kernelSet) high(rows int) int {
	if rows >= many && s.square > 0 {
		return s.square
	}
	return s.rows
}

// width returns the most panels a tile of this height takes, at most limit.
func (s *kernelSet) width(rows, limit int) int {
	for w := maxWidth; w > 1; w /= 2 {
		if w <= limit && (s.kernels[rows][w] != nil ||
			s.codes != nil && s.codes.tiles[rows][w] != nil) {
			return w
		}
	}
	return 1
}

func kernelsFor(o Options) *kernelSet {
	if set := vectorKernels(o); set != nil {
		return set
	}
	return portableKernels(o.Kind)
}

// portableKernels returns kernels in plain Go.
func portableKernels(kind Kind) *kernelSet {
	pairBytes := 2 * portableNR * kind.Size()
	set := &kernelSet{nr: portableNR, rows: portableRows}
	for rows := 1; rows <= set.rows; rows++ {
		set.kernels[rows][1] = func(w unsafe.Pointer, _ uintptr, x unsafe.Pointer, xStride uintptr,
			pairs, flags int, c unsafe.Pointer, cStride uintptr, _ unsafe.Pointer, _ uintptr) {
			var acc [portableRows][portableNR]float32
			if flags&flagContinue != 0 {
				for r := range rows {
					acc[r] = *(*[portableNR]float32)(unsafe.Add(c, uintptr(r)*cStride))
				}
			}
			steps := 2 * pairs
			if flags&flagOdd != 0 {
				steps++
			}
			var v [portableNR]float32
			for k := range steps {
				pair := unsafe.Add(w, k/2*pairBytes)
				switch kind { // not a function value: v would move to the heap
				case BF16:
					loadBF16(&v, pair, k%2)
				case F16:
					loadF16(&v, pair, k%2)
				default:
					loadF32(&v, pair, k%2)
				}
				for r := range rows {
					multiplyAdd(&acc[r], &v, *(*float32)(unsafe.Add(x,
						uintptr(r)*xStride+uintptr(k)*4)))
				}
			}
			for r := range rows {
				*(*[portableNR]float32)(unsafe.Add(c, uintptr(r)*cStride)) = acc[r]
			}
		}
	}
	return set
}

const (
	portableNR   = 16
	portableRows = 4
)

// multiplyAdd rounds the product before the sum on every architecture: the conversion forbids the
// compiler to fuse the two.
func multiplyAdd(acc, w *[portableNR]float32, x float32) {
	for i, v := range w {
		acc[i] += float32(x * v)
	}
}

// loadBF16 reads one step of a pair of a panel, as do loadF16 and loadF32.
func loadBF16(dst *[portableNR]float32, pair unsafe.Pointer, odd int) {
	src := (*[portableNR][2]uint16)(pair)
	for i := range dst {
		dst[i] = half.FromBF16(src[i][odd])
	}
}

func loadF16(dst *[portableNR]float32, pair unsafe.Pointer, odd int) {
	src := &(*[2][portableNR]uint16)(pair)[odd]
	for i, v := range src {
		dst[i] = half.FromF16(v)
	}
}

func loadF32(dst *[portableNR]float32, pair unsafe.Pointer, odd int) {
	*dst = (*[2][portableNR]float32)(pair)[odd]
}
