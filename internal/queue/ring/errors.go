package ring

import (
	"errors"
	"fmt"
	"strings"
)

// MaxRecord is the length of the longest record in bytes, so that a hostile length cannot exhaust memory.
const MaxRecord = 1 << 30

var (
	// ErrClosed ends calls after Close here, and on a rank also after the driver's Close or Drop.
	ErrClosed = errors.New("ring is closed")
	// ErrTimeout ends a call whose deadline has passed. Nothing is lost: the call may be made again.
	ErrTimeout = errors.New("ring: deadline passed")
	// ErrInterrupted ends a Recv of the driver after Interrupt. Nothing is lost: the call may be made again.
	ErrInterrupted = errors.New("ring: wait was interrupted")
	// ErrCorrupt is what the other side's positions or record headers give when they cannot be true.
	ErrCorrupt = errors.New("ring is corrupt")
)

var (
	errDropped = fmt.Errorf("%w: the driver dropped this rank", ErrClosed)
	errAlone   = fmt.Errorf("%w: no rank is left", ErrClosed)
)

// SlowError names who has not read what must be read before there is room. It wraps ErrTimeout.
type SlowError struct {
	// Ranks are those the driver waits for, -1 alone the driver that a rank waits for.
	Ranks []int
}

func (e *SlowError) Error() string {
	var names []string
	for _, r := range e.Ranks {
		names = append(names, name(r))
	}
	return fmt.Sprintf("%v: waiting for %s to read", ErrTimeout, strings.Join(names, ", "))
}

// name is what errors call a rank, or the driver as -1.
func name(rank int) string {
	if rank < 0 {
		return "the driver"
	}
	return fmt.Sprintf("rank %d", rank)
}

// Unwrap returns ErrTimeout.
func (e *SlowError) Unwrap() error { return ErrTimeout }

// CorruptError says what in the segment cannot be true. It wraps ErrCorrupt.
type CorruptError struct {
	// Rank is who wrote it, -1 for the driver.
	Rank int
	// Detail names the wrong value.
	Detail string
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("%v: %s wrote %s", ErrCorrupt, name(e.Rank), e.Detail)
}

// Unwrap returns ErrCorrupt.
func (e *CorruptError) Unwrap() error { return ErrCorrupt }
