package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/eagleray/eagleray/internal/link/status"
	"github.com/eagleray/eagleray/internal/ops/config"
)

// relaid is the opening with another tensor parallel size. The KV cache keeps its number of blocks,
// so that what the scheduler knows stays true. An error is a *Refused: nothing was started.
func (b *opening) relaid(tp int) (*opening, error) {
	o, cfg := *b, *b.cfg
	o.cfg = &cfg
	p := &cfg.Parallel
	p.TensorParallelSize = tp
	var bad *config.UsageError
	if err := o.divide(); errors.As(err, &bad) {
		return nil, &Refused{bad.Error()}
	} else if err != nil {
		return nil, err
	}
	if err := o.replan(); err != nil {
		return nil, err
	}
	if r := &p.Ray; r.BundleIndices != "" {
		return nil, refuse("--bundle-indices %s lists the bundles of %d ranks for each engine, which is "+
			"the most and the least there can be", r.BundleIndices, b.ranks)
	}
	if b.cluster != nil && b.cluster.nodes != nil {
		o.share = b.share * o.ranks / b.ranks
		if err := checkShare(o.share, b.share, o.ranks, b.ranks, tp); err != nil {
			return nil, err
		}
	}
	return &o, nil
}

// checkShare refuses ranks that cannot be divided among the nodes as those before were: a node has
// whole engines, or an equal part of one.
func checkShare(share, before, ranks, were, tp int) error {
	if share*were == before*ranks && share > 0 && (share%ranks == 0 || ranks%share == 0) {
		return nil
	}
	return refuse("tensor parallel size %d makes %d ranks of an engine, of which %d nodes cannot have "+
		"equal parts: a multiple of %d ranks can be divided", tp, ranks, were/max(1, before),
		were/max(1, before))
}

// TensorParallelSize is how many ranks divide each layer.
func (o *Opener) TensorParallelSize() int { return o.b.cfg.Parallel.TensorParallelSize }

// Relaid has the engines that are opened from now on divide each layer among so many ranks.
func (o *Opener) Relaid(tp int) error {
	b, err := o.b.relaid(tp)
	if err == nil {
		o.b = b
	}
	return err
}

// errRelayout is why requests wait while a group takes the place of one with another layout.
var errRelayout = errors.New("the ranks are changed for another layout")

// Relayout starts the engine's ranks again, so many to divide each layer, with no plan in flight.
// Requests are held and go on as those that were preempted, to the very tokens that they would have
// had. A *Refused has changed nothing. When the new group does not start, one of the old layout does.
func (e *Engine) Relayout(ctx context.Context, tp int) error {
	var refused error
	err := e.obey(&order{ctx: ctx, must: true, do: func() error {
		b, err := e.opening.relaid(tp)
		if err != nil {
			refused = err
			return nil
		}
		refused, err = e.relayout(b)
		return err
	}})
	if err != nil {
		return err
	}
	return refused
}

// relayout puts a group of another layout in the place of the one there is. It returns why that was
// given up, and apart from it the failure of the group that should have gone on instead.
func (e *Engine) relayout(b *opening) (refused, failure error) {
	begun := time.Now()
	e.health.recover(errRelayout)
	before := e.opening
	if refused = e.startAs(b); refused != nil {
		if e.ranks.life.Err() != nil {
			return nil, ErrStopped
		}
		e.events.Emit(status.RelayoutFailed{Layout: b.cfg.Parallel.Layout().String(),
			Cause: refused.Error()})
		if failure = e.startAs(before); failure != nil {
			return refused, failure
		}
	}
	e.sched.PreemptAll(false)
	e.events.Emit(status.GroupRecovered{Epoch: e.ranks.newest(), Requests: len(e.requests),
		Took: time.Since(begun)})
	return refused, nil
}

// startAs starts a group as an opening says, in the place of the one there is.
func (e *Engine) startAs(b *opening) error {
	if err := b.supervise(e.ranks); err != nil {
		return err
	}
	e.opening = b
	e.ranks.other = true
	err := e.ready(nil)
	e.ranks.other = false
	if err != nil {
		return fmt.Errorf("%s: %w", b.cfg.Parallel.Layout(), err)
	}
	return nil
}

// show describes the engine to clients with the ranks of its group.
func (e *Engine) show() {
	info := e.opening.info
	info.Engines, info.Ranks, info.WeightBytes = 1, e.group.Ranks(), 0
	for _, r := range info.Ranks {
		info.WeightBytes += r.WeightBytes
	}
	e.shown.Store(&info)
}
