// Package inproc starts a rank as a goroutine of the driver (--distributed-executor-backend uni).
package inproc

import (
	"context"
	"fmt"
	"os"
	"sync"

	"github.com/eagleray/eagleray/internal/executor/launch"
	"github.com/eagleray/eagleray/internal/queue"
	"github.com/eagleray/eagleray/internal/worker"
)

// Launcher runs one rank in the driver's process.
type Launcher struct {
	exited  chan launch.Exit
	running sync.WaitGroup
	hub     queue.Hub
}

// New makes a launcher.
func New() *Launcher { return &Launcher{exited: make(chan launch.Exit, 1)} }

// Launch starts the rank; more than one is refused.
func (l *Launcher) Launch(_ context.Context, specs []launch.Spec) ([]launch.Worker, error) {
	if len(specs) != 1 {
		return nil, fmt.Errorf("uni runs one rank, not %d: use --distributed-executor-backend mp",
			len(specs))
	}
	hub, port := queue.Pipe()
	l.hub = hub
	l.running.Go(func() {
		end := launch.End{How: launch.Returned}
		if err := worker.Run(port, worker.Options{DriversClock: true}); err != nil {
			end.Reason = err.Error()
		}
		// The pipe stays open: the rank's last record, its report of an error, may still be in it.
		l.exited <- launch.Exit{Rank: 0, Node: launch.ThisHost, PID: os.Getpid(), End: end}
	})
	return []launch.Worker{{Rank: 0, Node: launch.ThisHost, PID: os.Getpid(), Hub: hub}}, nil
}

// Exited delivers the end of the rank.
func (l *Launcher) Exited() <-chan launch.Exit { return l.exited }

// Stop ends the rank and waits for it until ctx ends: a step under way cannot be interrupted. The
// rank then ends by itself after the step.
func (l *Launcher) Stop(ctx context.Context) error {
	if l.hub != nil {
		l.hub.Close()
	}
	ended := make(chan struct{})
	go func() {
		l.running.Wait()
		close(ended)
	}()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("rank 0 still computes: %w", ctx.Err())
	}
}
