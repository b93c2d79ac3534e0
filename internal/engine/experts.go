package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/eagleray/eagleray/internal/group/executor"
	"github.com/eagleray/eagleray/internal/link/balance"
	"github.com/eagleray/eagleray/internal/link/rpc"
	"github.com/eagleray/eagleray/internal/ops/metrics"
	"github.com/eagleray/eagleray/internal/rank/calls"
)

// ExpertLoad is the load of the experts of a layer: the rows that its router has sent to each of
// them, a token once to each of its experts, and again when it is computed again.
type ExpertLoad struct {
	Layer int
	// Rows are those since the ranks have loaded their weights. Recent are those since the load was
	// asked for a minute ago or earlier: two minutes ago at most where it is asked for often, and
	// steps were computed since.
	Rows, Recent []int64
	// At is where the experts are, if ranks hold whole ones and some were moved.
	At balance.Placement
}

// Balancedness is the mean over the largest of the recent rows of ranks, or of experts where ranks
// hold a share of each, or none was moved.
func (l *ExpertLoad) Balancedness() float64 {
	if l.At != nil {
		return balance.Balancedness(l.At.Loads(l.Recent))
	}
	return balance.Balancedness(l.Recent)
}

// Hottest is the expert with the most of the recent rows, and its share of them; 0, 0 of none.
func (l *ExpertLoad) Hottest() (expert int, share float64) {
	sum := int64(0)
	for e, n := range l.Recent {
		if sum += n; n > l.Recent[expert] {
			expert = e
		}
	}
	if sum == 0 {
		return 0, 0
	}
	return expert, float64(l.Recent[expert]) / float64(sum)
}

// ErrNoExpertLoad is the error of an engine whose ranks count no rows of experts.
var ErrNoExpertLoad = errors.New("no rows of experts are counted: the model is no mixture of " +
	"experts")

const (
	// loadEvery is how old a load may be that is shown again, so that the ranks are not asked by
	// each of many viewers.
	loadEvery = time.Second
	// loadWindow is how old what recent rows are counted from is at least.
	loadWindow = time.Minute
	// scrapeWithin bounds what a scrape of metrics waits for: a rank answers between two steps.
	scrapeWithin = 2 * time.Second
)

// expertLoads is what is known of the load of experts.
type expertLoads struct {
	// counted says that the ranks count them.
	counted bool
	// known is what was answered last, not to be written.
	known atomic.Pointer[[]ExpertLoad]
	// asking is acquired by the goroutine that asks, with the rest.
	asking chan struct{}
	asked  time.Time
	window loadHistory
}

// ExpertLoad is the load of the experts of each layer that has some, in order, as of a second ago
// at most. The ranks are asked for it, and answer between two steps. If they do not before the
// context ends, or they are being replaced, what was known before comes with the error.
func (e *Engine) ExpertLoad(ctx context.Context) ([]ExpertLoad, error) {
	l := &e.experts
	if !l.counted {
		return nil, ErrNoExpertLoad
	}
	select {
	case l.asking <- struct{}{}:
	case <-ctx.Done():
		return l.last(), ctx.Err()
	}
	defer func() { <-l.asking }()
	if known := l.last(); known != nil && time.Since(l.asked) < loadEvery {
		return known, nil
	}
	answers, err := executor.Call(ctx, e.ranks.Current(), calls.ExpertLoad, rpc.None{},
		executor.RPCOptions{})
	if err != nil {
		return l.last(), err
	}
	now, err := sumLoads(answers, e.model.Experts())
	if err != nil {
		return l.last(), err
	}
	for i := range now {
		now[i].At = e.placed.of(now[i].Layer)
	}
	l.asked = time.Now()
	l.window.add(now, l.asked)
	l.known.Store(&now)
	return now, nil
}

// last is what was answered last, nil for nothing.
func (l *expertLoads) last() []ExpertLoad {
	if p := l.known.Load(); p != nil {
		return *p
	}
	return nil
}

// sumLoads adds up what each rank has counted of so many experts, in the order of layers.
func sumLoads(answers [][]calls.LayerLoad, experts int) ([]ExpertLoad, error) {
	list := make([][]ExpertLoad, len(answers))
	for rank, layers := range answers {
		for _, a := range layers {
			if len(a.Rows) != experts {
				return nil, fmt.Errorf("rank %d counts rows of %d experts in layer %d, not of %d",
					rank, len(a.Rows), a.Layer, experts)
			}
			list[rank] = append(list[rank], ExpertLoad{Layer: a.Layer, Rows: a.Rows})
		}
	}
	return SumExpertLoads(list), nil
}

// SumExpertLoads adds up loads of one model, in the order of its layers.
func SumExpertLoads(list [][]ExpertLoad) (sum []ExpertLoad) {
	for _, layers := range list {
		for _, l := range layers {
			at, there := slices.BinarySearchFunc(sum, l.Layer,
				func(s ExpertLoad, layer int) int { return s.Layer - layer })
			if !there {
				l.Rows, l.Recent = slices.Clone(l.Rows), slices.Clone(l.Recent)
				sum = slices.Insert(sum, at, l)
				continue
			}
			for i, n := range l.Rows {
				sum[at].Rows[i] += n
			}
			for i, n := range l.Recent {
				sum[at].Recent[i] += n
			}
		}
	}
	return sum
}

// loadHistory has what recent rows are counted from. Without new rows nothing becomes old: what is
// shown of an idle engine is its last steps.
type loadHistory struct{ from, later snapshot }

// snapshot is the rows of the experts of each layer at a time; the zero value is no rows.
type snapshot struct {
	at   time.Time
	rows [][]int64
}

// add sets the recent rows of a load as of a time, and remembers it.
func (h *loadHistory) add(now []ExpertLoad, at time.Time) {
	s := snapshot{at: at}
	for _, l := range now {
		s.rows = append(s.rows, l.Rows)
	}
	grown, lost := s.since(&h.later)
	if lost { // ranks have begun anew
		*h = loadHistory{}
	}
	if h.later.at.IsZero() {
		h.later = s
	}
	for i := range now {
		now[i].Recent = slices.Clone(now[i].Rows)
		if h.from.rows == nil {
			continue
		}
		for e, n := range h.from.rows[i] {
			now[i].Recent[e] -= n
		}
	}
	if grown && at.Sub(h.later.at) >= loadWindow {
		h.from, h.later = h.later, s
	}
}

// since says whether there are more rows of some experts than there were, and whether there are
// fewer of some, or other layers.
func (s *snapshot) since(was *snapshot) (grown, lost bool) {
	if was.rows == nil {
		return true, false
	}
	if len(s.rows) != len(was.rows) {
		return true, true
	}
	for i := range s.rows {
		for e, n := range s.rows[i] {
			grown, lost = grown || n > was.rows[i][e], lost || n < was.rows[i][e]
		}
	}
	return grown, lost
}

// expertSeries is the load as metrics show it.
func (e *Engine) expertSeries() []metrics.Experts {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeWithin)
	defer cancel()
	loads, _ := e.ExpertLoad(ctx) // a scrape shows what is known
	list := make([]metrics.Experts, len(loads))
	for i := range loads {
		l := &loads[i]
		list[i] = metrics.Experts{Layer: l.Layer, Balancedness: l.Balancedness()}
		for _, n := range l.Rows {
			list[i].Rows += n
		}
		_, list[i].Hottest = l.Hottest()
	}
	return list
}
