package generate

import (
	"context"
	"errors"
	"net/http"

	"github.com/eagleray/eagleray/internal/api/wire"
	"github.com/eagleray/eagleray/internal/engine"
)

// StatusOf gives the errors of the engine their status, nil for others.
func StatusOf(err error) *wire.Error {
	switch {
	case errors.Is(err, engine.ErrStopped):
		return wire.Draining()
	case errors.Is(err, engine.ErrOverloaded), errors.Is(err, engine.ErrReplaced):
		return &wire.Error{Status: http.StatusServiceUnavailable, Message: err.Error(),
			RetryAfter: 1, Expected: true}
	case errors.Is(err, context.Canceled): // the client has gone: what else went wrong is not told
		return nil
	case errors.Is(err, engine.ErrStuck): // what else the request asks for leaves no way
		return &wire.Error{Status: http.StatusBadRequest, Message: err.Error()}
	case errors.Is(err, engine.ErrFailed), errors.Is(err, engine.ErrCondemned),
		errors.Is(err, engine.ErrUnsound):
		return &wire.Error{Status: http.StatusInternalServerError, Message: err.Error()}
	}
	return nil
}
