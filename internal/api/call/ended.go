package call

import (
	"context"
	"errors"
)

// ErrDeadline ends a request whose time is over.
var ErrDeadline = errors.New("the request's time is over")

// Ended is why a request is not to go on: its time is over, or its client has gone; nil otherwise.
func Ended(ctx context.Context) error {
	if cause := context.Cause(ctx); errors.Is(cause, ErrDeadline) {
		return cause
	}
	return ctx.Err()
}
