package tcp

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/collective"
	"github.com/eagleray/eagleray/internal/collective/shm"
)

// contribution is what a rank brings to an operation: everyone can compute everyone's. Magnitudes are far apart, so
// that another order of addition gives other bits.
func contribution(rank, n int, seed uint64) []float32 {
	x := make([]float32, n)
	state := seed*0x9e3779b97f4a7c15 + uint64(rank) + 1
	for i := range x {
		state ^= state << 13
		state ^= state >> 7
		state ^= state << 17
		const exponents, lowest = 24, 115
		x[i] = math.Float32frombits(uint32(state>>40)<<31 | uint32(state>>32%exponents+lowest)<<23 | uint32(state)>>9)
	}
	return x
}

func expectedSum(ranks, n int, seed uint64) []float32 {
	parts := make([][]float32, ranks)
	for p := range parts {
		parts[p] = contribution(p, n, seed)
	}
	want := make([]float32, n)
	collective.SumTree(want, parts)
	return want
}

func sameBits(a, b []float32) error {
	if len(a) != len(b) {
		return fmt.Errorf("%d elements, want %d", len(a), len(b))
	}
	for i := range a {
		if math.Float32bits(a[i]) != math.Float32bits(b[i]) {
			return fmt.Errorf("element %d of %d: got %v, want %v", i, len(a), a[i], b[i])
		}
	}
	return nil
}

// script runs a sequence of random operations that all ranks derive from the seed, checking each.
func script(g *Group, seed uint64, operations, maxElements int) error {
	r := rand.New(rand.NewPCG(seed, 99))
	for i := range operations {
		kind, root := r.IntN(8), r.IntN(g.Ranks())
		n := r.IntN(1 << r.IntN(1+len(fmt.Sprintf("%b", maxElements))))
		n = min(n, maxElements)
		opSeed := seed<<32 + uint64(i)
		if err := scriptStep(g, kind, root, n, opSeed); err != nil {
			return fmt.Errorf("operation %d (kind %d, root %d, %d elements): %w", i, kind, root, n, err)
		}
	}
	return nil
}

func scriptStep(g *Group, kind, root, n int, seed uint64) error {
	x := contribution(g.Rank(), n, seed)
	all := func() []float32 {
		var want []float32
		for p := range g.Ranks() {
			want = append(want, contribution(p, n, seed)...)
		}
		return want
	}
	switch kind {
	case 0:
		return g.Barrier()
	case 1:
		dst := make([]float32, n*g.Ranks())
		if err := g.AllGather(dst, x); err != nil {
			return err
		}
		return sameBits(dst, all())
	case 2:
		var dst []float32
		if g.Rank() == root {
			dst = make([]float32, n*g.Ranks())
		}
		if err := g.Gather(dst, x, root); err != nil || g.Rank() != root {
			return err
		}
		return sameBits(dst, all())
	case 3:
		b := asBytes(x)[:max(0, 4*n-int(seed%4))] // any number of bytes
		if err := g.Broadcast(b, root); err != nil {
			return err
		}
		want := contribution(root, n, seed)
		copy(asBytes(want)[len(b):], asBytes(x)[len(b):])
		return sameBits(x, want)
	default:
		if err := g.AllReduce(x); err != nil {
			return err
		}
		return sameBits(x, expectedSum(g.Ranks(), n, seed))
	}
}

