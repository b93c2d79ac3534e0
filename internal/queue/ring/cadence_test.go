package ring

import (
	"testing"
	"time"
)

// TestCadence plays waits of given lengths and counts what was spun for.
func TestCadence(t *testing.T) {
	us := time.Microsecond
	for _, c := range []struct {
		name        string
		waits       []time.Duration // repeated
		together    bool            // on one processor: spinning never helps
		bridged     [2]int          // of 1000 waits
		spinAtMost  time.Duration   // in all of them
		spinAtLeast time.Duration
	}{
		{name: "short", waits: []time.Duration{5 * us}, bridged: [2]int{1000, 1000}, spinAtLeast: 5000 * us, spinAtMost: 5000 * us},
		{name: "long", waits: []time.Duration{20 * time.Millisecond}, spinAtMost: 15 * maxSpin},
		{name: "one processor", waits: []time.Duration{5 * us}, together: true, spinAtMost: 15 * maxSpin},
		{name: "mostly short", waits: []time.Duration{5 * us, 6 * us, 4 * us, 5 * us, 3 * us, 5 * us, 9 * us, time.Millisecond}, bridged: [2]int{850, 876}, spinAtMost: 10 * time.Millisecond},
		{name: "alternating", waits: []time.Duration{5 * us, time.Millisecond}, bridged: [2]int{300, 501}, spinAtMost: 22 * time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := newCadence(1)
			bridged, spun := 0, time.Duration(0)
			for i := range 1000 {
				waited := c.waits[i%len(c.waits)]
				switch b := k.budget(); {
				case b == 0:
				case b > maxSpin:
					t.Fatalf("spin for %v", b)
				case waited <= b && !c.together:
					bridged++
					spun += waited
					k.paid(waited)
				default:
					spun += b
					k.failed()
				}
			}
			if bridged < c.bridged[0] || bridged > c.bridged[1] || spun > c.spinAtMost || spun < c.spinAtLeast {
				t.Errorf("bridged %d, spun for %v; want %v, %v to %v", bridged, spun, c.bridged, c.spinAtLeast, c.spinAtMost)
			}
		})
	}
	k := newCadence(1)
	if k.never = true; k.budget() != 0 {
		t.Error("spins with more parties than processors")
	}
	if k := newCadence(1 << 20); !k.never {
		t.Error("there are a million processors")
	}
	for range 1000 {
		k.failed()
	}
	k.never = false
	n := 0
	for ; k.budget() == 0; n++ {
	}
	k.paid(us)
	if n > maxSkip || k.budget() == 0 {
		t.Errorf("tried again after %d waits, then not", n)
	}
}
