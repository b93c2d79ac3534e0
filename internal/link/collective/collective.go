// Package collective holds what the transports of collective operations (shared memory within a
// node, TCP between nodes) have in common: the order in which contributions are summed, the size to
// prepare for, and the errors. The transports are the packages below this one; the interfaces live
// with their users.
package collective

import (
	"errors"
	"fmt"
	"strings"
)

// MessageBytes is the size of the largest operation that the ranks of a group prepare memory for.
// It is no limit: a longer one goes in pieces (shm) or allocates (tcp).
const MessageBytes = 1 << 20

// MaxMembers is the largest group. Sums are defined for MaxRanks at most.
const MaxMembers = 128

// MessageBuffer is how far the sender of messages may be ahead of their receiver, in bytes: Send
// waits when that much has not been received yet. Two ranks that both send first do not wait for
// each other while what is under way each way is at most this. Groups of more than 16 ranks of one
// host have less, at least MinMessageBuffer.
const (
	MessageBuffer    = 4 << 20
	MinMessageBuffer = 64 << 10
)

// What can end a collective operation other than its result. An *Error wraps one of them.
var (
	// ErrTimeout means that some ranks did not come in time; Error.Missing names them.
	ErrTimeout = errors.New("timed out")
	// ErrAborted means that some rank called Abort, or failed in an operation.
	ErrAborted = errors.New("aborted")
	// ErrLeft means that a rank closed its group while others still waited for it; Error.Missing
	// names it.
	ErrLeft = errors.New("rank has left the group")
	// ErrMismatch means that the ranks are not in the same operation, or disagree on its size, its
	// root, or the state that they guard.
	ErrMismatch = errors.New("ranks disagree on the operation")
	// ErrClosed means that this rank's group is closed.
	ErrClosed = errors.New("group is closed")
)

// Error is a failed collective operation. After one the group is of no more use: every later
// operation on every rank fails too.
type Error struct {
	// Op is the operation, for example "all-reduce"; Rank is where it failed.
	Op   string
	Rank int
	// Missing lists the ranks that were waited for, when that is known.
	Missing []int
	Err     error
}

// Error names the operation, the rank, the ranks that are missing, and the cause.
func (e *Error) Error() string {
	if len(e.Missing) == 0 {
		return fmt.Sprintf("%s on rank %d: %v", e.Op, e.Rank, e.Err)
	}
	names := make([]string, len(e.Missing))
	for i, r := range e.Missing {
		names[i] = fmt.Sprint(r)
	}
	return fmt.Sprintf("%s on rank %d: waiting for rank %s: %v",
		e.Op, e.Rank, strings.Join(names, ", "), e.Err)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }
