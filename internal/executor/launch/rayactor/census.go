package rayactor

import (
	"context"
	"fmt"
	"sync"
)

// Census counts the ranks of several engines on each node: they are placed each for itself, and
// share the nodes' cores.
type Census struct {
	mu sync.Mutex
	// ranks are those of each engine by node, nil until it is placed; missing counts these.
	ranks   []map[string]int
	missing int
	// complete is closed when every engine is placed.
	complete chan struct{}
}

// NewCensus is for as many engines.
func NewCensus(engines int) *Census {
	return &Census{ranks: make([]map[string]int, engines), missing: engines,
		complete: make(chan struct{})}
}

// Count tells on which nodes the ranks of an engine are, one entry for each, and waits until it is
// known of all engines. It returns how many ranks there are on each node.
func (c *Census) Count(ctx context.Context, engine int, nodes []string) (map[string]int, error) {
	own := map[string]int{}
	for _, n := range nodes {
		own[n]++
	}
	c.mu.Lock()
	if c.ranks[engine] == nil {
		if c.missing--; c.missing == 0 {
			close(c.complete)
		}
	}
	c.ranks[engine] = own
	c.mu.Unlock()
	select {
	case <-c.complete:
	case <-ctx.Done():
		return nil, fmt.Errorf("waiting for the placement of the other engines: %w", ctx.Err())
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	all := map[string]int{}
	for _, ranks := range c.ranks {
		for node, n := range ranks {
			all[node] += n
		}
	}
	return all, nil
}

// share gives each rank its part of the cores that its node has for the ranks of all engines.
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
