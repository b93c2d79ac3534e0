package executor

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"github.com/eagleray/eagleray/internal/link/queue"
	"github.com/eagleray/eagleray/internal/link/step"
)

// past is that of a rank that has executed plans up to done, and begun one more; odd is a plan that
// was another one to it.
func past(from, done, odd uint64) *queue.Past {
	p := &queue.Past{Done: done}
	for id := from; id <= done+1; id++ {
		d := step.Digest{Plan: id, Hash: 100 + id}
		if id >= odd && odd > 0 {
			d.Hash++
		}
		p.Trail = append(p.Trail, d)
	}
	return p
}

// TestSound has ranks that are kept agree on the last plan that each two of them know.
func TestSound(t *testing.T) {
	for name, c := range map[string]struct {
		past       []*queue.Past
		unsound    bool
		remembered uint64 // the last plan that all have the keys and values of
	}{
		"all new":          {past: []*queue.Past{nil, nil}},
		"one new":          {past: []*queue.Past{past(3, 9, 0), nil, past(3, 9, 0)}},
		"same step":        {past: []*queue.Past{past(3, 9, 0), past(3, 9, 0)}, remembered: 9},
		"one ahead":        {past: []*queue.Past{past(3, 9, 0), past(4, 10, 0)}, remembered: 9},
		"one far ahead":    {past: []*queue.Past{past(3, 9, 0), past(20, 30, 0)}, unsound: true},
		"another plan":     {past: []*queue.Past{past(3, 9, 0), past(3, 9, 10)}, unsound: true},
		"another one once": {past: []*queue.Past{past(3, 9, 7), past(3, 9, 0)}, unsound: true},
		"the third differs": {past: []*queue.Past{past(3, 9, 0), nil, past(3, 9, 9)},
			unsound: true},
		"nothing executed": {past: []*queue.Past{{}, {}, past(3, 9, 0)}},
	} {
		t.Run(name, func(t *testing.T) {
			e := &Executor{loading: newLoading(len(c.past))}
			var err error
			for rank, p := range c.past {
				body, encoding := json.Marshal(queue.Ready{Rank: rank, Past: p})
				if encoding != nil {
					t.Fatal(encoding)
				}
				err = errors.Join(err, e.loading.handleReady(rank, body))
			}
			if errors.Is(err, errDisagree) != c.unsound {
				t.Fatalf("%v", err)
			}
			if c.unsound {
				return
			}
			if e.HasComputed(c.remembered+1) || c.remembered > 0 && !e.HasComputed(c.remembered) {
				t.Errorf("not remembered up to %d: %+v", c.remembered, e.loading.ranks)
			}
		})
	}
}

// TestWhoIsLost tells the ranks that a failure has taken from those that can go on.
func TestWhoIsLost(t *testing.T) {
	for name, c := range map[string]struct {
		cause error
		keep  bool
		lost  string
	}{
		"none":      {nil, false, "[]"},
		"no rank's": {errors.New("no cluster"), false, "[]"},
		"shutdown":  {ErrShutdown, false, "[]"},
		"one rank":  {fmt.Errorf("start: %w", &Failure{Rank: 2}), true, "[2]"},
	} {
		if CanReuse(c.cause) != c.keep || fmt.Sprint(LostRanks(c.cause)) != c.lost {
			t.Errorf("%s: %v, %v", name, CanReuse(c.cause), LostRanks(c.cause))
		}
	}
}
