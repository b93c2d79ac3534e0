package collective

import (
	"errors"
	"fmt"
	"unsafe"
)

// Op is a collective operation.
type Op uint8

// The operations. The model sums with AllReduce and collects logits with Gather; parallel layouts
// also need the others: AllGather for keys and values of a split prompt, Broadcast for sampled
// tokens, Barrier to align ranks.
const (
	Barrier Op = iota + 1
	AllReduce
	AllGather
	Gather
	Broadcast
)

// String returns the name used in errors.
func (o Op) String() string {
	switch o {
	case Barrier:
		return "barrier"
	case AllReduce:
		return "all-reduce"
	case AllGather:
		return "all-gather"
	case Gather:
		return "gather"
	case Broadcast:
		return "broadcast"
	}
	return fmt.Sprintf("operation %d", uint8(o))
}

// Tag packs an operation, its root and its size in bytes, which all ranks of a step must agree on.
func Tag(op Op, root, size int) uint64 {
	return uint64(op)<<56 | uint64(root)<<48 | uint64(size)&sizeMask
}

const sizeMask = 1<<48 - 1

// TagSize returns the size in bytes that a tag holds.
func TagSize(tag uint64) int { return int(tag & sizeMask) }

// DescribeTag returns what a tag holds, for errors.
func DescribeTag(tag uint64) string {
	return fmt.Sprintf("%v of %d bytes, root %d", Op(tag>>56), TagSize(tag), tag>>48&0xff)
}

// BadLength is the error of an operation whose destination does not hold what the ranks bring, in
// elements.
func BadLength(op Op, dst, ranks, x int) error {
	return fmt.Errorf("%v of %d elements from each of %d ranks into %d", op, x, ranks, dst)
}

// BadRoot is the error of a root that is no rank of the group.
func BadRoot(root, ranks int) error { return fmt.Errorf("root %d of %d ranks", root, ranks) }

// WaitError is a cause with the ranks that were waited for. Failed adds the operation.
type WaitError struct {
	Missing []int
	Err     error
}

func (e *WaitError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *WaitError) Unwrap() error { return e.Err }

// Failed makes what went wrong in an operation on a rank into what its caller sees.
func Failed(op Op, rank int, err error) *Error {
	failure := &Error{Op: op.String(), Rank: rank, Err: err}
	var w *WaitError
	if errors.As(err, &w) {
		failure.Missing, failure.Err = w.Missing, w.Err
	}
	return failure
}

// Bytes is the memory of x, as the transports move it: 4 bytes per element in this machine's order.
func Bytes(x []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), 4*len(x))
}

// Floats is the memory b as elements; it undoes Bytes.
func Floats(b []byte) []float32 {
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/4)
}
