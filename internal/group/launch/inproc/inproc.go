// Package inproc starts ranks as goroutines of the driver (--distributed-executor-backend uni).
package inproc

import (
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	"github.com/eagleray/eagleray/internal/group/launch"
	"github.com/eagleray/eagleray/internal/link/collective"
	"github.com/eagleray/eagleray/internal/link/join"
	"github.com/eagleray/eagleray/internal/link/queue"
	"github.com/eagleray/eagleray/internal/rank/worker"
	"github.com/eagleray/eagleray/internal/sys/machine"
)

// Launcher runs ranks in the driver's process. They have what ranks in child processes have: a
// queue that copies records, shared memory to exchange tensors in, a share of the cores.
type Launcher struct {
	exited  chan launch.Exit
	running sync.WaitGroup
	hub     queue.Hub
	engine  machine.Place
	groups  []join.Groups // by rank; nil for one that is alone
	// life ends with Stop.
	life context.Context
	end  context.CancelFunc
	// wrap decorates a rank's port in tests.
	wrap func(rank int, p queue.Port) queue.Port
}

// New makes a launcher of the ranks of one engine of those of this process.
func New(engine machine.Place) *Launcher {
	l := &Launcher{engine: engine, wrap: func(_ int, p queue.Port) queue.Port { return p }}
	l.life, l.end = context.WithCancel(context.Background())
	return l
}

// Launch starts the ranks.
func (l *Launcher) Launch(_ context.Context, specs []launch.Spec) ([]launch.Worker, error) {
	if err := l.connect(specs); err != nil {
		return nil, err
	}
	hub, ports := queue.Pipes(len(specs))
	l.hub, l.exited = hub, make(chan launch.Exit, len(specs))
	workers := make([]launch.Worker, len(specs))
	for i, s := range specs {
		workers[i] = launch.Worker{Rank: s.Rank, LocalRank: s.LocalRank, Node: launch.ThisHost,
			PID: os.Getpid(), Hub: hub}
		l.running.Go(func() {
			l.run(s.Rank, l.wrap(s.Rank, ports[i]), machine.Place{
				Index: l.engine.Index*len(specs) + i, Of: max(1, l.engine.Of) * len(specs)})
		})
	}
	return workers, nil
}

// connect makes the communicators of several ranks.
func (l *Launcher) connect(specs []launch.Spec) (err error) {
	if len(specs) > 1 {
		l.groups, err = join.InProcess(specs[0].Layout, specs[0].CollectiveTimeout)
	}
	return err
}

// run is one rank, from its first record to its end.
func (l *Launcher) run(rank int, port queue.Port, place machine.Place) {
	end := launch.End{How: launch.Returned}
	opt := worker.Options{Rank: rank, Place: place, DriversClock: true}
	if l.groups != nil {
		// Ranks that wait for this one are freed by its end. The rank closes the groups that it
		// asks for; it may end before.
		defer l.groups[rank].Close()
		opt.Ended = l.life.Done()
		opt.Groups = func(*atomic.Uint64) (join.Groups, error) { return l.groups[rank], nil }
	}
	if err := worker.Run(port, opt); err != nil {
		end.Reason = err.Error()
	}
	// The port stays open: the rank's last record, its report of an error, may still be in it.
	l.exited <- launch.Exit{Rank: rank, Node: launch.ThisHost, PID: os.Getpid(), End: end}
}

// Exited delivers the ends of the ranks.
func (l *Launcher) Exited() <-chan launch.Exit { return l.exited }

// Stop ends the ranks and waits for them until ctx ends: what a rank computes cannot be
// interrupted, only its waits for others. It then ends by itself after the step.
func (l *Launcher) Stop(ctx context.Context, _ error) error {
	if l.hub != nil {
		l.hub.Close()
	}
	l.end()
	for _, g := range l.groups {
		g.Abort(collective.ErrClosed)
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
		return fmt.Errorf("ranks of this process still compute: %w", ctx.Err())
	}
}
