package inproc

import (
	"context"
	"errors"
	"testing"
	"time"
)

// TestStopInStep does not wait beyond its context for a rank in a long step, and waits for its end
// otherwise.
func TestStopInStep(t *testing.T) {
	l := New()
	release := make(chan struct{})
	l.running.Go(func() { <-release })
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := l.Stop(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("in a step: %v", err)
	}
	close(release)
	if err := l.Stop(t.Context()); err != nil {
		t.Errorf("after the step: %v", err)
	}
}
