// Package queue carries records between the driver and its ranks: plans and calls one way, results
// and replies the other. A Hub is the driver's end, a Port a rank's. Records arrive whole and in
// order; each is valid until the next one is asked for.
//
// There are three transports: pipes inside the process, a ring in shared memory between processes
// of one host (package ring), and a link over TCP between hosts (package link). Which one serves a
// rank is decided when it connects: locality is proven by passing memory, never assumed.
package queue

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/eagleray/eagleray/internal/link/status"
)

// MaxRecord bounds a record's length, so that a hostile or corrupt length cannot exhaust memory.
const MaxRecord = 1 << 30

// Errors a caller acts on. Every transport returns these, wrapped where it knows more.
var (
	// ErrClosed is returned by operations on an end that was closed, or whose peer has gone.
	ErrClosed = errors.New("queue is closed")
	// ErrTimeout is returned when a deadline passes first.
	ErrTimeout = errors.New("queue deadline exceeded")
	// ErrInterrupted is returned by a Recv that Interrupt ended.
	ErrInterrupted = errors.New("queue wait was interrupted")
)

// SlowError names the ranks that have not read what must be read before there is room. It wraps
// ErrTimeout.
type SlowError struct {
	// Ranks are those that the driver waits for; -1 alone is the driver, for which a rank waits.
	Ranks []int
}

func (e *SlowError) Error() string {
	var names []string
	for _, r := range e.Ranks {
		names = append(names, Name(r))
	}
	return fmt.Sprintf("%v: waiting for %s to read", ErrTimeout, strings.Join(names, ", "))
}

// Unwrap returns ErrTimeout.
func (e *SlowError) Unwrap() error { return ErrTimeout }

// Name returns the name of a rank in errors; -1 is the driver.
func Name(rank int) string {
	if rank < 0 {
		return "the driver"
	}
	return fmt.Sprintf("rank %d", rank)
}

// Hub is the driver's end of the channels to all ranks. Send is called by one goroutine at a time,
// Recv by one at a time, which may be another; the rest by any.
type Hub interface {
	// Send broadcasts a copy of record. A zero until is no deadline; an error wrapping ErrTimeout
	// names the ranks that hold it up.
	Send(record []byte, until time.Time) error
	// Recv returns the next record of any rank, valid until the next Recv.
	Recv(until time.Time) (rank int, record []byte, err error)
	// Interrupt ends a Recv under way, or else the next one, with ErrInterrupted.
	Interrupt()
	// Drop declares ranks dead: Send no longer waits for them.
	Drop(ranks ...int)
	// Status returns the last status that a rank published, and its age.
	Status(rank int) (status.Snapshot, time.Duration)
	// Close ends every wait. Closing twice is harmless.
	Close() error
}

// Port is a rank's end of its channel. Recv and Send are each called by one goroutine at a time.
type Port interface {
	// Recv returns the next record, valid until the next Recv. A zero until is no deadline. It ends
	// with an error that wraps ErrClosed when the driver is gone.
	Recv(until time.Time) ([]byte, error)
	// Send delivers a copy of record. A zero until is no deadline.
	Send(record []byte, until time.Time) error
	// Status is where the rank publishes what it is doing.
	Status() *status.Rank
	// Close ends every wait on this side. Closing twice is harmless.
	Close() error
}
