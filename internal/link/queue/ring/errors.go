package ring

import (
	"errors"
	"fmt"

	"github.com/eagleray/eagleray/internal/link/queue"
)

// ErrCorrupt is what the other side's positions or record headers give when they cannot be true.
var ErrCorrupt = errors.New("ring is corrupt")

var (
	errDropped = fmt.Errorf("%w: the driver dropped this rank", queue.ErrClosed)
	errAlone   = fmt.Errorf("%w: no rank is left in the ring", queue.ErrClosed)
)

// CorruptError says what in the segment cannot be true. It wraps ErrCorrupt.
type CorruptError struct {
	// Rank is the rank that wrote it, -1 the driver.
	Rank int
	// Detail names the wrong value.
	Detail string
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("%v: %s wrote %s", ErrCorrupt, queue.Name(e.Rank), e.Detail)
}

// Unwrap returns ErrCorrupt.
func (e *CorruptError) Unwrap() error { return ErrCorrupt }
