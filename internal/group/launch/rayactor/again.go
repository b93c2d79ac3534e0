package rayactor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/eagleray/eagleray/internal/group/launch"
	"github.com/eagleray/eagleray/internal/ray"
)

// endTimeout bounds the end of workers and actors that are replaced.
const endTimeout = 10 * time.Second

// lostTimeout bounds the question which nodes are lost; a silent one takes half of it.
const lostTimeout = 3 * time.Second

// findLost finds out which of the nodes that ranks were placed on are lost. Ray places bundles on a
// node whose raylet has crashed, and waits for actors there, until its own health checks fail.
// Without an answer, as while the GCS is down, what was known before holds.
func (l *Launcher) findLost(ctx context.Context) {
	ids := append(slices.Clone(l.nodes), l.lost...)
	bounded, cancel := context.WithTimeout(ctx, lostTimeout)
	defer cancel()
	if l.patience > 0 {
		// Ranks of another layout go where none was.
		nodes, err := l.client.Nodes(bounded)
		if err != nil {
			l.o.Log.Debug("the nodes are not known", "error", err)
		}
		for _, n := range nodes {
			if n.Alive {
				ids = append(ids, n.ID)
			}
		}
	}
	if len(ids) == 0 {
		return
	}
	slices.Sort(ids)
	lost, err := l.client.LostNodes(bounded, slices.Compact(ids))
	if err != nil {
		l.o.Log.Debug("nodes cannot be asked whether they are lost", "error", err)
		return
	}
	l.lost = lost
}

// again starts the group after a failed one with the remaining actors and workers. A worker that
// has ended is replaced in its actor, a lost actor in its bundle. That needs the placement group to
// have all its bundles: one of ours that has lost a node does not come back by itself in any
// bounded time, while an adopted one is not ours to remove, and is waited for.
func (l *Launcher) again(ctx context.Context, specs []launch.Spec) ([]launch.Worker, error) {
	old := l.last
	l.last = nil
	s := &start{Launcher: l, specs: specs, instance: old.instance, turn: old.turn + 1,
		bundles: slices.Clone(old.bundles),
		facts:   slices.Clone(old.facts), places: slices.Clone(old.places),
		paths: slices.Clone(old.paths), workers: slices.Clone(old.workers)}
	l.mu.Lock()
	for rank, spec := range specs {
		switch _, runs := l.running[rank]; {
		case slices.Contains(l.lost, s.bundles[rank].NodeID):
			s.fresh, s.actors = append(s.fresh, rank), append(s.actors, rank)
		case spec.Fresh || !runs:
			s.fresh = append(s.fresh, rank)
		}
	}
	l.mu.Unlock()
	if len(s.actors) > 0 && l.o.PlacementGroup == "" {
		f := s.facts[s.actors[0]]
		return nil, fmt.Errorf("node %s (%s) is lost", f.NodeIP, shortID(f.NodeID))
	}
	if err := s.end(ctx); err != nil {
		return nil, err
	}
	names := []string{"init"}
	if len(s.actors) > 0 {
		names = []string{"replace", "spawn", "identify", "share", "ship", "init"}
	}
	if err := l.phases(ctx, s, names...); err != nil {
		return nil, err
	}
	l.last = s
	return s.workers, nil
}

// end ends the workers that are replaced. It also replaces each actor that fails to end its worker,
// and asks none of a lost node.
func (s *start) end(ctx context.Context) error {
	if len(s.fresh) == 0 {
		return nil
	}
	// This comes first: their ends may be reported before StopWorkers returns.
	s.mu.Lock()
	for _, rank := range s.fresh {
		if pid, runs := s.running[rank]; runs {
			s.before[rank] = pid
			delete(s.running, rank)
		}
	}
	s.mu.Unlock()
	if asked := slices.DeleteFunc(slices.Clone(s.fresh), func(rank int) bool {
		return slices.Contains(s.actors, rank)
	}); len(asked) > 0 {
		bounded, cancel := context.WithTimeout(ctx, endTimeout)
		defer cancel()
		var failed ray.RankErrors
		switch err := s.client.StopWorkers(bounded, asked, 0); {
		case errors.As(err, &failed):
			s.actors = append(s.actors, failed.Ranks()...)
		case err != nil && ctx.Err() == nil && bounded.Err() != nil:
			s.actors = append(s.actors, asked...)
		case err != nil:
			return err
		}
	}
	if len(s.actors) == 0 {
		return nil
	}
	return s.client.KillActors(ctx, s.actors)
}

// placeAgain waits until the placement group has all its bundles, which may be on other nodes than
// before.
func (s *start) placeAgain(ctx context.Context) ([]any, error) {
	g, err := s.client.Group(ctx, s.group)
	for err == nil && (g.State != ray.GroupCreated || s.onLost(g)) {
		switch {
		case s.o.PlacementGroup == "":
			return nil, fmt.Errorf("the placement group is %s", g.State)
		case g.State != ray.GroupCreated:
			err = s.await(ctx, true)
		default:
			// Ray does not know yet; nothing makes it look.
			if err = wait(ctx, lookEvery); err == nil {
				s.findLost(ctx)
			}
		}
		if err == nil {
			g, err = s.client.Group(ctx, s.group)
		}
	}
	if err != nil {
		return nil, err
	}
	moved := 0
	for rank := range s.bundles {
		b := &s.bundles[rank]
		i := slices.IndexFunc(g.Bundles, func(x ray.Bundle) bool { return x.Index == b.Index })
		if i < 0 {
			return nil, fmt.Errorf("the placement group has no bundle %d any more", b.Index)
		}
		if g.Bundles[i].NodeID != b.NodeID {
			b.NodeID = g.Bundles[i].NodeID
			moved++
			if !slices.Contains(s.actors, rank) {
				return nil, fmt.Errorf("bundle %d of rank %d is on another node", b.Index, rank)
			}
		}
	}
	s.noteNodes()
	return []any{"group", s.group, "actors", len(s.actors), "moved", moved}, nil
}

// onLost says that a rank's bundle is on a lost node.
func (s *start) onLost(g ray.Group) bool {
	return slices.ContainsFunc(g.Bundles, func(x ray.Bundle) bool {
		return slices.Contains(s.lost, x.NodeID) &&
			slices.ContainsFunc(s.bundles, func(b Bundle) bool { return b.Index == x.Index })
	})
}

// lookEvery is the time between two looks at what Ray does not tell.
const lookEvery = 200 * time.Millisecond

// wait waits for a time, or the end of ctx, which is an error.
func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// clear removes the actors of a start, and its placement group unless it was adopted.
func (l *Launcher) clear(ctx context.Context) error {
	bounded, cancel := context.WithTimeout(ctx, closeTimeout)
	defer cancel()
	all := make([]int, l.o.Layout.World())
	for rank := range all {
		all[rank] = rank
	}
	if err := l.client.KillActors(bounded, all); err != nil {
		return err
	}
	l.mu.Lock()
	group := l.group
	for rank, pid := range l.running {
		l.before[rank] = pid
	}
	clear(l.running)
	l.mu.Unlock()
	if l.o.PlacementGroup != "" {
		return nil
	}
	return l.client.RemoveGroup(bounded, group)
}
