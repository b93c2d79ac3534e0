package engine

import (
	"context"
	"time"

	"github.com/eagleray/eagleray/internal/group/executor"
	"github.com/eagleray/eagleray/internal/link/rpc"
	"github.com/eagleray/eagleray/internal/rank/calls"
)

// Probe is what a rank says of itself when it is asked.
type Probe struct {
	calls.Probed
	Rank int
	Node string
	// Skew is how far the rank's clock is ahead of the driver's, known to half of Trip, the time of
	// the call.
	Skew, Trip time.Duration
}

// Probe asks every rank.
func (e *Engine) Probe(ctx context.Context) ([]Probe, error) {
	group := e.ranks.Current()
	begun := time.Now()
	answers, err := executor.Call(ctx, group, calls.Probe, rpc.None{}, executor.RPCOptions{})
	if err != nil {
		return nil, err
	}
	trip := time.Since(begun)
	middle := begun.Add(trip / 2).UnixNano()
	probes := make([]Probe, len(answers))
	for i, s := range group.Report() {
		probes[i] = Probe{Probed: answers[i], Rank: i, Node: s.Node,
			Skew: time.Duration(answers[i].Clock - middle), Trip: trip}
	}
	return probes, nil
}

// RankTimes returns the times of the plans that every rank has recorded, by rank, and has each
// record those of the next n plans.
func (e *Engine) RankTimes(ctx context.Context, n int) ([][]calls.StepTimes, error) {
	return executor.Call(ctx, e.ranks.Current(), calls.Times, n, executor.RPCOptions{})
}
