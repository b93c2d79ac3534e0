package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/eagleray/eagleray/internal/api/server"
	"github.com/eagleray/eagleray/internal/api/wire"
	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/ops/store"
)

// health answers 200 if and only if a one-token request would succeed now, else 503. The body is
// empty, or says which of several engines do not serve, a line for each, and which change of the
// engines is under way. With the parameter
// generate it asks the engine for that token, which needs a key.
func (s *API) health(w http.ResponseWriter, r *server.Request) error {
	ctx, cancel := context.WithTimeout(r.Context(), s.lim.HealthTimeout)
	defer cancel()
	err := s.opt.Engine.Healthy(ctx)
	if err == nil && r.URL.Query().Has("generate") {
		if !s.Admits(r) {
			return &wire.Error{Status: http.StatusUnauthorized, Message: "Unauthorized"}
		}
		err = s.oneToken(ctx)
	}
	if err == nil {
		if err := s.openStores(); err != nil {
			return &wire.Error{Status: http.StatusServiceUnavailable, RetryAfter: 1, Expected: true,
				Message: "what is stored cannot be had yet: " + err.Error()}
		}
	}
	switch {
	case err == nil:
		return s.writeDegraded(ctx, w)
	case errors.Is(err, context.DeadlineExceeded):
		return &wire.Error{Status: http.StatusServiceUnavailable, RetryAfter: 1,
			Message: "engine did not answer the health check within " +
				s.lim.HealthTimeout.Round(time.Millisecond).String()}
	case errors.Is(err, engine.ErrStopped):
		return wire.Draining()
	case r.Context().Err() != nil:
		return r.Context().Err()
	}
	return &wire.Error{Status: http.StatusServiceUnavailable, RetryAfter: 1, Message: err.Error(),
		Expected: errors.Is(err, engine.ErrRecovering) || errors.Is(err, engine.ErrStalled) ||
			errors.Is(err, engine.ErrPaused)}
}

// openStores opens the stores where they are not open yet: a server that was handed its socket
// waits for the one before, which has them until it ends.
func (s *API) openStores() error {
	for _, kept := range []*store.Store{s.opt.Store, s.opt.Responses} {
		if kept == nil {
			continue
		}
		if err := kept.Open(); err != nil {
			return err
		}
	}
	return nil
}

// writeDegraded answers that a request would succeed.
func (s *API) writeDegraded(ctx context.Context, w http.ResponseWriter) error {
	var text strings.Builder
	if s.opt.Health != nil {
		for i, err := range s.opt.Health(ctx) {
			if err != nil {
				fmt.Fprintf(&text, "engine %d: %v\n", s.opt.Info.First+i, err)
			}
		}
	}
	if s.opt.Elastic != nil {
		if what := s.opt.Elastic.Scaling(); what != "" {
			text.WriteString(what + "\n")
		}
	}
	if text.Len() > 0 {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	}
	w.WriteHeader(http.StatusOK)
	_, _ = io.WriteString(w, text.String()) // who asked may have gone
	return nil
}

// oneToken asks the engine for a token.
func (s *API) oneToken(ctx context.Context) error {
	stream, err := s.opt.Engine.Submit(ctx, engine.OneToken(s.opt.Info.Pooling))
	if err != nil {
		return err
	}
	defer stream.Close()
	_, err = stream.Next(ctx)
	return err
}

// alive answers GET /livez with 200 unless the engine has failed for good: a server that recovers,
// loads or drains is not to be restarted.
func (s *API) alive(w http.ResponseWriter, r *server.Request) error {
	if err := s.opt.Engine.Healthy(r.Context()); errors.Is(err, engine.ErrFailed) {
		return err
	}
	w.WriteHeader(http.StatusOK)
	return nil
}

// versionAnswer is the answer of GET /version, loadAnswer that of GET /load.
type versionAnswer struct {
	Version string `json:"version"`
}

type loadAnswer struct {
	Load int64 `json:"server_load"`
}

// version answers GET /version.
func (s *API) version(w http.ResponseWriter, _ *server.Request) error {
	return s.WriteJSON(w, versionAnswer{s.opt.Version})
}

// showLoad answers GET /load: generation requests in flight.
func (s *API) showLoad(w http.ResponseWriter, _ *server.Request) error {
	return s.WriteJSON(w, loadAnswer{s.InFlight()})
}
