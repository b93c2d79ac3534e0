package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/status"
)

// errCut is the end of a server whose requests were not all done.
var errCut = errors.New("requests were cut off before they were done")

// stalls holds the newest rank that was found to be stalled, until it is looked at.
type stalls chan status.RankStalled

// listen is a status.Listener.
func (s stalls) listen(event status.Event) {
	if e, ok := event.(status.RankStalled); ok {
		select {
		case s <- e:
		default:
		}
	}
}

// drain refuses new requests and lets running ones finish within the time given, or until a rank
// is stalled: then no request would. The error wraps errCut when some did not finish.
func drain(log *slog.Logger, server *http.Server, e *engine.Engine, stalled stalls,
	within time.Duration) error {
	now := e.Totals()
	log.Info("shutting down: running requests may finish; another Ctrl-C or signal ends now",
		"within", within, "running", now.Running, "waiting", now.Waiting)
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	select {
	case <-stalled: // what was found before may be over
	default:
	}
	go func() {
		for _, r := range e.Report() {
			if r.Stalled {
				log.Error("a rank is stalled: running requests cannot finish", "rank", r.Rank,
					"pid", r.PID, "phase", r.Phase)
				cancel()
				return
			}
		}
		select {
		case <-ctx.Done():
		case r := <-stalled:
			log.Error("a rank is stalled: running requests cannot finish", "rank", r.Rank,
				"pid", r.PID, "phase", r.Phase)
			cancel()
		}
	}()
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
