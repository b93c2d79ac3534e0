package tcp

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/link/collective"
	"github.com/eagleray/eagleray/internal/link/collective/collectivetest"
)

// TestAbortBesideWait has a rank abort that has done its part, while the others wait for a third.
func TestAbortBesideWait(t *testing.T) {
	t.Parallel()
	for name, l := range links() {
		for _, n := range []int{10, 100_000} {
			t.Run(fmt.Sprintf("%s, %d elements", name, n), func(t *testing.T) {
				gs := group(t, 4, l, Options{Timeout: time.Minute})
				go func() {
					time.Sleep(50 * time.Millisecond)
					gs[3].Abort(errors.New("driver link is down"))
				}()
				for r, err := range collectivetest.Each(append(gs[:2:2], gs[3]),
					func(g *Group) error { return g.AllReduce(make([]float32, n)) }) {
					if !errors.Is(err, collective.ErrAborted) || !strings.Contains(err.Error(),
						"driver link is down") {
						t.Errorf("rank %d: %v", []int{0, 1, 3}[r], err)
					}
				}
			})
		}
	}
}

// TestAbortRace aborts at random moments of busy groups: no rank may hang.
func TestAbortRace(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 5))
	for i := range 60 {
		// a pipe holds no notice, so that Close lingers
		l := []link{tcpPair, tlsPair, slowPair}[i%3]
		n := []int{100, 20_000}[i%2]
		gs := group(t, 4, l, Options{Timeout: time.Minute})
		delay := time.Duration(r.IntN(5000)) * time.Microsecond
		go func() {
			time.Sleep(delay)
			gs[1].Abort(errors.New("now"))
		}()
		for rank, err := range collectivetest.Each(gs, func(g *Group) error {
			x := make([]float32, n)
			for {
				if err := g.AllReduce(x); err != nil {
					return err
				}
			}
		}) {
			if !errors.Is(err, collective.ErrAborted) || !strings.Contains(err.Error(), "now") {
				t.Fatalf("round %d, rank %d: %v", i, rank, err)
			}
		}
	}
}

func TestLeaving(t *testing.T) {
	for name, l := range links() {
		t.Run(name, func(t *testing.T) {
			gs := group(t, 2, l, Options{Timeout: time.Minute})
			// A rank that has done its part may leave before the other has read it.
			errs := collectivetest.Each(gs, func(g *Group) error {
				if g.rank == 1 {
					return errors.Join(g.Gather(nil, []float32{1, 5}, 0), g.Close(), g.Close())
				}
				time.Sleep(20 * time.Millisecond)
				return g.Gather(make([]float32, 4), []float32{0, 5}, 0)
			})
			if name != "pipe" { // a pipe holds nothing
				collectivetest.Must(t, errs)
			}
			err := gs[0].Barrier()
			var e *collective.Error
			if !errors.As(err, &e) || !errors.Is(err, collective.ErrLeft) || name != "pipe" &&
				fmt.Sprint(e.Missing) != "[1]" {
				t.Errorf("waiting for one that left: %v", err)
			}
			if err := gs[1].Barrier(); !errors.Is(err, collective.ErrClosed) {
				t.Errorf("after Close: %v", err)
			}
			gs[1].Abort(errors.New("too late"))
		})
	}
}

// TestLeaveWakes has a rank close while others wait for it.
func TestLeaveWakes(t *testing.T) {
	t.Parallel()
	for name, l := range links() {
		t.Run(name, func(t *testing.T) {
			gs := group(t, 4, l, Options{Timeout: time.Minute})
			go func() {
				time.Sleep(20 * time.Millisecond)
				gs[2].Close()
			}()
			left := 0
			for r, err := range collectivetest.Each(gs[:2], (*Group).Barrier) {
				var e *collective.Error
				switch {
				case errors.Is(err, collective.ErrLeft) && errors.As(err, &e) &&
					fmt.Sprint(e.Missing) == "[2]":
					left++
				case !errors.Is(err, collective.ErrAborted) || !strings.Contains(err.Error(),
					"rank has left"):
					t.Errorf("rank %d: %v", r, err)
				}
			}
			if left == 0 {
				t.Error("no rank noticed by itself")
			}
		})
	}
}

