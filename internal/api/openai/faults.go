package openai

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/eagleray/eagleray/internal/api/wire"
	"github.com/eagleray/eagleray/internal/engine"
)

// asAPIError gives every error its status.
func asAPIError(err error) *wire.Error {
	var api *wire.Error
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &api):
		return api
	case errors.Is(err, errDeadline):
		return &wire.Error{Status: http.StatusRequestTimeout, Message: err.Error()}
	case errors.Is(err, engine.ErrStopped):
		return wire.Draining()
	case errors.Is(err, engine.ErrOverloaded), errors.Is(err, engine.ErrReplaced):
		return &wire.Error{Status: http.StatusServiceUnavailable, Message: err.Error(),
			RetryAfter: 1, Expected: true}
	case errors.As(err, &tooLarge):
		return &wire.Error{Status: http.StatusRequestEntityTooLarge,
			Message: fmt.Sprintf("request body is larger than %d bytes", tooLarge.Limit)}
	case errors.Is(err, errClientGone), errors.Is(err, context.Canceled):
		return wire.Cancelled()
	case errors.Is(err, engine.ErrStuck): // what else the request asks for leaves no way
		return &wire.Error{Status: http.StatusBadRequest, Message: err.Error()}
	case errors.Is(err, engine.ErrFailed), errors.Is(err, engine.ErrCondemned),
		errors.Is(err, engine.ErrUnsound):
		return &wire.Error{Status: http.StatusInternalServerError, Message: err.Error()}
	}
	return &wire.Error{Status: http.StatusInternalServerError, Message: internalError}
}

// internalError is all that a client is told of an error that is not its own.
const internalError = "internal server error"
