package spin

import (
	"runtime"
	"testing"
	"time"
)

const us = time.Microsecond

// TestPolicy plays waits of given lengths and counts what was spun for.
func TestPolicy(t *testing.T) {
	most := Shared.Most
	for _, c := range []struct {
		name        string
		waits       []time.Duration // repeated
		together    bool            // on one processor: spinning never helps
		bridged     [2]int          // of 1000 waits
		spinAtMost  time.Duration   // in all of them
		spinAtLeast time.Duration
	}{
		{name: "short", waits: []time.Duration{5 * us}, bridged: [2]int{1000, 1000},
			spinAtLeast: 5000 * us, spinAtMost: 5000 * us},
		{name: "long", waits: []time.Duration{20 * time.Millisecond}, spinAtMost: 15 * most},
		{name: "one processor", waits: []time.Duration{5 * us}, together: true,
			spinAtMost: 15 * most},
		{name: "mostly short", waits: []time.Duration{5 * us, 6 * us, 4 * us, 5 * us, 3 * us,
			5 * us, 9 * us, time.Millisecond}, bridged: [2]int{850, 876},
			spinAtMost: 10 * time.Millisecond},
		{name: "alternating", waits: []time.Duration{5 * us, time.Millisecond},
			bridged: [2]int{300, 501}, spinAtMost: 22 * time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := NewPolicy(1, Shared)
			bridged, spun := 0, time.Duration(0)
			for i := range 1000 {
				waited := c.waits[i%len(c.waits)]
				switch b := p.Budget(); {
				case b == 0:
				case b > most:
					t.Fatalf("spin for %v", b)
				case waited <= b && !c.together:
					bridged++
					spun += waited
					p.Paid(waited)
				default:
					spun += b
					p.Failed()
				}
			}
			if bridged < c.bridged[0] || bridged > c.bridged[1] || spun > c.spinAtMost ||
				spun < c.spinAtLeast {
				t.Errorf("bridged %d, spun for %v; want %v, %v to %v",
					bridged, spun, c.bridged, c.spinAtLeast, c.spinAtMost)
			}
		})
	}
}

// TestBudget holds how the budget follows the waits.
func TestBudget(t *testing.T) {
	for _, l := range []Limits{Shared, {Least: 4 * us, Most: 100 * us, Skip: 30}} {
		p := NewPolicy(1, l)
		for range 100 {
			p.Budget()
			p.Paid(5 * us)
		}
		if b := p.Budget(); b < 15*us || b > 25*us {
			t.Errorf("%+v: after waits of 5µs: spin for %v", l, b)
		}
		p.Failed()
		if b := p.Budget(); b != l.Most {
			t.Errorf("%+v: after one long wait among them: spin for %v", l, b)
		}
		for range 100 {
			p.Paid(0)
		}
		if b := p.Budget(); b != max(shortest, l.Least) {
			t.Errorf("%+v: after waits of no length: spin for %v", l, b)
		}
	}
}

// TestSkip checks that a policy that has failed for long attempts it once in Skip+1 waits, and
// always after a wait that paid.
func TestSkip(t *testing.T) {
	for _, l := range []Limits{Shared, {Least: 4 * us, Most: 100 * us, Skip: 30}} {
		p := NewPolicy(1, l)
		tries := func(waits int) (n int) {
			for range waits {
				if b := p.Budget(); b > l.Least {
					n++
				} else if b != l.Least {
					t.Fatalf("%+v: spin for %v between two attempts", l, b)
				}
				p.Failed()
			}
			return n
		}
		tries(1000)
		if n := tries(10 * (l.Skip + 1)); n != 10 {
			t.Errorf("%+v: tried %d times in %d waits, want 10", l, n, 10*(l.Skip+1))
		}
		for p.Budget() == 0 {
		}
		p.Paid(us) // an attempt, or what every wait spins
		if n := tries(2); n != 2 {
			t.Errorf("%+v: %d attempts in the 2 waits after one that paid", l, n)
		}
	}
}

func TestMorePartiesThanProcessors(t *testing.T) {
	if p := NewPolicy(runtime.NumCPU()+1, Shared); p.Budget() != 0 {
		t.Error("spins with more parties than processors")
	}
	if p := NewPolicy(runtime.NumCPU(), Shared); p.Budget() == 0 {
		t.Error("does not spin with as many parties as processors")
	}
}
