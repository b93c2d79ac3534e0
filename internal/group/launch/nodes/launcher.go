package nodes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/eagleray/eagleray/internal/group/launch"
	"github.com/eagleray/eagleray/internal/group/launch/process"
	"github.com/eagleray/eagleray/internal/link/status"
	"github.com/eagleray/eagleray/internal/sys/machine"
)

// Group is one of the groups of ranks that the nodes run at the same time, all of one size: the
// ranks of all of them, group by group, are divided among the nodes in order.
type Group struct {
	// Number is the group's, from 0, Ranks is how many it has.
	Number, Ranks int
	// Share is how many ranks each node has, of all groups.
	Share int
	Log   *slog.Logger
	// Events is notified of the nodes that a start waits for.
	Events status.Listener
}

// node is the one that has a rank.
func (g *Group) node(rank int) int { return (g.Number*g.Ranks + rank) / g.Share }

// nodes are those that the group has ranks on, from first up to end.
func (g *Group) nodes() (first, end int) { return g.node(0), g.node(g.Ranks-1) + 1 }

// Launcher starts the ranks of a group: its share on this node, and the others by the nodes of the
// cluster. From one group to the one that takes its place, ranks that live stay.
type Launcher struct {
	Group
	cluster *Cluster
	own     *process.Launcher

	exited   chan launch.Exit
	relaying sync.WaitGroup
	// ctx ends with Stop.
	ctx context.Context
	end context.CancelFunc

	mu sync.Mutex
	// ordered are the nodes that have been ordered to start ranks.
	ordered []*member
}

// startTimeout bounds the start of ranks on a node that was ordered.
const startTimeout = time.Minute

// relay forwards the ends of this node's ranks.
func (l *Launcher) relay() {
	for {
		select {
		case e := <-l.own.Exited():
			l.forward(e)
		case <-l.ctx.Done():
			return
		}
	}
}

// forward sends the end of a rank to Exited. It drops the end when the channel is full: then the
// group is dead, and the next Launch checks itself which ranks live.
func (l *Launcher) forward(e launch.Exit) {
	select {
	case l.exited <- e:
	default:
	}
}

// Launch waits for the other nodes, and starts all ranks but those that it reuses. When a node goes
// meanwhile it waits for another one. After an error Stop ends the started ranks.
func (l *Launcher) Launch(ctx context.Context, specs []launch.Spec) ([]launch.Worker, error) {
	for {
		workers, err := l.launch(ctx, specs)
		if gone := (*goneError)(nil); !errors.As(err, &gone) {
			return workers, err
		}
	}
}

// launch starts the ranks by the nodes that are there when all are.
func (l *Launcher) launch(ctx context.Context, specs []launch.Spec) ([]launch.Worker, error) {
	nodes, err := l.cluster.wait(ctx, &l.Group)
	if err != nil {
		return nil, err
	}
	// Drop unread exits of earlier groups; the launch below checks which ranks live.
	for len(l.exited) > 0 {
		<-l.exited
	}
	l.mu.Lock()
	l.ordered = nodes
	l.mu.Unlock()
	for i := range specs {
		inv := specs[i].Invitation
		inv.Place = l.place(specs[i].Rank)
		inv.Ordinal = inv.Place.Index
	}
	for _, m := range nodes {
		if err := m.start(l, l.on(m.Node, specs)); err != nil {
			m.conn.Close()
			<-m.gone
			return nil, fmt.Errorf("%s: %w", m.label, &goneError{inWords(err)})
		}
	}
	own := l.on(0, specs)
	workers, err := l.own.Launch(ctx, own)
	if err != nil {
		return nil, err
	}
	for _, m := range nodes {
		theirs, err := m.started(ctx, l.Number)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", m.label, err)
		}
		workers = append(workers, theirs...)
	}
	return workers, nil
}

// on are the specs of a node's ranks.
func (l *Launcher) on(node int, specs []launch.Spec) []launch.Spec {
	before := l.Number * l.Ranks
	at := func(n int) int { return min(max(0, n*l.Share-before), len(specs)) }
	return specs[at(node):at(node+1)]
}

// place is a rank's among those of its node, of all groups.
func (g *Group) place(rank int) machine.Place {
	return machine.Place{Index: (g.Number*g.Ranks + rank) % g.Share, Of: g.Share}
}

// Serving tells the other nodes that all ranks have loaded.
func (l *Launcher) Serving() {
	for _, m := range l.orderedNodes(false) {
		// A node that cannot be told is gone, which its reader sees.
		_ = m.send(order{Group: l.Number, Serving: true})
	}
}

// orderedNodes returns the nodes that have been ordered to start ranks, and clears the list if
// forget is set.
func (l *Launcher) orderedNodes(forget bool) []*member {
	l.mu.Lock()
	defer l.mu.Unlock()
	nodes := l.ordered
	if forget {
		l.ordered = nil
	}
	return nodes
}

// Exited delivers the ends of ranks of all nodes that Stop did not cause.
func (l *Launcher) Exited() <-chan launch.Exit { return l.exited }

// Stop ends the ranks of all nodes, which stay for the next group.
func (l *Launcher) Stop(ctx context.Context, cause error) error {
	var s stop
	if cause != nil {
		s.Cause = cause.Error()
	}
	late, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	var stopping sync.WaitGroup
	for _, m := range l.orderedNodes(true) {
		stopping.Go(func() { m.stop(late, l.Number, &s) })
	}
	err := l.own.Stop(ctx, cause)
	stopping.Wait()
	l.end()
	l.relaying.Wait()
	return err
}
