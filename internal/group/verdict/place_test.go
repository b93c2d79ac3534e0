package verdict

import (
	"testing"

	"github.com/eagleray/eagleray/internal/link/status"
)

// Each status is further than the one before it, so that a rank that waits is never blamed before
// the one that it waits for.
func TestPlaceOf(t *testing.T) {
	within := func(w status.Within) status.Snapshot {
		var r status.Rank
		r.Started(7)
		r.At(w)
		return r.Snapshot()
	}
	order := []status.Snapshot{
		{Started: 6, Finished: 6},
		within(status.Within{Awaits: status.Tokens}),
		within(status.Within{}),
		within(status.Within{Awaits: status.Sum}),
		within(status.Within{Done: 1}),
		within(status.Within{Done: 1, Awaits: status.Dispatch}),
		within(status.Within{Done: 2, Awaits: status.Combine}),
		within(status.Within{Done: 3, Awaits: status.Sum}),
		within(status.Within{Layer: 1}),
		within(status.Within{Layer: 1, Done: 255, Awaits: status.Hidden}),
		within(status.Within{Layer: 65535, Done: 255, Awaits: status.Logits}),
		{Started: 7, Phase: status.Sample},
		{Started: 7, Finished: 7, Phase: status.Idle},
	}
	for i, s := range order {
		for j, other := range order {
			if got := PlaceOf(s).After(PlaceOf(other)); got != (i > j) {
				t.Errorf("%v after %v: %v", s, other, got)
			}
		}
	}
}
