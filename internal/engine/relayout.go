package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/eagleray/eagleray/internal/engine/open"
	"github.com/eagleray/eagleray/internal/link/status"
)

// Sizes are those of the engines' layout that can be changed.
func (o *Opener) Sizes() open.Sizes {
	return open.Sizes{TP: o.b.Config.Parallel.TensorParallelSize, Places: o.b.Places()}
}

// Relaid has the engines that are opened from now on a layout of other sizes.
func (o *Opener) Relaid(z open.Sizes) error {
	s, err := o.b.WithSizes(z)
	if err == nil {
		o.b.Spec = s
	}
	return err
}

// errRelayout is why requests wait while a group takes the place of one with another layout.
var errRelayout = errors.New("the ranks are changed for another layout")

// Relayout starts the engine's ranks again in a layout of other sizes, with no plan in flight.
// Requests are held and go on as those that were preempted, to the very tokens that they would have
// had. A *Refused has changed nothing. When the new group does not start, one of the old layout
// does.
func (e *Engine) Relayout(ctx context.Context, z open.Sizes) error {
	var refused error
	err := e.Between(ctx, Task{Must: true, Do: func(l *Loop) error {
		s, err := l.wanted().WithSizes(z)
		if err != nil {
			refused = err
			return nil
		}
		refused, err = l.relayout(s, l.launching.ScalingPatience())
		return err
	}})
	if err != nil {
		return err
	}
	return refused
}

// relayout puts a group of the layout that is wanted from now on in the place of the one there is;
// its ranks may lack a place for as long as patience. It returns why that was given up, and apart
// from it the failure of the group that should have gone on instead.
func (l *Loop) relayout(s *open.Spec, patience time.Duration) (refused, failure error) {
	begun := time.Now()
	l.lack.stopSearch()
	l.e.health.recover(errRelayout)
	l.showRanks(0)
	before := l.launching.Spec
	if refused = l.startAs(s, patience); refused == nil {
		l.lack.full = nil
	} else {
		if l.e.ranks.Life.Err() != nil {
			return nil, ErrStopped
		}
		l.e.events.Emit(status.RelayoutFailed{Layout: s.Config.Parallel.Layout().String(),
			Cause: refused.Error()})
		if failure = l.startAs(before, patience); failure != nil {
			return refused, failure
		}
	}
	if failure = l.regroup(false); failure != nil {
		return refused, failure
	}
	l.recovered(status.GroupRecovered{Took: time.Since(begun)})
	return refused, nil
}

// regroup lets requests go on with the newest group, as preempted ones do. remembered says that it
// has what the one before had computed of them.
func (l *Loop) regroup(remembered bool) error {
	l.sched.PreemptAll(remembered)
	if places := max(1, l.launching.Places()); places != len(l.series) {
		if err := l.sched.Resize(places); err != nil {
			return err
		}
		l.showPlaces()
	}
	l.sched.Suspend(l.suspects.held)
	l.showRanks(l.launching.Ranks)
	if l.lack.full != nil {
		l.search()
	}
	return nil
}

// startAs starts a group as a specification says, in the place of the one there is. Its ranks may
// lack a place for as long as patience, 0 for as long as after a failure.
func (l *Loop) startAs(s *open.Spec, patience time.Duration) error {
	b := *l.launching
	b.Spec = s
	l.e.placed.at.Store(nil) // ranks have other shares
	if err := b.Supervise(l.e.ranks); err != nil {
		return err
	}
	l.launching = &b
	l.e.ranks.Patience = patience
	err := l.ready(nil)
	l.e.ranks.Patience = 0
	if err != nil {
		return fmt.Errorf("%s: %w", s.Config.Parallel.Layout(), err)
	}
	return nil
}

// show describes the engine to clients with the ranks of its group.
func (l *Loop) show() {
	info := l.launching.Info
	info.Engines, info.Ranks, info.WeightBytes = 1, l.group.Ranks(), 0
	for _, r := range info.Ranks {
		info.WeightBytes += r.WeightBytes
	}
	l.e.shown.Store(&info)
}
