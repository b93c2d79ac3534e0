package status_test

import (
	"testing"

	"github.com/eagleray/eagleray/internal/link/status"
)

func TestWithin(t *testing.T) {
	for _, c := range []struct {
		at    status.Within
		phase status.Phase
		want  string
	}{
		{status.Within{Layer: 3}, status.Forward, "forward, layer 3"},
		{status.Within{Layer: 60, Done: 2}, status.Forward, "forward, layer 60"},
		{status.Within{Layer: 65535, Done: 255, Awaits: status.Dispatch}, status.Collective,
			"collective, layer 65535, dispatch to experts"},
		{status.Within{Layer: 5, Done: 1, Awaits: status.Combine}, status.Collective,
			"collective, layer 5, combine from experts"},
		{status.Within{Awaits: 200}, status.Collective, "collective, layer 0, exchange 200"},
	} {
		var r status.Rank
		r.At(c.at)
		s := r.Snapshot()
		if s.Phase != c.phase || s.Within() != c.at || s.String() != c.want {
			t.Errorf("%+v: %v, %+v, %q, want %v and %q", c.at, s.Phase, s.Within(), s, c.phase,
				c.want)
		}
	}
}
