package shm

import (
	"testing"
	"time"
)

// TestCadence checks that short waits are spun for and long ones not, and that it notices a change.
func TestCadence(t *testing.T) {
	c := newCadence(1)
	c.never = false
	spins := func(n int) (spins int) {
		for range n {
			if c.budget() > 0 {
				spins++
			}
		}
		return spins
	}
	for range 100 {
		c.observe(5 * time.Microsecond)
	}
	if b := c.budget(); b < 15*time.Microsecond || b > 25*time.Microsecond {
		t.Errorf("after waits of 5µs: spin for %v", b)
	}
	c.observe(time.Second)
	if b := c.budget(); b < 15*time.Microsecond || b > 25*time.Microsecond {
		t.Errorf("one long wait among them: spin for %v", b)
	}
	for range 100 {
		c.observe(10 * time.Millisecond)
	}
	if n := spins(10 * probeEvery); n != 10 {
		t.Errorf("after waits of 10ms: spun %d times of %d, want 10", n, 10*probeEvery)
	}
	c.observe(time.Microsecond)
	if n := spins(10); n != 10 {
		t.Errorf("after a probe that paid: spun %d times of 10", n)
	}
	if c.never = true; c.budget() != 0 {
		t.Error("spins with more ranks than processors")
	}
}
