package fanin

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/link/queue"
	"github.com/eagleray/eagleray/internal/link/queue/link"
	"github.com/eagleray/eagleray/internal/link/queue/queuetest"
)

// TestCloseWhileReceiving ends a Recv without a deadline, a Send that waits for room, and
// everything after; it leaves no goroutine and no descriptor.
func TestCloseWhileReceiving(t *testing.T) {
	for _, shape := range shapes {
		t.Run(shape, func(t *testing.T) {
			_, _ = connection(t) // the runtime's poller stays open from the first socket on
			before := queuetest.Counted(t)
			for round := range 6 {
				g := newGroup(t, shape, link.Options{Window: 64 << 10})
				if round%2 == 0 { // a record was given and not taken
					if err := g.ranks[len(shape)-1].Send([]byte("record"), soon()); err != nil {
						t.Fatal(err)
					}
				}
				var wg sync.WaitGroup
				if round%3 != 0 {
					wg.Go(func() {
						for {
							if _, _, err := g.hub.Recv(time.Time{}); err != nil {
								if !errors.Is(err, queue.ErrClosed) {
									t.Errorf("Recv: %v", err)
								}
								return
							}
						}
					})
				}
				if round%2 == 1 {
					wg.Go(func() {
						for {
							if err := g.hub.Send(make([]byte, 20<<10), time.Time{}); err != nil {
								if !errors.Is(err, queue.ErrClosed) {
									t.Errorf("Send: %v", err)
								}
								return
							}
						}
					})
				}
				time.Sleep(time.Duration(round) * time.Millisecond)
				for range 2 {
					if err := g.hub.Close(); err != nil {
						t.Error(err)
					}
				}
				wg.Wait()
				if err := g.hub.Send([]byte("x"), soon()); !errors.Is(err, queue.ErrClosed) {
					t.Errorf("Send after Close: %v", err)
				}
				g.hub.Interrupt()
				g.close()
			}
			for until := soon(); ; time.Sleep(5 * time.Millisecond) {
				after := queuetest.Counted(t)
				if after[0] <= before[0] && after[1] <= before[1] {
					break
				}
				if time.Now().After(until) {
					t.Fatalf("goroutines and descriptors %v, before %v", after, before)
				}
			}
		})
	}
}
