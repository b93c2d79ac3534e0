package openai

import (
	"context"
	"errors"
)

// errDeadline ends a request whose time is over.
var errDeadline = errors.New("the request's time is over")

// ended is why a request is not to go on: its time is over, or its client has gone; nil otherwise.
func ended(ctx context.Context) error {
	if cause := context.Cause(ctx); errors.Is(cause, errDeadline) {
		return cause
	}
	return ctx.Err()
}
