package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/eagleray/eagleray/internal/group/executor"
	"github.com/eagleray/eagleray/internal/link/queue"
)

// Probe is what a rank says of itself when it is asked.
type Probe struct {
	queue.Probe
	Rank int
	Node string
	// Skew is how far the rank's clock is ahead of the driver's, known to half of Trip, the time of
	// the call.
	Skew, Trip time.Duration
}

// Probe asks every rank.
func (e *Engine) Probe(ctx context.Context) ([]Probe, error) {
	group := e.ranks.current()
	begun := time.Now()
	replies, err := group.CollectiveRPC(ctx, "probe", nil, executor.RPCOptions{})
	if err != nil {
		return nil, err
	}
	trip := time.Since(begun)
	middle := begun.Add(trip / 2).UnixNano()
	probes := make([]Probe, len(replies))
	for i, s := range group.Report() {
		p := &probes[i]
		if err := json.Unmarshal(replies[i], &p.Probe); err != nil {
			return nil, fmt.Errorf("probe of rank %d: %w", i, err)
		}
		p.Rank, p.Node = i, s.Node
		p.Skew, p.Trip = time.Duration(p.Clock-middle), trip
	}
	return probes, nil
}
