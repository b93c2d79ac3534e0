package hosts

import (
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/link/collective"
	"github.com/eagleray/eagleray/internal/link/collective/collectivetest"
	"github.com/eagleray/eagleray/internal/link/collective/shm"
)

const maxBytes = 64 << 10

// join joins all ranks in this process; the letters of where are their hosts.
func join(t *testing.T, where string, timeout time.Duration) []*Group {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ranks := len(where)
	conns := make([][]net.Conn, ranks)
	for r := range conns {
		conns[r] = make([]net.Conn, ranks)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(err)
	defer l.Close()
	for a := range ranks {
		for b := range a {
			conns[a][b], err = net.Dial("tcp", l.Addr().String())
			must(err)
			conns[b][a], err = l.Accept()
			must(err)
		}
	}
	gs := make([]*Group, ranks)
	memory := map[byte]*os.File{}
	for r := range gs {
		local := localRanks(where, r)
		if memory[where[r]] == nil && len(local) > 1 {
			memory[where[r]], err = shm.Create(len(local), maxBytes)
			must(err)
			defer memory[where[r]].Close()
		}
		gs[r], err = Join(memory[where[r]], local, conns[r], r, Options{MaxBytes: maxBytes,
			Timeout: timeout})
		must(err)
	}
	return gs
}

func localRanks(where string, rank int) (local []int) {
	for r := range where {
		if where[r] == where[rank] {
			local = append(local, r)
		}
	}
	return local
}

// group is closed with the test.
func group(t *testing.T, where string, timeout time.Duration) []*Group {
	t.Helper()
	gs := join(t, where, timeout)
	t.Cleanup(func() {
		for _, err := range collectivetest.Each(gs, (*Group).Close) {
			if err != nil {
				t.Error(err)
			}
		}
	})
	return gs
}

func TestOperations(t *testing.T) {
	for _, where := range []string{"ab", "aab", "aabb", "abba", "aaab", "abcd", "abcab", "aaaabbbb",
		"abcabcab"} {
		t.Run(where, func(t *testing.T) {
			gs := group(t, where, time.Minute)
			collectivetest.Must(t, collectivetest.Each(gs, func(g *Group) error {
				return collectivetest.Script(g, 7, 60, 60_000)
			}))
		})
	}
}

// TestSizes runs the all-reduce at sizes around its borders.
func TestSizes(t *testing.T) {
	gs := group(t, "aaba", time.Minute)
	for _, n := range []int{0, 1, splitFrom - 1, splitFrom, splitFrom + 3, pieceElements - 1,
		pieceElements, pieceElements + 2, 2*pieceElements + splitFrom + 1} {
		collectivetest.Must(t, collectivetest.Each(gs, func(g *Group) error {
			return collectivetest.ScriptStep(g, 4, 0, n, uint64(n))
		}))
	}
}

// TestContract holds messages and guards within a host, between hosts, and where the others are on
// one host and on several.
func TestContract(t *testing.T) {
	for _, where := range []string{"aabb", "abab", "abbb", "abcc"} {
		t.Run(where, func(t *testing.T) {
			collectivetest.Contract(t, 0, func(t *testing.T, ranks int,
				timeout time.Duration) []*Group {
				return group(t, where[:ranks], timeout)
			})
		})
	}
}

func TestNoAllocations(t *testing.T) {
	const n = 1000
	gs := group(t, "aab", time.Minute)
	per := collectivetest.Allocations(t, gs, 20, 100, func(g *Group) func() error {
		x, all, b := make([]float32, n), make([]float32, 3*n), make([]byte, n)
		return func() error {
			return errors.Join(g.AllGather(all, x), g.Gather(all, x, 1), g.Broadcast(b, 0),
				g.Barrier())
		}
	})
	if per != 0 {
		t.Errorf("%v allocations per round of operations", per)
	}
}

// TestTimeoutNamesMissing leaves out one rank after the other: those that say that a rank is late
// say that it is this one.
func TestTimeoutNamesMissing(t *testing.T) {
	var all sync.WaitGroup
	for _, where := range []string{"aabb", "abab", "aaab"} {
		for missing := range where {
			gs := group(t, where, time.Second)
			others := slices.Delete(slices.Clone(gs), missing, missing+1)
			all.Go(func() {
				late := 0
				for _, err := range collectivetest.Each(others, func(g *Group) error {
					return g.AllReduce(make([]float32, 100))
				}) {
					var e *collective.Error
					timeout := errors.Is(err, collective.ErrTimeout)
					if timeout {
						late++
					}
					if !errors.As(err, &e) || e.Op != "all-reduce" ||
						timeout && !slices.Equal(e.Missing, []int{missing}) ||
						!timeout && !errors.Is(err, collective.ErrAborted) {
						t.Errorf("%s without rank %d: %v", where, missing, err)
					}
				}
				if late == 0 {
					t.Errorf("%s without rank %d: nobody says who is late", where, missing)
				}
			})
		}
	}
	all.Wait()
}

// TestAbort ends the waits of all, wherever they are.
func TestAbort(t *testing.T) {
	for _, where := range []string{"aabb", "abab", "aaab"} {
		for by := range where {
			gs := group(t, where, time.Minute)
			others := slices.Delete(slices.Clone(gs), by, by+1)
			timer := time.AfterFunc(10*time.Millisecond,
				func() { gs[by].Abort(errors.New("out of cheese")) })
			defer timer.Stop()
			began := time.Now()
			for _, err := range collectivetest.Each(others, func(g *Group) error {
				return g.AllReduce(make([]float32, 100))
			}) {
				if !errors.Is(err, collective.ErrAborted) || !strings.Contains(err.Error(),
					"out of cheese") {
					t.Errorf("%s, rank %d: %v", where, by, err)
				}
			}
			if took := time.Since(began); took > 20*time.Second {
				t.Errorf("%s, rank %d: took %v", where, by, took)
			}
			if err := gs[by].Barrier(); !errors.Is(err, collective.ErrAborted) {
				t.Errorf("%s, rank %d: then %v", where, by, err)
			}
		}
	}
}

// TestLeaving checks that all end when one leaves, and name it.
func TestLeaving(t *testing.T) {
	for _, where := range []string{"aabb", "aaab"} {
		for who := range where {
			gs := group(t, where, time.Minute)
			errs := collectivetest.Each(gs, func(g *Group) error {
				if g.Rank() == who {
					return errors.Join(g.AllReduce(make([]float32, 10)), g.Close())
				}
				return collectivetest.SumUntil(g, 10)
			})
			for rank, err := range errs {
				if rank != who && (err == nil || !strings.Contains(err.Error(),
					fmt.Sprintf("waiting for rank %d: rank has left the group", who))) {
					t.Errorf("%s, rank %d left: rank %d: %v", where, who, rank, err)
				}
			}
		}
	}
}

// TestNoLeaks checks that nothing remains, whatever way a group ends.
func TestNoLeaks(t *testing.T) {
	count := func() [3]int {
		fds, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Skipf("no /proc: %v", err)
		}
		maps, err := os.ReadFile("/proc/self/maps")
		if err != nil {
			t.Skipf("no /proc: %v", err)
		}
		return [3]int{len(fds), strings.Count(string(maps), "eagleray-collective"),
			runtime.NumGoroutine()}
	}
	round := func(i int) {
		collectivetest.Each(join(t, "aabab", time.Minute), func(g *Group) error {
			x := make([]float32, 30_000)
			err := errors.Join(g.Barrier(), g.Send(collective.Bytes(x), (g.Rank()+1)%5),
				g.AllGather(make([]float32, 5), x[:1]))
			if g.Rank() == i%6 {
				g.Abort(errors.New("enough"))
			}
			return errors.Join(err, g.Close())
		})
	}
	round(0)
	before := count()
	for i := range 12 {
		round(i)
	}
	for until := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		after := count()
		if after[0] <= before[0] && after[1] == 0 && after[2] <= before[2] {
			return
		}
		if time.Now().After(until) {
			t.Fatal(fmt.Sprint("descriptors, mappings, goroutines: ", after, " after, ", before,
				" before"))
		}
	}
}