func TestOperations(t *testing.T) {
	for name, l := range links() {
		for _, ranks := range []int{1, 2, 4, 8} {
			for _, maxBytes := range []int{0, 1 << 20} {
				t.Run(fmt.Sprintf("%s, %d ranks, %d bytes", name, ranks, maxBytes), func(t *testing.T) {
					gs := group(t, ranks, l, Options{MaxBytes: maxBytes})
					must(t, each(gs, func(g *Group) error { return script(g, 7+uint64(maxBytes), 160/(2+ranks), 100_000) }))
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
				sizes := []int{0, 1, smallBytes/4 - 1, smallBytes / 4, smallBytes/4 + 1, split - 1, split, split + 1, split + 17,
					maxFrame/4 - 1, maxFrame/4 + 1, pieceElements - 1, pieceElements, pieceElements + 1, 3*pieceElements + 5003}
				if testing.Short() || name != "tcp" || ranks == 8 {
					sizes = sizes[:len(sizes)-4]
				}
				for _, n := range sizes {
					must(t, each(gs, func(g *Group) error { return scriptStep(g, 4, 0, n, uint64(n)) }))
				}
			})
		}
	}
	for _, ranks := range []int{1, 2, 4, 8} {
		for n := range 3000 {
			at := 0
			for rank := range ranks {
				from, to := share(rank, ranks, n)
				if from != at || to < from {
					t.Fatalf("%d ranks, %d elements: rank %d has [%d, %d), want it to start at %d", ranks, n, rank, from, to, at)
				}
				at = to
			}
			if at != n {
				t.Fatalf("%d ranks share %d of %d elements", ranks, at, n)
			}
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
		must(t, each(gs, func(g *Group) error {
			other, err := shm.Join(f, g.Rank(), ranks, 1<<20)
			if err != nil {
				return err
			}
			for _, n := range []int{1, 1000, smallBytes / 4, 20_000, 300_001} {
				x, y := contribution(g.Rank(), n, 3), contribution(g.Rank(), n, 3)
				if err := errors.Join(g.AllReduce(x), other.AllReduce(y)); err != nil {
					return err
				}
				if err := sameBits(x, y); err != nil {
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
		must(t, each(gs, func(g *Group) error {
			x := make([]float32, 16)
			for i := range n {
				for j := range x {
					x[j] = float32(g.rank + i%100)
				}
				if err := g.AllReduce(x); err != nil {
					return err
				}
				if want := float32(ranks*(i%100) + ranks*(ranks-1)/2); x[i%16] != want {
					return fmt.Errorf("operation %d: got %v, want %v", i, x[i%16], want)
				}
			}
			return nil
		}))
	}
}

// TestUneven lets one rank come late every time, so that the streams go to the readers and back, and one-sided
// operations run ahead.
func TestUneven(t *testing.T) {
	for name, l := range links() {
		t.Run(name, func(t *testing.T) {
			gs := group(t, 4, l, Options{})
			must(t, each(gs, func(g *Group) error {
				for i := range 60 {
					if g.rank == i%4 {
						time.Sleep(time.Duration(i%5) * 4 * time.Millisecond)
					}
					if err := scriptStep(g, i*7%5, i%3, []int{3000, 1, 40_000}[i/5%3], uint64(i)); err != nil {
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
		// A round of large operations ends with a small one, for which the streams are recalled from the readers:
		// net makes an error for each interrupted read.
		{"large", tcpPair, 100_000, 8},
		// crypto/tls allocates a few bytes to read a record.
		{"small, tls", tlsPair, 1000, 40},
	} {
		t.Run(tt.name, func(t *testing.T) {
			gs := group(t, 2, tt.link, Options{MaxBytes: 4 * tt.n})
			const runs, warm = 100, 10
			round := func(g *Group) func() error {
				x, all, b := make([]float32, tt.n), make([]float32, 2*tt.n), make([]byte, tt.n)
				return func() error {
					return errors.Join(g.AllReduce(x), g.AllGather(all, x), g.Gather(all, x, 1), g.Broadcast(b, 0), g.Barrier())
				}
			}
			done := make(chan error)
			go func() {
				var err error
				other := round(gs[1])
				for range warm + runs + 1 {
					err = errors.Join(err, other())
				}
				done <- err
			}()
			own := round(gs[0])
			step := func() {
				if err := own(); err != nil {
					t.Error(err)
				}
			}
			for range warm {
				step()
			}
			per := testing.AllocsPerRun(runs, step)
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			t.Logf("%v allocations per round", per)
			if per > tt.limit {
				t.Errorf("%v allocations per round of operations of %d elements, want at most %v", per, tt.n, tt.limit)
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
	}{"3 ranks": {3, 0, true}, "rank 2 of 2": {2, 2, true}, "negative rank": {2, -1, true}, "no connection": {2, 0, false}} {
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
