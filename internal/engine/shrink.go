package engine

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/eagleray/eagleray/internal/engine/open"
	"github.com/eagleray/eagleray/internal/group/launch"
	"github.com/eagleray/eagleray/internal/link/status"
)

// The times of --on-failure shrink. A group that has failed may lack a place for placePatience
// before it shrinks. A place for the ranks that are missing is looked for every searchEvery, which
// Options may set, and begins to be later each time that they did not start there, up to
// searchDoubles times twice as late.
const (
	placePatience = 5 * time.Second
	searchEvery   = 10 * time.Second
	searchDoubles = 5
	searchTimeout = 10 * time.Second
)

// lack is what an engine lacks that serves with fewer ranks than are wanted. The step loop has it.
type lack struct {
	// full is the layout that is wanted, nil when there is all of it.
	full *open.Spec
	// missing is what there was no place for.
	missing string
	// futile is how often it has tried in vain to grow since it shrank.
	futile int
	// The search for a place is one goroutine, which looks every so often and which stop ends.
	every     time.Duration
	stop      context.CancelFunc
	searching sync.WaitGroup
}

// wanted is the specification of the layout that is wanted, which may be larger than what there is.
func (l *Loop) wanted() *open.Spec {
	if l.lack.full != nil {
		return l.lack.full
	}
	return l.launching.Spec
}

// showRanks shows how many ranks are wanted, and how many serve: of each place an equal part.
func (l *Loop) showRanks(serving int) {
	n, wanted := len(l.series), l.wanted().Ranks
	for place, m := range l.series {
		part := func(ranks int) int { return ranks*(place+1)/n - ranks*place/n }
		m.SetRanks(part(wanted), part(serving))
	}
}

// patience is for how long a group that may be smaller may lack a place.
func (l *Loop) patience() time.Duration {
	return min(placePatience, l.launching.ScalingPatience())
}

// replace starts the next group in the place of one that failed. With --on-failure shrink it has
// fewer ranks where there is no place for all, as many as there is a place for. What memory refuses
// waits for a place as with restart, as do the fewest ranks.
func (l *Loop) replace(failure error) error {
	if l.restarts.policy.OnFailure != "shrink" {
		return l.ready(failure)
	}
	before := l.launching.Spec
	l.e.ranks.Patience = l.patience()
	err := l.ready(failure)
	l.e.ranks.Patience = 0
	for {
		none := (*launch.NoPlace)(nil)
		if !errors.As(err, &none) || l.e.ranks.Life.Err() != nil {
			return err
		}
		l.lack.missing = none.Missing
		z := l.launching.Smaller(none.Room)
		if z == (open.Sizes{}) {
			return l.ready(nil)
		}
		s, refused := l.launching.ShrunkTo(z)
		if refused == nil {
			err = l.startAs(s, l.patience())
			if !errors.As(err, new(*open.Refused)) {
				continue
			}
			refused = err
		}
		l.e.events.Emit(status.RelayoutFailed{Layout: z.String(), Cause: refused.Error()})
		return l.startAs(before, 0)
	}
}

// shrunk takes note that a group has taken the place of one of a specification, with fewer ranks if
// there was no place for more.
func (l *Loop) shrunk(before *open.Spec) {
	if l.launching.Ranks >= before.Ranks {
		return
	}
	if l.lack.full == nil {
		l.lack.full, l.lack.futile = before, 0
	}
	l.e.events.Emit(status.Shrunk{Layout: l.launching.Config.Parallel.Layout().String(),
		Ranks: l.launching.Ranks, Wanted: l.lack.full.Ranks, Missing: l.lack.missing})
}

// search looks for a place for the ranks that are missing, and has the loop grow once there is one.
func (l *Loop) search() {
	room, missing := l.e.ranks.Room, l.lack.full.Ranks-l.launching.Ranks
	ctx, stop := context.WithCancel(l.e.ranks.Life)
	l.lack.stop = stop
	every, log := l.lack.every, l.launching.Log
	first := every << min(l.lack.futile, searchDoubles)
	l.lack.searching.Go(func() {
		for wait := first; ; wait = every {
			select {
			case <-ctx.Done():
				return
			case <-time.After(wait):
			}
			bounded, cancel := context.WithTimeout(ctx, searchTimeout)
			found, err := room(bounded, missing)
			cancel()
			if err != nil {
				log.Debug("no place can be looked for", "error", err)
			}
			if found {
				l.e.post(&task{Task: Task{Do: (*Loop).grow, Must: true}, ctx: ctx,
					done: make(chan error, 1)})
				return
			}
		}
	})
}

// stopSearch ends the search, also where what it found was not used yet.
func (k *lack) stopSearch() {
	if k.stop != nil {
		k.stop()
		k.searching.Wait()
		k.stop = nil
	}
}

// grow starts the ranks again in the layout that is wanted. When they do not start the smaller one
// goes on. It returns the failure of that.
func (l *Loop) grow() error {
	begun := time.Now()
	l.lack.futile++ // before the next search
	refused, failure := l.relayout(l.lack.full, l.patience())
	if refused == nil && failure == nil {
		l.e.events.Emit(status.Grown{Layout: l.launching.Config.Parallel.Layout().String(),
			Ranks: l.launching.Ranks, Took: time.Since(begun)})
	}
	return failure
}
