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
// tokens, AllToAllV for rows whose experts other ranks have and AllToAll for what these make of
// them, Send and its Recv for what a stage hands to the next, Barrier to align ranks.
const (
	Barrier Op = iota + 1
	AllReduce
	AllGather
	Gather
	Broadcast
	AllToAll
	AllToAllV
	Send
	Recv
)

var names = [...]string{Barrier: "barrier", AllReduce: "all-reduce", AllGather: "all-gather",
	Gather: "gather", Broadcast: "broadcast", AllToAll: "all-to-all",
	AllToAllV: "all-to-all-v", Send: "send", Recv: "receive"}

// String returns the name used in errors.
func (o Op) String() string {
	if int(o) < len(names) && names[o] != "" {
		return names[o]
	}
	return fmt.Sprintf("operation %d", uint8(o))
}

// Tag packs an operation, its root (of a message, the rank it is to) and its size in bytes, which
// all ranks of a step must agree on.
func Tag(op Op, root, size int) uint64 {
	return uint64(op)<<56 | uint64(root&rootMask)<<40 | uint64(size)&sizeMask
}

const (
	rootMask = 1<<16 - 1
	sizeMask = 1<<40 - 1
)

// TagSize returns the size in bytes that a tag holds.
func TagSize(tag uint64) int { return int(tag & sizeMask) }

// DescribeTag returns what a tag holds, for errors.
func DescribeTag(tag uint64) string {
	switch op := Op(tag >> 56); op {
	case Send:
		return fmt.Sprintf("message of %d bytes to rank %d", TagSize(tag), tag>>40&rootMask)
	case AllToAll, AllToAllV: // each pair of ranks has a size of its own
		return op.String()
	}
	return fmt.Sprintf("%v of %d bytes, root %d", Op(tag>>56), TagSize(tag), tag>>40&rootMask)
}

// Mismatch is the error of two ranks that have met with different tags, or with the same tag and
// different guards: what they computed before differs.
func Mismatch(ours, theirs, guard, theirGuard uint64, rank int) error {
	if ours != theirs {
		return fmt.Errorf("%w: %s here, %s on rank %d", ErrMismatch, DescribeTag(ours),
			DescribeTag(theirs), rank)
	}
	return fmt.Errorf("%w: step state %016x here, %016x on rank %d", ErrMismatch, guard, theirGuard,
		rank)
}

// CheckRoot returns an error unless the root is a rank of the group.
func CheckRoot(root, ranks int) error {
	if root < 0 || root >= ranks {
		return fmt.Errorf("root %d of %d ranks", root, ranks)
	}
	return nil
}

// CheckGather returns an error unless the root is a rank of the group, and the destination there
// holds what the ranks bring, in elements.
func CheckGather(op Op, rank, root, ranks, dst, x int) error {
	if err := CheckRoot(root, ranks); err != nil {
		return err
	}
	if rank == root && dst != ranks*x {
		return fmt.Errorf("%v of %d elements from each of %d ranks into %d", op, x, ranks, dst)
	}
	return nil
}

// BadPeer is the error of a message to or from a rank that is no other rank of the group.
func BadPeer(peer, rank, ranks int) error {
	return fmt.Errorf("message between rank %d and rank %d of %d ranks", rank, peer, ranks)
}

// CheckMembers returns an error unless a group can have so many ranks.
func CheckMembers(ranks int) error {
	if ranks < 1 || ranks > MaxMembers {
		return fmt.Errorf("collective group of %d ranks: must be 1 to %d", ranks, MaxMembers)
	}
	return nil
}

// CheckSum returns an error unless the sum over so many ranks is defined.
func CheckSum(ranks int) error {
	if !ValidRanks(ranks) {
		return fmt.Errorf("sum over %d ranks: must be 1, 2, 4 or 8", ranks)
	}
	return nil
}

// WaitError is a cause with the ranks that were waited for. Failed adds the operation.
type WaitError struct {
	Missing []int
	Err     error
}

func (e *WaitError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *WaitError) Unwrap() error { return e.Err }

// Names are what errors call the ranks of a group: their numbers where more than the group is
// known. Nil stands for the numbers within the group.
type Names []int

// Of returns the name of a rank.
func (n Names) Of(rank int) int {
	if n == nil {
		return rank
	}
	return n[rank]
}

// Failed makes what went wrong in an operation on a rank into what its caller sees.
func (n Names) Failed(op Op, rank int, err error) *Error {
	failure := &Error{Op: op.String(), Rank: n.Of(rank), Err: err}
	var w *WaitError
	if errors.As(err, &w) {
		failure.Err = w.Err
		for _, m := range w.Missing {
			failure.Missing = append(failure.Missing, n.Of(m))
		}
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
