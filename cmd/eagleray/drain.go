package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/eagleray/eagleray/internal/engine/replicas"
)

// errCut is the end of a server whose requests were not all done.
var errCut = errors.New("requests were cut off before they were done")

// drain refuses new requests and lets running ones finish within the time given, also while a rank
// is stalled or another one takes its place: it may go on. The error wraps errCut when some did not
// finish.
//
// A server whose socket another one has too refuses nothing: it accepts no more connections, which
// the other does, and answers what comes on those that it has: answer, which is nil for others,
// does so.
func drain(log *slog.Logger, server *http.Server, e *replicas.Router,
	within time.Duration, answer func(context.Context)) error {
	now := e.Totals()
	log.Info("shutting down: running requests may finish; another Ctrl-C or signal ends now",
		"within", within, "running", now.Running, "waiting", now.Waiting)
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	if answer != nil {
		answer(ctx)
	}
	err := e.Stop(ctx)
	// The requests are over; their last bytes are on the way.
	last, cancel := context.WithTimeout(context.Background(), failureGrace)
	defer cancel()
	if shutdown := server.Shutdown(last); shutdown != nil {
		server.Close()
	}
	if n := e.Cut(); n > 0 {
		err = errors.Join(fmt.Errorf("%w: %d", errCut, n), err)
	}
	return err
}
