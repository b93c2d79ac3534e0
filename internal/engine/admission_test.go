package engine

import (
	"testing"
)

func TestRoomInQueue(t *testing.T) {
	for _, c := range []struct {
		bound, queued, sequences int
		want                     bool
	}{
		{0, 1 << 20, 1 << 20, true}, // no bound
		{10, 0, 1, true},
		{10, 9, 1, true},
		{10, 10, 1, false},
		{10, 0, 4096, true}, // nothing is queued: any size
		{10, 1, 4096, false},
		// Half of the room is for others.
		{8192, 1, 4096, true},
		{8192, 2, 4096, false},
		{8192, 8192 - 512, 256, true},
		{8192, 8192 - 510, 256, false},
		{8192, 8191, 1, true},
		{8192, 8192, 1, false},
		{1, 1, 1, false},
		{4, 3, 1, true},
		{4, 2, 2, false},
	} {
		if got := roomInQueue(c.bound, c.queued, c.sequences); got != c.want {
			t.Errorf("%d more sequences beside %d, bound %d: %v", c.sequences, c.queued, c.bound,
				got)
		}
	}
}
