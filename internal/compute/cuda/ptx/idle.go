package ptx

import (
	"fmt"
	"runtime"
	"time"
)

// A block that waits for another machine looks at memory, again and again: with ld.acquire at the
// system's scope, which is of no use for anything else. Each time another block of the launch has
// its turn, and where all of them wait the core is left to others, who may be waited for.

const (
	// patience is how long they may wait where Machine.Patience is 0.
	patience = 2 * time.Minute
	// looking is the most instructions of a block's turn that did nothing but look.
	looking = 256
	// pause is how long the core is left, after so many looks that found nothing.
	pause  = 20 * time.Microsecond
	eagers = 8
)

// poll ends the block's turn.
func (w *warp) poll() {
	w.cta.polls = true
	w.stop()
}

// idling is how long blocks of a goroutine have done nothing but wait.
type idling struct {
	looks int
	since time.Time
}

// after notes a block's turn, beside so many parked ones, and leaves the core where nothing is
// done.
func (y *idling) after(c *cta, done bool, parked int) error {
	if done || !c.polls || c.stats.Instructions > looking {
		*y = idling{}
		return nil
	}
	y.looks++
	if y.looks <= parked+1 {
		return nil
	}
	if y.since.IsZero() {
		y.since = time.Now()
	}
	limit := c.launch.machine.Patience
	if limit == 0 {
		limit = patience
	}
	if waited := time.Since(y.since); waited > limit {
		w := c.warps[c.turn%len(c.warps)]
		return w.fault(int(w.pc)-1, -1, fmt.Sprintf("waits for another machine since %v",
			waited.Round(time.Millisecond)))
	}
	if y.looks < eagers*(parked+1) {
		runtime.Gosched()
	} else {
		time.Sleep(pause)
	}
	return nil
}
