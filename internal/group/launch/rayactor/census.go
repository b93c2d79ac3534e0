package rayactor

import (
	"context"
	"fmt"
	"sync"
)

// Census counts the ranks of several engines on each node: engines are placed independently, and
// share the nodes' cores.
type Census struct {
	mu sync.Mutex
	// ranks are those of each engine by node, nil until it is placed, and told are the engines that
	// Count has answered.
	ranks map[int]map[string]int
	told  map[int]bool
	// changed is closed, and replaced, when an engine is placed or deregistered.
	changed chan struct{}
}

// NewCensus returns a Census of so many engines, none of them placed.
func NewCensus(engines int) *Census {
	c := &Census{ranks: map[int]map[string]int{}, told: map[int]bool{},
		changed: make(chan struct{})}
	for i := range engines {
		c.ranks[i] = nil
	}
	return c
}

// Register enters an engine that will be placed.
func (c *Census) Register(engine int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ranks[engine] = nil
}

// Deregister removes an engine.
func (c *Census) Deregister(engine int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.ranks, engine)
	delete(c.told, engine)
	c.change()
}

// change wakes the calls of Count that wait. c.mu is held.
func (c *Census) change() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// Count records the nodes of an engine's ranks, one entry for each, and waits until all engines are
// placed; one that is placed again does not wait for engines that are being added. It returns the
// number of ranks on each node.
func (c *Census) Count(ctx context.Context, engine int, nodes []string) (map[string]int, error) {
	own := map[string]int{}
	for _, n := range nodes {
		own[n]++
	}
	c.mu.Lock()
	c.ranks[engine] = own
	c.change()
	c.mu.Unlock()
	for {
		all, changed := c.sum(engine)
		if all != nil {
			return all, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting for the placement of the other engines: %w", ctx.Err())
		}
	}
}

// sum returns the number of ranks on each node, nil while the engine has to wait for another one to
// be placed, and a channel that is closed when that changes.
func (c *Census) sum(engine int) (all map[string]int, changed chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	all = map[string]int{}
	for _, ranks := range c.ranks {
		if ranks == nil && !c.told[engine] {
			return nil, c.changed
		}
		for node, n := range ranks {
			all[node] += n
		}
	}
	c.told[engine] = true
	return all, c.changed
}

// share divides the cores of each node among the ranks of all engines there.
func (s *start) share(ctx context.Context) ([]any, error) {
	nodes := make([]string, len(s.facts))
	for i, f := range s.facts {
		nodes[i] = f.NodeID
	}
	all, err := s.o.Census.Count(ctx, s.o.Engine, nodes)
	if err != nil {
		return nil, err
	}
	most := 0
	for i := range s.places {
		n := all[nodes[i]]
		s.places[i].Threads = max(s.facts[i].CPUs/n, 1)
		most = max(most, n)
	}
	return []any{"ranks_per_node", most}, nil
}
