package link

import (
	"errors"
	"fmt"
)

// Errors of Send and Recv.
var (
	// ErrTimeout is a deadline that passed: nothing was queued, nothing was taken.
	ErrTimeout = errors.New("link: timed out")
	// ErrInterrupted is a Recv that Interrupt ended.
	ErrInterrupted = errors.New("link: interrupted")
	// ErrDown is a link that has ended; the error that wraps it also wraps the cause.
	ErrDown = errors.New("link is down")
	// ErrTooLong is a record longer than Options.MaxRecord, of either side.
	ErrTooLong = errors.New("record is too long")
)

// Causes of a link's end.
var (
	// ErrClosed is a Close of this end.
	ErrClosed = errors.New("closed")
	// ErrSilent is a peer of which nothing was heard for too long.
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
