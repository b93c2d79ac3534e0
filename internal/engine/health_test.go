package engine

import (
	"errors"
	"testing"

	"github.com/eagleray/eagleray/internal/link/status"
)

// TestHealthSaysThePhase has the health of an engine that recovers say what it waits for.
func TestHealthSaysThePhase(t *testing.T) {
	h, cause := new(health), errors.New("rank 1 is gone")
	waits := func(phase string) { h.listen(status.Progress{Rank: -1, Phase: phase}) }
	wants := func(want string) {
		t.Helper()
		switch err := h.err(); {
		case err == nil && want == "":
		case err == nil || err.Error() != want || want != "" && !errors.Is(err, ErrRecovering):
			t.Errorf("%v, wanted %q", err, want)
		}
	}
	waits("ray connect") // the first start
	wants("")
	h.recover(cause)
	wants("engine is recovering: rank 1 is gone")
	waits("wait for node 1 of 2")
	h.listen(status.Progress{Rank: 0, Phase: "load"})
	wants("engine is recovering (wait for node 1 of 2): rank 1 is gone")
	h.recover(cause)
	wants("engine is recovering: rank 1 is gone")
	h.answered(false)
	wants("")
}
