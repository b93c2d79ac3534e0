package shm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/link/collective"
	"github.com/eagleray/eagleray/internal/link/collective/collectivetest"
	"github.com/eagleray/eagleray/internal/sys/testchild"
)

// TestRunsOfManyRanks has groups of any number of ranks, up to the largest, exchange runs of any
// lengths through buffers of a page, and larger ones.
func TestRunsOfManyRanks(t *testing.T) {
	for _, c := range []struct{ ranks, maxBytes, rounds, most int }{
		{5, 1, 20, 30_000}, {7, 64 << 10, 20, 100_000}, {16, 1, 10, 30_000},
		{33, 1, 3, 10_000}, {collective.MaxMembers, 8 << 10, 2, 8000},
	} {
		t.Run(fmt.Sprint(c.ranks), func(t *testing.T) {
			gs := group(t, c.ranks, c.maxBytes, Options{Timeout: time.Minute})
			collectivetest.ManyRuns(t, gs, c.rounds, func(*rand.Rand) int { return c.most })
		})
	}
}

// firstStep is the first step of an all-to-all, of which the rank says what it likes.
func firstStep(g *Group, ends ...uint64) error {
	return g.do(collective.AllToAllV, func() error {
		parity, err := g.enter()
		if err != nil {
			return err
		}
		for i, end := range ends {
			binary.NativeEndian.PutUint64(g.seg.buffer(g.rank, parity)[8*i:], end)
		}
		return g.publish(parity, collective.Tag(collective.AllToAllV, 0, 0))
	})
}

// TestBadEnds has a rank say of its runs, which are for ranks 2 and 0, what cannot be.
func TestBadEnds(t *testing.T) {
	for _, c := range []struct {
		ends []uint64
		want string
	}{
		{[]uint64{1 << 62, 1 << 62}, "of 1073741825 on rank 1"}, // the most and one
		{[]uint64{7, 5}, "of 5 on rank 1"},
	} {
		gs := group(t, 3, 4096, Options{Timeout: time.Minute})
		errs := collectivetest.Each(gs, func(g *Group) error {
			if g.rank == 1 {
				return firstStep(g, c.ends...)
			}
			_, err := g.AllToAllV(nil, nil, make([]int, 3), make([]int, 3), nil)
			return err
		})
		found := false
		for _, err := range []error{errs[0], errs[2]} {
			found = found || errors.Is(err, collective.ErrMismatch)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("ends %v: %v, not %q", c.ends, err, c.want)
			}
		}
		if !found {
			t.Errorf("ends %v: no mismatch: %v", c.ends, errs)
		}
	}
}

// longRuns is how many elements the runs of ranks have that are killed in the middle.
const longRuns = 5000

// die ends this process in a phase of an all-to-all.
func die(g *Group, phase string) error {
	switch phase {
	case "entered":
		if _, err := g.enter(); err != nil {
			return err
		}
	case "first piece":
		if err := firstStep(g, longRuns, 2*longRuns, 3*longRuns); err != nil {
			return err
		}
	case "any":
		time.AfterFunc(300*time.Millisecond, kill)
		return collectivetest.ExchangeUntil(g, longRuns)
	}
	kill()
	return nil
}

func kill() { syscall.Kill(os.Getpid(), syscall.SIGKILL) }

// TestKilledInRuns has a rank die in each phase of an all-to-all. As the driver does, the test sees
// that and aborts; all others end quickly.
func TestKilledInRuns(t *testing.T) {
	for _, phase := range []string{"joined", "entered", "first piece", "any"} {
		t.Run(phase, func(t *testing.T) {
			const ranks, maxBytes = 4, 4096
			f, err := Create(ranks, maxBytes)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			g, err := Options{Timeout: time.Minute}.Join(f, 0, ranks, maxBytes)
			if err != nil {
				t.Fatal(err)
			}
			defer g.Close()
			victim := start(t, f, "die:"+strings.ReplaceAll(phase, " ", "_"), 1, ranks, maxBytes)
			others := []*testchild.Process{start(t, f, "exchange", 2, ranks, maxBytes),
				start(t, f, "exchange", 3, ranks, maxBytes)}
			ended := make(chan error, 1)
			go func() { ended <- collectivetest.ExchangeUntil(g, longRuns) }()
			if err := victim.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
				t.Fatalf("the victim: %v: %s", err, victim.Stderr.String())
			}
			died := time.Now()
			g.Abort(errors.New("rank 1 was killed"))
			if err := <-ended; !errors.Is(err, collective.ErrAborted) {
				t.Errorf("rank 0: %v", err)
			}
			for i, p := range others {
				p.Wait()
				if p.ProcessState.ExitCode() != 1 || !strings.Contains(p.Stderr.String(),
					"aborted by rank 0: rank 1 was killed") {
					t.Errorf("rank %d: exit code %d, %s", i+2,
						p.ProcessState.ExitCode(), p.Stderr.String())
				}
			}
			if took := time.Since(died); took > 10*time.Second {
				t.Errorf("the others ended after %v", took)
			}
		})
	}
}
