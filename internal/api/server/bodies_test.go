package server

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestBodyBudget: bodies wait for room and are refused in time, large ones never take the last
// quarter, and one alone has room whatever its size.
func TestBodyBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const mb = 1 << 20
		b := newBodyBudget(16*mb, 5*time.Second)
		take := func(held, n int64) error { return b.reserve(t.Context(), held, n) }
		for i := range 3 {
			if err := take(0, 4*mb); err != nil {
				t.Fatalf("large body %d: %v", i, err)
			}
		}
		began := time.Now()
		if err := take(0, 4*mb); !errors.Is(err, errBodies) || time.Since(began) != 5*time.Second {
			t.Errorf("a fourth large body got %v after %v", err, time.Since(began))
		}
		for i := range 4 {
			if err := take(0, mb); err != nil {
				t.Errorf("small body %d beside the large ones: %v", i, err)
			}
		}
		time.AfterFunc(time.Second, func() { b.release(mb) })
		began = time.Now()
		if err := take(0, mb); err != nil || time.Since(began) != time.Second {
			t.Errorf("a body that waited for room got %v after %v", err, time.Since(began))
		}
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		if err := b.reserve(gone, 0, mb); !errors.Is(err, context.Canceled) {
			t.Errorf("a client that went away got %v", err)
		}
		b.release(16 * mb)
		if err := take(0, 64*mb); err != nil {
			t.Errorf("alone: %v", err)
		}
		if err := take(64*mb, 64*mb); err != nil {
			t.Errorf("alone, growing: %v", err)
		}
		b.release(128 * mb)
		if b.used != 0 {
			t.Errorf("%d bytes are left in use", b.used)
		}
	})
}
