package engine

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/eagleray/eagleray/internal/group/executor"
	"github.com/eagleray/eagleray/internal/link/balance"
	"github.com/eagleray/eagleray/internal/link/rpc"
	"github.com/eagleray/eagleray/internal/link/status"
	"github.com/eagleray/eagleray/internal/rank/calls"
)

// minGain is the part of a layer's most loaded rank below which its experts are not moved.
const minGain = 0.02

// moveWithin bounds how long a rank may take to read the experts of a layer.
const moveWithin = 2 * time.Minute

// placements are where the experts of the model's layers are, those that were moved or were to be:
// the loop writes, anyone reads.
type placements struct {
	at atomic.Pointer[map[int]balance.Placement]
}

// of is where a layer's experts are, nil for where they were at the beginning.
func (p *placements) of(layer int) balance.Placement {
	if m := p.at.Load(); m != nil {
		return (*m)[layer]
	}
	return nil
}

func (p *placements) set(layer int, at balance.Placement) {
	next := map[int]balance.Placement{}
	if m := p.at.Load(); m != nil {
		next = maps.Clone(*m)
	}
	next[layer] = at
	p.at.Store(&next)
}

// unmoved is what the experts of a layer are placed on, and where they are that were not moved.
func (l *Loop) unmoved() (ranks balance.Ranks, at balance.Placement, err error) {
	if ranks, err = l.launching.ExpertRanks(l.group.Nodes()); err == nil {
		at, err = balance.Initial(l.e.model.Experts(), ranks)
	}
	return ranks, at, err
}

// move has the ranks hold the experts of a layer elsewhere, with no plan in flight. What is refused
// has changed nothing; after a failure the group cannot go on, and the next one has the placement
// that there was.
func (l *Loop) move(layer int, next balance.Placement) (refused, failure error) {
	if l.e.placed.of(layer) == nil {
		// Ranks that live on must be told of it if the rest is lost on the way.
		_, present, err := l.unmoved()
		if err != nil {
			return err, nil
		}
		l.e.placed.set(layer, present)
	}
	to := calls.Experts{Layer: layer, At: next}
	opt := executor.RPCOptions{Timeout: moveWithin}
	ctx := l.e.ranks.Life
	if _, err := executor.Call(ctx, l.group, calls.ExpertsLoad, to, opt); err != nil {
		if lost := l.group.Err(); lost != nil {
			return nil, lost
		}
		_, failure = executor.Call(ctx, l.group, calls.ExpertsDrop, rpc.None{}, opt)
		return err, failure
	}
	if _, err := executor.Call(ctx, l.group, calls.ExpertsMove, to, opt); err != nil {
		return nil, err
	}
	l.e.placed.set(layer, next)
	return nil, nil
}

// MoveExperts has the ranks hold the experts of a layer as a placement says, from one step to the
// next: all ranks, or none on an error. Placements are of the ranks of a stage, in the order of
// layout.Layout.Experts.
func (e *Engine) MoveExperts(ctx context.Context, layer int, to balance.Placement) error {
	var refused error
	err := e.Between(ctx, Task{Must: true, Do: func(l *Loop) (failure error) {
		refused, failure = l.move(layer, to)
		return failure
	}})
	return errors.Join(err, refused)
}

// placeExperts brings the ranks of a new group to the placements that count.
func (l *Loop) placeExperts() error {
	m := l.e.placed.at.Load()
	if m == nil {
		return nil
	}
	for _, layer := range slices.Sorted(maps.Keys(*m)) {
		refused, failure := l.move(layer, (*m)[layer])
		if err := cmp.Or(refused, failure); err != nil {
			return err
		}
	}
	return nil
}

// balance moves experts between ranks when it is time, until ctx ends.
func (e *Engine) balance(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-e.unbalanced:
		}
		if err := e.rebalance(ctx); err != nil && ctx.Err() == nil {
			e.events.Emit(status.ExpertsStay{Cause: err})
		}
	}
}

// onThreads is balance.Together of as many threads as Go may run.
func onThreads(f func(part, parts int)) {
	n := runtime.GOMAXPROCS(0)
	var threads sync.WaitGroup
	for part := range n {
		threads.Go(func() { f(part, n) })
	}
	threads.Wait()
}

// rebalance plans where experts are to be by the rows that they had of late, and moves them, one
// layer between two steps.
func (e *Engine) rebalance(ctx context.Context) error {
	started := time.Now()
	loads, err := e.ExpertLoad(ctx)
	if err != nil {
		return err
	}
	var ranks balance.Ranks
	var unmoved balance.Placement
	if err := e.Between(ctx, Task{Do: func(l *Loop) (err error) {
		ranks, unmoved, err = l.unmoved()
		return err
	}}); err != nil {
		return err
	}
	var rows [][]int64
	var present []balance.Placement
	for i := range loads {
		at := loads[i].At
		if at == nil {
			at = unmoved
		}
		rows, present = append(rows, loads[i].Recent), append(present, at)
	}
	plan, err := balance.Make(rows, present, ranks, minGain, onThreads)
	if err != nil || plan == nil {
		return err
	}
	moved := status.ExpertsMoved{Moves: len(plan.Moves), Before: plan.Before, After: plan.After}
	for i := range loads {
		if !slices.ContainsFunc(plan.Moves, func(m balance.Move) bool { return m.Layer == i }) {
			continue
		}
		if err := e.MoveExperts(ctx, loads[i].Layer, plan.Layers[i]); err != nil {
			return err
		}
		moved.Layers++
	}
	moved.Took = time.Since(started)
	e.events.Emit(moved)
	return nil
}
