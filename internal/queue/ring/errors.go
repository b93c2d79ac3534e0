package ring

import (
	"errors"
	"fmt"
	"strings"

	"github.com/eagleray/eagleray/internal/queue"
)

// ErrCorrupt is what the other side's positions or record headers give when they cannot be true.
var ErrCorrupt = errors.New("ring is corrupt")

var (
	errDropped = fmt.Errorf("%w: the driver dropped this rank", queue.ErrClosed)
	errAlone   = fmt.Errorf("%w: no rank is left in the ring", queue.ErrClosed)
)

// SlowError names the readers that have not read what must be read before there is room. It wraps
// queue.ErrTimeout.
type SlowError struct {
	// Ranks are those that the driver waits for; -1 alone is the driver, for which a rank waits.
	Ranks []int
}

func (e *SlowError) Error() string {
	var names []string
	for _, r := range e.Ranks {
		names = append(names, name(r))
	}
	return fmt.Sprintf("%v: waiting for %s to read", queue.ErrTimeout, strings.Join(names, ", "))
}

// name is what errors call a rank, or the driver as -1.
func name(rank int) string {
	if rank < 0 {
		return "the driver"
	}
	return fmt.Sprintf("rank %d", rank)
}

// Unwrap returns queue.ErrTimeout.
func (e *SlowError) Unwrap() error { return queue.ErrTimeout }

// CorruptError says what in the segment cannot be true. It wraps ErrCorrupt.
type CorruptError struct {
	// Rank is the rank that wrote it, -1 the driver.
	Rank int
	// Detail names the wrong value.
	Detail string
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("%v: %s wrote %s", ErrCorrupt, name(e.Rank), e.Detail)
}

// Unwrap returns ErrCorrupt.
func (e *CorruptError) Unwrap() error { return ErrCorrupt }
