package shm

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/link/collective"
	"github.com/eagleray/eagleray/internal/link/collective/collectivetest"
)

// group joins all ranks in this process, each with a mapping of its own.
func group(t testing.TB, ranks, maxBytes int, o Options) []*Group {
	t.Helper()
	f, err := Create(ranks, maxBytes)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	gs := make([]*Group, ranks)
	for r := range gs {
		if gs[r], err = o.Join(f, r, ranks, maxBytes); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := gs[r].Close(); err != nil {
				t.Error(err)
			}
		})
	}
	return gs
}

func TestOperations(t *testing.T) {
	for _, ranks := range []int{1, 2, 3, 4, 8} {
		for _, maxBytes := range []int{1, 20_000, 1 << 20} {
			t.Run(fmt.Sprintf("%d ranks, %d bytes", ranks, maxBytes), func(t *testing.T) {
				gs := group(t, ranks, maxBytes, Options{})
				collectivetest.Must(t, collectivetest.Each(gs,
					func(g *Group) error { return collectivetest.Script(g, 7, 60, 100_000) }))
			})
		}
	}
}

// TestSplitSizes runs the shared all-reduce at sizes around its borders.
func TestSplitSizes(t *testing.T) {
	for _, ranks := range []int{4, 8} {
		gs := group(t, ranks, maxSlot, Options{})
		for _, n := range []int{splitFrom - 1, splitFrom, splitFrom + 1, splitFrom + 3, splitFrom +
			17, 5003, 65535, 65536 + splitFrom + 5} {
			collectivetest.Must(t, collectivetest.Each(gs,
				func(g *Group) error { return collectivetest.ScriptStep(g, 4, 0, n, uint64(n)) }))
		}
	}
}

// TestManySmall passes the counter's wrap-around too.
func TestManySmall(t *testing.T) {
	for _, ranks := range []int{2, 4} {
		gs := group(t, ranks, 4096, Options{})
		// goroutines that outnumber the processors are slow
		n := 200_000 / (ranks * ranks * ranks / 4)
		if testing.Short() {
			n = 5000
		}
		for _, g := range gs {
			g.seq = math.MaxUint32 - seqUnit*1000 + 1
			g.peers[g.rank].word.Store(g.seq)
		}
		collectivetest.Must(t, collectivetest.Each(gs, func(g *Group) error {
			return collectivetest.ManySums(g, n)
		}))
		if got := gs[0].seq; got >= math.MaxUint32/2 && n > 2000 {
			t.Errorf("the counter stands at %d: it did not wrap", got)
		}
	}
}

// TestUneven lets one rank come late every time, so that the others sleep, and one-sided operations
// run ahead.
func TestUneven(t *testing.T) {
	gs := group(t, 4, 4096, Options{})
	collectivetest.Must(t, collectivetest.Each(gs, func(g *Group) error {
		for i := range 30 {
			if g.rank == i%4 {
				time.Sleep(2 * time.Millisecond)
			}
			if err := collectivetest.ScriptStep(g, 3-i%2, i%3, 3000, uint64(i)); err != nil {
				return err
			}
		}
		return nil
	}))
}

func TestNoAllocations(t *testing.T) {
	const n = 5000
	gs := group(t, 2, 64<<10, Options{})
	per := collectivetest.Allocations(t, gs, 0, 200, func(g *Group) func() error {
		x, all, b := make([]float32, n), make([]float32, 2*n), make([]byte, 100)
		return func() error {
			return errors.Join(g.AllReduce(x), g.AllGather(all, x), g.Gather(all, x, 1),
				g.Broadcast(b, 0), g.Barrier())
		}
	})
	if per != 0 {
		t.Errorf("%v allocations per round of operations", per)
	}
}

// TestAbortRace aborts at random moments of busy groups: no rank may hang.
func TestAbortRace(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 5))
	for range 50 {
		gs := group(t, 4, 4096, Options{Timeout: time.Minute})
		delay := time.Duration(r.IntN(3000)) * time.Microsecond
		go func() {
			time.Sleep(delay)
			gs[1].Abort(errors.New("now"))
		}()
		for _, err := range collectivetest.Each(gs, func(g *Group) error {
			return collectivetest.SumUntil(g, 100)
		}) {
			if !errors.Is(err, collective.ErrAborted) {
				t.Fatal(err)
			}
		}
	}
}

func TestLeaving(t *testing.T) {
	gs := group(t, 2, 4096, Options{Timeout: time.Minute})
	// A rank that has done its part may leave before the other has read it.
	errs := collectivetest.Each(gs, func(g *Group) error {
		err := g.Gather(make([]float32, 4), []float32{float32(g.rank), 5}, 0)
		if g.rank == 1 {
			err = errors.Join(err, g.Close(), g.Close())
		}
		return err
	})
	collectivetest.Must(t, errs)
	err := gs[0].Barrier()
	var e *collective.Error
	if !errors.As(err, &e) || !errors.Is(err, collective.ErrLeft) ||
		fmt.Sprint(e.Missing) != "[1]" {
		t.Errorf("waiting for one that left: %v", err)
	}
	if err := gs[1].Barrier(); !errors.Is(err, collective.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	gs[1].Abort(errors.New("too late")) // must not touch the mapping
}

func TestCloseDuringOperation(t *testing.T) {
	gs := group(t, 2, 4096, Options{Timeout: time.Minute})
	done := make(chan error)
	go func() { done <- gs[0].Barrier() }()
	time.Sleep(20 * time.Millisecond)
	if err := gs[0].Close(); err != nil {
		t.Error(err)
	}
	if err := <-done; !errors.Is(err, collective.ErrAborted) || !errors.Is(err,
		collective.ErrClosed) {
		t.Errorf("operation under way: %v", err)
	}
	if err := gs[1].Barrier(); !errors.Is(err, collective.ErrAborted) {
		t.Errorf("the other rank: %v", err)
	}
}

func TestContract(t *testing.T) {
	make := func(t *testing.T, ranks int, timeout time.Duration) []*Group {
		return group(t, ranks, 4096, Options{Timeout: timeout})
	}
	collectivetest.Contract(t, 0, make)
	collectivetest.Ends(t, make)
	collectivetest.Mismatch(t, make)
	collectivetest.BadArguments(t, make)
}

// TestNeighbours does not spin where more ranks than a group's own share the processors.
func TestNeighbours(t *testing.T) {
	for _, n := range []int{0, runtime.NumCPU() + 1} {
		g := group(t, 1, 4096, Options{Neighbours: n})[0]
		if spins := g.policy.Budget() > 0 && g.messages.Budget() > 0; spins != (n == 0) {
			t.Errorf("%d neighbours: waits spin: %v", n, spins)
		}
	}
}
