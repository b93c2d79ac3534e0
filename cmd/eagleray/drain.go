package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/eagleray/eagleray/internal/router"
	"github.com/eagleray/eagleray/internal/status"
)

// errCut is the end of a server whose requests were not all done.
var errCut = errors.New("requests were cut off before they were done")

// stalled is a rank that was found to be stalled, and the number of its engine.
type stalled struct {
	engine int
	status.RankStalled
}

// stalls holds the newest of them until it is looked at.
type stalls chan stalled

// listen is a status.Listener.
func (s stalls) listen(event status.Event) {
	event, engine := status.Source(event)
	if e, ok := event.(status.RankStalled); ok {
		select {
		case s <- stalled{engine, e}:
		default:
		}
	}
}

// drain refuses new requests and lets running ones finish within the time given, or until a rank
// is stalled: then no request would. The error wraps errCut when some did not finish.
//
// A server whose socket another one has too refuses nothing: it accepts no more connections, which
// the other does, and answers what comes on those that it has. accepted, which is nil for others, is
// then closed when the last of them is known to it.
func drain(log *slog.Logger, server *http.Server, e *router.Router, found stalls,
	within time.Duration, accepted <-chan struct{}) error {
	now := e.Totals()
	log.Info("shutting down: running requests may finish; another Ctrl-C or signal ends now",
		"within", within, "running", now.Running, "waiting", now.Waiting)
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	select {
	case <-found: // what was found before may be over
	default:
	}
	go func() {
		tell := func(engine, rank, pid int, phase string) {
			log := log
			if e.Info().Engines > 1 {
				log = log.With("engine", engine)
			}
			log.Error("a rank is stalled: running requests cannot finish", "rank", rank, "pid", pid,
				"phase", phase)
			cancel()
		}
		for _, r := range e.Report() {
			if r.Stalled {
				tell(r.Engine, r.Rank, r.PID, r.Phase)
				return
			}
		}
		select {
		case <-ctx.Done():
		case r := <-found:
			tell(r.engine, r.Rank, r.PID, r.Phase)
		}
	}()
	if accepted != nil {
		// What keeps it from its end keeps the engine, too. The first call may miss a connection that
		// is being accepted.
		_ = server.Shutdown(ctx)
		<-accepted
		_ = server.Shutdown(ctx)
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
