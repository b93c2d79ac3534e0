package link

import (
	"errors"
	"fmt"

	"github.com/eagleray/eagleray/internal/link/queue"
)

// ErrTooLong is a record longer than Options.MaxRecord, of either side.
var ErrTooLong = errors.New("record is too long")

// endError is what every call returns once the link is down: queue.ErrClosed, and why it ended.
type endError struct{ cause error }

func (e *endError) Error() string { return "link is down: " + e.cause.Error() }

// Unwrap returns queue.ErrClosed and the cause.
func (e *endError) Unwrap() []error { return []error{queue.ErrClosed, e.cause} }

// errLocalClose is the cause when Close was called on this end.
var errLocalClose = errors.New("closed")

// Causes of a link's end.
var (
	// ErrSilent is a peer that sent nothing for Options.Silence.
	ErrSilent = errors.New("peer is silent")
	// ErrCut is a connection that broke and was not resumed in time.
	ErrCut = errors.New("connection cut")
	// ErrProtocol is a peer that broke the protocol; one of the following is wrapped beside it.
	ErrProtocol = errors.New("protocol error")
)

// Ways to break the protocol.
var (
	// ErrGap is a sequence number that skips others.
	ErrGap = errors.New("sequence gap")
	// ErrDuplicate is a sequence number that came before.
	ErrDuplicate = errors.New("duplicate sequence number")
	// ErrAck is an acknowledgement of what was never sent, or of less than was acknowledged before.
	ErrAck = errors.New("impossible acknowledgement")
	// ErrLength is a length that the frame's type does not allow.
	ErrLength = errors.New("bad length")
	// ErrType is a frame of unknown type or flags, or out of its place.
	ErrType = errors.New("bad frame type")
	// ErrSession is a hello of another session, or none at the start of a connection.
	ErrSession = errors.New("bad session")
	// ErrWindow is a peer that sends more than the window allows.
	ErrWindow = errors.New("window exceeded")
)

// PeerClosed is the cause when the peer's end was closed in order.
type PeerClosed struct{ Reason string }

func (p *PeerClosed) Error() string {
	if p.Reason == "" {
		return "closed by the peer"
	}
	return "closed by the peer: " + p.Reason
}

// violation names what a peer did.
func violation(kind error, format string, args ...any) error {
	return fmt.Errorf("%w: %w: %s", ErrProtocol, kind, fmt.Sprintf(format, args...))
}
