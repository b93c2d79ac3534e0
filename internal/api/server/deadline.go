package server

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/eagleray/eagleray/internal/api/call"
	"github.com/eagleray/eagleray/internal/api/wire"
)

// timeoutHeader is how long a client waits for its answer, in seconds; the field timeout says the
// same. The less counts.
const timeoutHeader = "X-Request-Timeout"

// Deadline bounds a request by the time that its client gives it, in the header and in the field
// (nil for none), from begun on. The caller calls cancel when the request is over.
func Deadline(r *Request, field *float64, begun time.Time) (*Request, context.CancelFunc,
	error) {
	seconds := math.Inf(1)
	if text := r.Header.Get(timeoutHeader); text != "" {
		v, err := strconv.ParseFloat(text, 64)
		if err != nil || !(v > 0) {
			return nil, nil, wire.BadRequest("", "header %s %q is not a positive number of seconds",
				timeoutHeader, wire.Clip(text))
		}
		seconds = v
	}
	if field != nil {
		if !(*field > 0) {
			return nil, nil, wire.BadRequest("timeout",
				"`timeout` of %v is not a positive number of seconds", *field)
		}
		seconds = min(seconds, *field)
	}
	const longest = 1e6 // beyond it there is none: a Duration holds some more
	if seconds > longest {
		return r, func() {}, nil
	}
	ctx, cancel := context.WithDeadlineCause(r.Context(),
		begun.Add(time.Duration(seconds*float64(time.Second))),
		fmt.Errorf("%w: %v s", call.ErrDeadline, seconds))
	return r.WithContext(ctx), cancel, nil
}
