package tcp

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/link/collective"
	"github.com/eagleray/eagleray/internal/link/collective/collectivetest"
	"github.com/eagleray/eagleray/internal/link/collective/shm"
)

func TestOperations(t *testing.T) {
	for name, l := range links() {
		for _, ranks := range []int{1, 2, 3, 4, 8} {
			for _, maxBytes := range []int{0, 1 << 20} {
				t.Run(fmt.Sprintf("%s, %d ranks, %d bytes", name, ranks, maxBytes),
					func(t *testing.T) {
						gs, steps := group(t, ranks, l, Options{MaxBytes: maxBytes}), 160
						if testing.Short() {
							steps = 80
						}
						collectivetest.Must(t, collectivetest.Each(gs,
							func(g *Group) error {
								return collectivetest.Script(g, 7+uint64(maxBytes),
									steps/(2+ranks), 100_000)
							}))
					})
			}
		}
	}
}

// TestSizes runs the all-reduce at sizes around its borders.
func TestSizes(t *testing.T) {
	for name, l := range links() {
		for _, ranks := range []int{2, 4, 8} {
			t.Run(fmt.Sprintf("%s, %d ranks", name, ranks), func(t *testing.T) {
				gs := group(t, ranks, l, Options{})
				split := splitFrom(ranks)
				sizes := []int{0, 1, smallBytes/4 - 1, smallBytes / 4, smallBytes/4 + 1, split - 1,
					split, split + 1, split + 17, maxFrame/4 - 1, maxFrame/4 + 1, pieceElements - 1,
					pieceElements, pieceElements + 1, 3*pieceElements + 5003}
				if testing.Short() || name != "tcp" || ranks == 8 {
					sizes = sizes[:len(sizes)-4]
				}
				for _, n := range sizes {
					collectivetest.Must(t, collectivetest.Each(gs,
						func(g *Group) error {
							return collectivetest.ScriptStep(g, 4, 0, n,
								uint64(n))
						}))
				}
			})
		}
	}
}

