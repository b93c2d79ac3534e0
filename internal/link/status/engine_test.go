package status

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
)

// TestOfEngine: what is heard of one of several engines carries its number, and can be taken apart.
func TestOfEngine(t *testing.T) {
	var log bytes.Buffer
	var heard []Event
	l := Tee(LogTo(slog.New(slog.NewTextHandler(&log, nil))), func(e Event) {
		heard = append(heard,
			e)
	})
	l.FromEngine(3).Emit(StepSlow{Step: 7})
	l.Emit(StepSlow{Step: 8})
	for i, want := range []struct {
		engine int
		step   uint64
		line   string
	}{{3, 7, `msg="step was slow" engine=3 step=7`}, {0, 8, `msg="step was slow" step=8`}} {
		event, engine := Source(heard[i])
		if slow, ok := event.(StepSlow); !ok || engine != want.engine || slow.Step != want.step ||
			!strings.Contains(log.String(), want.line) {
			t.Errorf("event %d is %v of engine %d, log\n%s", i, event, engine, &log)
		}
	}
	if got := Like(heard[0], Stopping{}); got != (OfEngine{3, Stopping{}}) {
		t.Errorf("another event like the first is %v", got)
	}
	if got := Like(heard[1], Stopping{}); got != (Stopping{}) {
		t.Errorf("another event like the second is %v", got)
	}
}
