package worker

import (
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/eagleray/eagleray/internal/link/status"
)

// TestWatchUse: memory is known at once, processor time after a second, and neither counts as a
// change of the rank.
func TestWatchUse(t *testing.T) {
	var r status.Rank
	end := watchUse(&r, func() Meter { return nil })
	defer end()
	s := r.Snapshot()
	if s.Memory < 1<<20 || s.Memory > 1<<40 || s.CPU != 0 {
		t.Errorf("at its start a process uses %d bytes and %d thousandths", s.Memory, s.CPU)
	}
	for deadline := time.Now().Add(30 * time.Second); r.Snapshot().CPU == 0; {
		if time.Now().After(deadline) {
			t.Fatal("a process that computes uses no processor")
		}
	}
	if s := r.Snapshot(); s.Changes != 0 {
		t.Errorf("what is used counts as %d changes", s.Changes)
	}
}

// TestWatchUseEnds: a GPU is measured at the first look and each 5 s; nothing is left of the watch,
// and nothing is published after its end.
func TestWatchUseEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r status.Rank
		looks := uint64(0)
		end := watchUse(&r, func() Meter {
			return func(g *status.GPU) { looks++; g.Know(status.GPUPower, looks) }
		})
		power := func(want uint64) {
			t.Helper()
			if w, known := r.Snapshot().GPU.Get(status.GPUPower); w != want || !known {
				t.Errorf("power is %d, %v, not %d", w, known, want)
			}
		}
		time.Sleep(useEvery + useEvery/2)
		power(1)
		time.Sleep(3 * useEvery)
		power(1)
		time.Sleep(2 * measureEvery)
		power(3)
		end()
		r.Uses(7, 8)
		time.Sleep(2 * measureEvery)
		power(3)
		if s := r.Snapshot(); s.CPU != 7 || s.Memory != 8 {
			t.Errorf("published after its end: %+v", s)
		}
	})
}

func TestResident(t *testing.T) {
	page := uint64(os.Getpagesize())
	for text, want := range map[string]uint64{
		"1000 25 3 4 0 5 0\n": 25 * page, "1000 25": 25 * page, "": 0, "1000": 0, "1 x 2": 0,
		"1 -5 2": 0,
	} {
		if got := residentIn([]byte(text)); got != want {
			t.Errorf("%q has %d bytes resident, not %d", text, got, want)
		}
	}
	u := openUse()
	defer u.close()
	if n := testing.AllocsPerRun(20, func() { u.cpu(); u.memory() }); n != 0 {
		t.Errorf("a look allocates %g times", n)
	}
}
