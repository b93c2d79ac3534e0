package amx

import "unsafe"

// CodeRows are the rows of x that lie together for MultiplyCodes, and CodeDepth is the most numbers
// of a row that a step has.
const CodeRows, CodeDepth = 16, 64

// CodeCall is a product of rows of x and a panel of 32 columns of w over runs of steps of K, both
// of int8. A run has spans: those of x have a scale for each row, runs one for each column of w.
//
// x lies in blocks of CodeRows rows. A block is span after span: the rows' scales, of float32, then
// [CodeRows][Steps·Depth].
type CodeCall struct {
	W         unsafe.Pointer // [steps/4][32][4] of the first run
	Skip      uintptr        // bytes from the end of a run of w to the next
	Scale     unsafe.Pointer // of the first run's columns
	ScaleStep uintptr        // bytes to those of the next
	X         unsafe.Pointer
	XStride   uintptr // bytes from a block to the next
	Runs      int
	Spans     int // of each run
	Steps     int // of each span
	Depth     int // numbers of a step of a row, a multiple of 4, at most CodeDepth
	Blocks    int
	C         unsafe.Pointer // [CodeRows·Blocks][32] of sums
	CStride   uintptr        // bytes from a row to the next
	Offset    uintptr        // bytes from the scales of a run to its offsets; 0 if it has none
	Sums      unsafe.Pointer // of x over the first run, row by row
	SumStep   uintptr        // bytes to those of the next
	Flags     int
	Ahead     uintptr // bytes from steps of w to those that are fetched meanwhile
	// Parts, if not nil, are integers by which the products of each span of the first run are
	// multiplied, [spans][32] of int8, ScaleStep bytes before those of the next run. Behind them
	// are those by which the sums of x are, if there are offsets: Sums are by span then.
	Parts unsafe.Pointer
	_     [104]byte // keeps threads' calls apart
}

const (
	CodeWideScale  = 1 // scales are float32, not float16
	CodeWideOffset = 2 // offsets are
	CodeAdd        = 4 // to the sums that are there
)

// MultiplyCodes makes c the sum over the runs of scale·Σ, and then offset·(the sum of x), Σ being
// that over the spans of (the scale of x)·(the sum of their products), one fused multiply-add after
// the other. It is one uninterruptible call.
func MultiplyCodes(call *CodeCall) {
	switch {
	case call.Parts != nil:
		multiplySuper(call)
	case call.Spans == 1:
		multiplySpans(call)
	default:
		multiplyRuns(call)
	}
}
