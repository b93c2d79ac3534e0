package openai

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/eagleray/eagleray/internal/engine"
)

// asAPIError gives every error its status.
func asAPIError(err error) *apiError {
	var api *apiError
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &api):
		return api
	case errors.Is(err, errDeadline):
		return &apiError{status: http.StatusRequestTimeout, message: err.Error()}
	case errors.Is(err, engine.ErrStopped):
		return draining()
	case errors.Is(err, engine.ErrOverloaded), errors.Is(err, engine.ErrReplaced):
		return &apiError{status: http.StatusServiceUnavailable, message: err.Error(),
			retryAfter: 1, expected: true}
	case errors.As(err, &tooLarge):
		return &apiError{status: http.StatusRequestEntityTooLarge,
			message: fmt.Sprintf("request body is larger than %d bytes", tooLarge.Limit)}
	case errors.Is(err, errClientGone), errors.Is(err, context.Canceled):
		return cancelled()
	case errors.Is(err, engine.ErrStuck): // what else the request asks for leaves no way
		return &apiError{status: http.StatusBadRequest, message: err.Error()}
	case errors.Is(err, engine.ErrFailed), errors.Is(err, engine.ErrCondemned),
		errors.Is(err, engine.ErrUnsound):
		return &apiError{status: http.StatusInternalServerError, message: err.Error()}
	}
	return &apiError{status: http.StatusInternalServerError, message: internalError}
}

// internalError is all that a client is told of an error that is not its own.
const internalError = "internal server error"
