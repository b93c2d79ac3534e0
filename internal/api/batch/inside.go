package batch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/eagleray/eagleray/internal/api/call"
	"github.com/eagleray/eagleray/internal/api/server"
	"github.com/eagleray/eagleray/internal/api/wire"
	"github.com/eagleray/eagleray/internal/engine"
)

// rowPaths are the routes that rows of a batch may ask, as far as the server has them.
var rowPaths = []string{"/v1/chat/completions", "/v1/completions", "/v1/responses",
	"/v1/embeddings", "/v1/score", "/score", "/rerank", "/v1/rerank", "/v2/rerank", "/v1/messages"}

// answersRows reports whether rows of a batch may ask a path.
func (s *API) answersRows(path string) bool {
	return slices.Contains(rowPaths, path) && s.Posts(path)
}

// Row answers a row of a batch of a client as its route answers a request. It fails with an error
// that wraps ErrUnavailable where a client would be told to come again, and with ctx's.
func (s *API) Row(ctx context.Context, client string, row *Row) (Answer, error) {
	a := Answer{RequestID: call.NewID()}
	q := server.Inside{ID: a.RequestID, Client: client, Path: row.URL, Body: row.Body}
	var err error
	if s.answersRows(row.URL) {
		a.Status, a.Body, err = s.Answer(ctx, q)
	} else {
		err = wire.BadRequest("url", "`url` %s is none that rows of a batch may have",
			wire.Clip(row.URL))
	}
	switch {
	case ctx.Err() != nil:
		return a, ctx.Err()
	case errors.Is(err, engine.ErrFailed), errors.Is(err, engine.ErrStopped):
		return a, fmt.Errorf("%w: %w", ErrUnavailable, err)
	case err != nil:
		api := s.StatusOf(err).OnWire()
		if api.Status == http.StatusServiceUnavailable {
			return a, fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
		s.LogError(err, api, "id", a.RequestID)
		a.Status, a.Body = s.Failure(q, api)
	case !json.Valid(a.Body):
		return a, fmt.Errorf("the answer of %s is not JSON", row.URL)
	}
	return a, nil
}
