package nodes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/eagleray/eagleray/internal/group/launch"
	"github.com/eagleray/eagleray/internal/group/launch/process"
	"github.com/eagleray/eagleray/internal/link/status"
	"github.com/eagleray/eagleray/internal/sys/machine"
)

// Group is one of the groups of ranks that the nodes run at the same time, all with as many slots:
// the slots of all of them, group by group, are divided among the nodes in order.
type Group struct {
	// Number is the group's, from 0, Slots is for how many ranks its nodes have room. One that has
	// shrunk has fewer: they are in the first slots of the nodes that are there.
	Number, Slots int
	// Share is how many slots each node has, of all groups.
	Share int
	Log   *slog.Logger
	// Events is notified of the nodes that a start waits for.
	Events status.Listener
}

// node is the one that has a slot.
func (g *Group) node(slot int) int { return (g.Number*g.Slots + slot) / g.Share }

// nodes are those that the group has slots on, from first up to end.
func (g *Group) nodes() (first, end int) { return g.node(0), g.node(g.Slots-1) + 1 }

// slots are those on nodes that are not missing.
func (g *Group) slots(missing []int) (there []int) {
	for slot := range g.Slots {
		if !slices.Contains(missing, g.node(slot)) {
			there = append(there, slot)
		}
	}
	return there
}

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

	// patience is for how long the ranks may lack a node, 0 for as long as the options say.
	patience time.Duration

	mu sync.Mutex
	// ordered are the nodes that have been ordered to start ranks, ranks how many there are in all.
	ordered []*member
	ranks   int
}

// SetPatience sets for how long the next ranks may lack a node before Launch gives up with a
// *launch.NoPlace; 0 is --distributed-timeout-seconds.
func (l *Launcher) SetPatience(d time.Duration) { l.patience = d }

// Room tells whether the nodes that are there have slots for so many more ranks.
func (l *Launcher) Room(_ context.Context, more int) (bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.slots(l.cluster.Missing(&l.Group))) >= l.ranks+more, nil
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

// launch starts the ranks by the nodes that are there when they have a slot for each.
func (l *Launcher) launch(ctx context.Context, specs []launch.Spec) ([]launch.Worker, error) {
	there, slots, err := l.cluster.wait(ctx, &l.Group, len(specs), l.patience)
	if err != nil {
		return nil, err
	}
	on := map[int][]launch.Spec{}
	for i, slot := range slots {
		node := l.node(slot)
		on[node] = append(on[node], specs[i])
	}
	nodes := slices.DeleteFunc(there, func(m *member) bool { return on[m.Node] == nil })
	for _, m := range l.orderedNodes(true) {
		if on[m.Node] == nil { // others have its ranks now
			m.stop(ctx, l.Number, &stop{})
		}
	}
	// Drop unread exits of earlier groups; the launch below checks which ranks live.
	for len(l.exited) > 0 {
		<-l.exited
	}
	l.mu.Lock()
	l.ordered, l.ranks = nodes, len(specs)
	l.mu.Unlock()
	for i, slot := range slots {
		inv := specs[i].Invitation
		inv.Place = l.place(slot)
		inv.Ordinal = inv.Place.Index
	}
	for _, m := range nodes {
		if err := m.start(l, on[m.Node]); err != nil {
			m.conn.Close()
			<-m.gone
			return nil, fmt.Errorf("%s: %w", m.label, &goneError{inWords(err)})
		}
	}
	workers, err := l.own.Launch(ctx, on[0])
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

// place is a slot's among those of its node, of all groups.
func (g *Group) place(slot int) machine.Place {
	return machine.Place{Index: (g.Number*g.Slots + slot) % g.Share, Of: g.Share}
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