func TestCloseDuringOperation(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 100_000} {
		gs := group(t, 2, tlsPair, Options{Timeout: time.Minute})
		done := make(chan error)
		go func() { done <- gs[0].AllReduce(make([]float32, n)) }()
		time.Sleep(20 * time.Millisecond)
		if err := gs[0].Close(); err != nil {
			t.Error(err)
		}
		if err := <-done; !errors.Is(err, collective.ErrAborted) || !errors.Is(err,
			collective.ErrClosed) {
			t.Errorf("operation under way: %v", err)
		}
		// The other rank may have all it needs of this operation, but not of the next. If Close has
		// given up on telling it why, it still learns that the rank has left.
		err := gs[1].AllReduce(make([]float32, n))
		if err == nil {
			err = gs[1].Barrier()
		}
		told := errors.Is(err, collective.ErrAborted) && strings.Contains(err.Error(),
			"group is closed")
		if !told && (n == 1 || !errors.Is(err, collective.ErrLeft)) {
			t.Errorf("the other rank: %v", err)
		}
	}
}

// TestStuckSend has the other side never read: what does not fit in between is given up on, and
// Close too.
func TestStuckSend(t *testing.T) {
	t.Parallel()
	a, b := tcpPair(t)
	defer b.Close()
	g, err := Join([]net.Conn{nil, a}, 0, Options{Timeout: 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	err = g.Broadcast(make([]byte, 64<<20), 0)
	var e *collective.Error
	if !errors.As(err, &e) || !errors.Is(err, collective.ErrTimeout) ||
		fmt.Sprint(e.Missing) != "[1]" {
		t.Errorf("got %v", err)
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
}

// TestNoLeaks checks that neither goroutines nor descriptors remain, whatever way a group ends.
func TestNoLeaks(t *testing.T) {
	count := func() (fds, goroutines int) {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Skipf("no /proc: %v", err)
		}
		return len(entries), runtime.NumGoroutine()
	}
	round := func(i int) {
		var gs []*Group
		for r, conns := range mesh(t, 4, []link{tcpPair, tlsPair}[i%2]) {
			g, err := Join(conns, r, Options{Timeout: time.Minute})
			if err != nil {
				t.Fatal(err)
			}
			gs = append(gs, g)
		}
		collectivetest.Each(gs, func(g *Group) error {
			err := errors.Join(g.Barrier(), g.AllReduce(make([]float32, 30_000)))
			if g.rank == i%5 {
				g.Abort(errors.New("enough"))
			}
			return errors.Join(err, g.Close())
		})
	}
	round(0)
	round(1)
	fds, goroutines := count()
	for i := range 20 {
		round(i)
	}
	// A goroutine that a group has waited for may still be on its last instructions.
	for until := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		f, n := count()
		if f <= fds && n <= goroutines {
			return
		}
		if time.Now().After(until) {
			t.Fatalf("%d descriptors and %d goroutines after, %d and %d before",
				f, n, fds, goroutines)
		}
	}
}

// TestWatch has a rank that is in no operation learn of an abort, as soon as it watches. The order
// to watch comes with an interrupt of a watch before, which must not end the one that it begins.
func TestWatch(t *testing.T) {
	for range 20 {
		ended := make(chan error, 1)
		a, b := tcpPair(t)
		watcher, err := Join([]net.Conn{nil, a}, 0,
			Options{OnEnd: func(err error) { ended <- err }})
		if err != nil {
			t.Fatal(err)
		}
		other, err := Join([]net.Conn{b, nil}, 1, Options{})
		if err != nil {
			t.Fatal(err)
		}
		watcher.Watch()
		p := watcher.peers[0]
		for !p.watching.Load() {
			time.Sleep(time.Millisecond)
		}
		p.interrupt()
		other.Abort(errors.New("out of cheese"))
		select {
		case err := <-ended:
			if !errors.Is(err, collective.ErrAborted) || !strings.Contains(err.Error(),
				"by rank 1: out of cheese") {
				t.Error(err)
			}
		case <-time.After(20 * time.Second):
			t.Fatal("the abort is not noticed")
		}
		if err := errors.Join(watcher.Close(), other.Close()); err != nil {
			t.Error(err)
		}
		watcher.Watch() // must do nothing
	}
}