// TestSameBitsAsSharedMemory compares the two transports directly.
func TestSameBitsAsSharedMemory(t *testing.T) {
	for _, ranks := range []int{2, 4, 8} {
		f, err := shm.Create(ranks, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		gs := group(t, ranks, tcpPair, Options{})
		collectivetest.Must(t, collectivetest.Each(gs, func(g *Group) error {
			other, err := shm.Join(f, g.Rank(), ranks, 1<<20)
			if err != nil {
				return err
			}
			for _, n := range []int{1, 1000, smallBytes / 4, 20_000, 300_001} {
				x, y := collectivetest.Contribution(g.Rank(), n, 3),
					collectivetest.Contribution(g.Rank(), n, 3)
				if err := errors.Join(g.AllReduce(x), other.AllReduce(y)); err != nil {
					return err
				}
				if err := collectivetest.SameBits(x, y); err != nil {
					return err
				}
			}
			return other.Close()
		}))
	}
}

func TestManySmall(t *testing.T) {
	for _, ranks := range []int{2, 4} {
		gs := group(t, ranks, tcpPair, Options{})
		n := 40_000 / ranks / ranks
		if testing.Short() {
			n /= 10
		}
		collectivetest.Must(t, collectivetest.Each(gs, func(g *Group) error {
			return collectivetest.ManySums(g, n)
		}))
	}
}

// TestUneven lets one rank come late every time, so that the streams go to the readers and back,
// and one-sided operations run ahead.
func TestUneven(t *testing.T) {
	t.Parallel()
	for name, l := range links() {
		t.Run(name, func(t *testing.T) {
			gs := group(t, 4, l, Options{})
			collectivetest.Must(t, collectivetest.Each(gs, func(g *Group) error {
				for i := range 60 {
					if g.rank == i%4 {
						time.Sleep(time.Duration(i%5) * 4 * time.Millisecond)
					}
					if err := collectivetest.ScriptStep(g, i*7%5, i%3, []int{3000, 1,
						40_000}[i/5%3], uint64(i)); err != nil {
						return fmt.Errorf("operation %d: %w", i, err)
					}
				}
				return nil
			}))
		})
	}
}

// TestNoAllocations counts what both ranks allocate in rounds of all operations.
func TestNoAllocations(t *testing.T) {
	for _, tt := range []struct {
		name  string
		link  link
		n     int
		limit float64
	}{
		{"small", tcpPair, 1000, 0},
		// A round of large operations ends with a small one, for which the streams are recalled
		// from the readers: net makes an error for each interrupted read.
		{"large", tcpPair, 100_000, 8},
		// crypto/tls allocates a few bytes to read a record.
		{"small, tls", tlsPair, 1000, 40},
	} {
		t.Run(tt.name, func(t *testing.T) {
			gs := group(t, 2, tt.link, Options{MaxBytes: 4 * tt.n})
			per := collectivetest.Allocations(t, gs, 10, 100, func(g *Group) func() error {
				x, all, b := make([]float32, tt.n), make([]float32, 2*tt.n), make([]byte, tt.n)
				return func() error {
					return errors.Join(g.AllReduce(x), g.AllGather(all, x), g.Gather(all, x, 1),
						g.Broadcast(b, 0), g.Barrier())
				}
			})
			t.Logf("%v allocations per round", per)
			if per > tt.limit {
				t.Errorf("%v allocations per round of operations of %d elements, want at most %v",
					per, tt.n, tt.limit)
			}
		})
	}
}

func TestJoinRefuses(t *testing.T) {
	a, b := tcpPair(t)
	defer a.Close()
	defer b.Close()
	for name, tt := range map[string]struct {
		conns int
		rank  int
		fill  bool
	}{"too many ranks": {collective.MaxMembers + 1, 0, true}, "rank 2 of 2": {2, 2, true},
		"negative rank": {2, -1, true}, "no ranks": {0, 0, false}} {
		conns := make([]net.Conn, tt.conns)
		for p := range conns {
			if p != tt.rank && tt.fill {
				conns[p] = a
			}
		}
		if g, err := Join(conns, tt.rank, Options{}); err == nil {
			g.Close()
			t.Errorf("%s: joined", name)
		}
	}
	if g, err := Join([]net.Conn{a, b}, 0, Options{}); err == nil {
		g.Close()
		t.Error("joined with a connection to itself")
	}
}

func TestContract(t *testing.T) {
	for _, c := range []struct {
		name        string
		link        link
		allocations float64
	}{{"tcp", tcpPair, 0}, {"tls", tlsPair, 4}} { // crypto/tls allocates to read a record
		t.Run(c.name, func(t *testing.T) {
			make := func(t *testing.T, ranks int, timeout time.Duration) []*Group {
				return group(t, ranks, c.link, Options{Timeout: timeout})
			}
			collectivetest.Contract(t, c.allocations, make)
			collectivetest.WhileUnderWay(t, make)
		})
	}
}

func TestEnds(t *testing.T) {
	for name, l := range links() {
		make := func(t *testing.T, ranks int, timeout time.Duration) []*Group {
			return group(t, ranks, l, Options{Timeout: timeout})
		}
		t.Run(name, func(t *testing.T) { collectivetest.Ends(t, make) })
		if name == "tcp" {
			collectivetest.Mismatch(t, make)
			collectivetest.BadArguments(t, make)
		}
	}
}

// TestMoved wants long messages to be seen as they come: a count for each frame at least.
func TestMoved(t *testing.T) {
	const ranks, n = 2, 1 << 20
	var moved atomic.Uint64
	gs := group(t, ranks, pipePair, Options{Moved: &moved})
	var wg sync.WaitGroup
	for _, g := range gs {
		wg.Go(func() {
			if err := g.AllReduce(make([]float32, n)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	// Each rank adds up a half, and gets the other.
	if least := uint64(ranks * 2 * (4 * n / 2) / maxFrame); moved.Load() < least {
		t.Errorf("moved %d times for %d frames", moved.Load(), least)
	}
}
