package nodes

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/eagleray/eagleray/internal/executor/launch"
	"github.com/eagleray/eagleray/internal/executor/launch/process"
	"github.com/eagleray/eagleray/internal/machine"
)

// Launcher starts the ranks of groups: its share on this node, and the others by the nodes of the
// cluster. From one group to the next, ranks that live stay.
type Launcher struct {
	cluster *Cluster
	own     *process.Launcher

	exited   chan launch.Exit
	relaying sync.WaitGroup
	// ctx ends with Stop.
	ctx context.Context
	end context.CancelFunc

	mu sync.Mutex
	// nodes have been ordered to start ranks.
	nodes []*member
}

// startTimeout bounds the start of ranks on a node that was ordered.
const startTimeout = time.Minute

// relay hands on the ends of this node's ranks.
func (l *Launcher) relay() {
	for {
		select {
		case e := <-l.own.Exited():
			l.report(e)
		case <-l.ctx.Done():
			return
		}
	}
}

// report hands on the end of a rank. When as many as ranks have not been heard the next group, which
// finds out for itself who lives, has yet to start.
func (l *Launcher) report(e launch.Exit) {
	select {
	case l.exited <- e:
	default:
	}
}

// Launch waits for the other nodes, and starts all ranks but those that it keeps. When a node goes
// meanwhile it waits for another one. On an error Stop ends what was started.
func (l *Launcher) Launch(ctx context.Context, specs []launch.Spec) ([]launch.Worker, error) {
	count := l.cluster.o.Nodes
	share := len(specs) / count
	if share*count != len(specs) || len(specs) >= cap(l.exited) {
		return nil, fmt.Errorf("--nnodes %d does not divide the %d ranks", count, len(specs))
	}
	for {
		workers, err := l.launch(ctx, specs, share)
		if gone := (*goneError)(nil); !errors.As(err, &gone) {
			return workers, err
		}
	}
}

// launch starts the ranks by the nodes that are there when all are.
func (l *Launcher) launch(
	ctx context.Context, specs []launch.Spec, share int,
) ([]launch.Worker, error) {
	nodes, err := l.cluster.wait(ctx)
	if err != nil {
		return nil, err
	}
	// Ends that nobody has heard are of groups before: who lives is asked now.
	for len(l.exited) > 0 {
		<-l.exited
	}
	l.mu.Lock()
	l.nodes = nodes
	l.mu.Unlock()
	for _, m := range nodes {
		if err := m.start(l, specs[m.Node*share:][:share]); err != nil {
			m.conn.Close()
			<-m.gone
			return nil, fmt.Errorf("%s: %w", m.label, &goneError{inWords(err)})
		}
	}
	for i := range specs[:share] {
		specs[i].Invitation.Threads = threads(share)
	}
	workers, err := l.own.Launch(ctx, specs[:share])
	if err != nil {
		return nil, err
	}
	for _, m := range nodes {
		theirs, err := m.started(ctx)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", m.label, err)
		}
		workers = append(workers, theirs...)
	}
	return workers, nil
}

// threads is a rank's share of this machine's cores.
func threads(ranks int) int { return max(1, machine.Cores()/ranks) }

// Serving tells the other nodes that all ranks have loaded.
func (l *Launcher) Serving() {
	for _, m := range l.ordered() {
		// One that cannot be told is gone, which its reader sees.
		_ = m.send(order{Serving: true})
	}
}

func (l *Launcher) ordered() []*member {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.nodes
}

// Exited delivers ends of ranks, of all nodes, that were not asked for.
func (l *Launcher) Exited() <-chan launch.Exit { return l.exited }

// Stop ends the ranks of all nodes, which stay for the next group.
func (l *Launcher) Stop(ctx context.Context, cause error) error {
	var s stop
	if cause != nil {
		s.Cause = cause.Error()
	}
	late, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	nodes := l.ordered()
	l.mu.Lock()
	l.nodes = nil
	l.mu.Unlock()
	var stopping sync.WaitGroup
	for _, m := range nodes {
		stopping.Go(func() { m.stop(late, &s) })
	}
	err := l.own.Stop(ctx, cause)
	stopping.Wait()
	l.end()
	l.relaying.Wait()
	return err
}
