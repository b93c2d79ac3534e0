package generate

import (
	"context"
	"errors"

	"github.com/eagleray/eagleray/internal/api/wire"
	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/engine/adapters"
)

// adapter keeps the adapter that a request names as its model, until release is called, and returns
// its id: 0 for the model itself.
func (s *Service) adapter(ctx context.Context, name string) (id uint32, release func(),
	err error) {
	if name == "" || s.opt.Adapters == nil || s.Model.serves(name) {
		return 0, func() {}, nil
	}
	id, release, err = s.opt.Adapters.Acquire(ctx, name)
	var refused *adapters.Refused
	switch {
	case errors.Is(err, adapters.ErrUnknown):
		return 0, nil, noModel(name)
	case errors.As(err, &refused):
		return 0, nil, wire.BadRequest("model", "%s", err.Error())
	}
	return id, release, err
}

// adapted is a stream that keeps its adapter until it is closed.
type adapted struct {
	engine.Stream
	release func()
}

// Close implements engine.Stream.
func (s *adapted) Close() {
	s.Stream.Close() // what is in flight ends before the adapter may go
	s.release()
}
