// Package collectivetest holds what the tests of every transport of collective operations share:
// operations that all ranks derive from a seed, and what must come of them.
package collectivetest

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/eagleray/eagleray/internal/link/collective"
)

// Group is a rank's membership in a group, whatever the transport.
type Group interface {
	Rank() int
	Ranks() int
	Barrier() error
	AllReduce(x []float32) error
	AllGather(dst, x []float32) error
	AllToAllV(dst, x []float32, counts, got []int, meanwhile func()) ([]float32, error)
	AllToAll(dst, x []float32, counts, lengths []int) error
	Gather(dst, x []float32, root int) error
	Broadcast(b []byte, root int) error
	Send(b []byte, to int) error
	Recv(b []byte, from int) error
	Guard(h uint64)
	Abort(cause error)
	Close() error
}

// Contribution is what a rank brings to an operation: every rank can compute that of every other.
// Magnitudes are far apart, so that another order of addition gives other bits.
func Contribution(rank, n int, seed uint64) []float32 {
	x := make([]float32, n)
	state := seed*0x9e3779b97f4a7c15 + uint64(rank) + 1
	for i := range x {
		state ^= state << 13
		state ^= state >> 7
		state ^= state << 17
		const exponents, lowest = 24, 115
		sign, exponent := uint32(state>>40)<<31, uint32(state>>32%exponents+lowest)<<23
		x[i] = math.Float32frombits(sign | exponent | uint32(state)>>9)
	}
	return x
}

// ExpectedSum is the sum of all contributions, in the order in which groups add.
func ExpectedSum(ranks, n int, seed uint64) []float32 {
	parts := make([][]float32, ranks)
	for p := range parts {
		parts[p] = Contribution(p, n, seed)
	}
	want := make([]float32, n)
	collective.SumTree(want, parts)
	return want
}

// SameBits returns where two results differ.
func SameBits(a, b []float32) error {
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

// Script runs a sequence of random operations that all ranks derive from the seed, checking each.
func Script(g Group, seed uint64, operations, maxElements int) error {
	r := rand.New(rand.NewPCG(seed, 99))
	for i := range operations {
		kind, root := r.IntN(9), r.IntN(g.Ranks())
		n := r.IntN(1 << r.IntN(1+len(fmt.Sprintf("%b", maxElements))))
		n = min(n, maxElements)
		opSeed := seed<<32 + uint64(i)
		g.Guard(opSeed)
		if err := ScriptStep(g, kind, root, n, opSeed); err != nil {
			return fmt.Errorf("operation %d (kind %d, root %d, %d elements): %w",
				i, kind, root, n, err)
		}
	}
	return nil
}

// ScriptStep runs one operation of a script: a kind below 4 is one of those without a sum, 6
// messages, 8 all-to-alls there and back, the rest all-reduces. Where the sum over the ranks is not
// defined, an all-gather takes its place.
func ScriptStep(g Group, kind, root, n int, seed uint64) error {
	x := Contribution(g.Rank(), n, seed)
	all := func() []float32 {
		var want []float32
		for p := range g.Ranks() {
			want = append(want, Contribution(p, n, seed)...)
		}
		return want
	}
	if kind != 6 && kind != 8 && kind >= 4 && !collective.ValidRanks(g.Ranks()) {
		kind = 1
	}
	switch kind {
	case 0:
		return g.Barrier()
	case 1:
		dst := make([]float32, n*g.Ranks())
		if err := g.AllGather(dst, x); err != nil {
			return err
		}
		return SameBits(dst, all())
	case 2:
		var dst []float32
		if g.Rank() == root {
			dst = make([]float32, n*g.Ranks())
		}
		if err := g.Gather(dst, x, root); err != nil || g.Rank() != root {
			return err
		}
		return SameBits(dst, all())
	case 3:
		b := collective.Bytes(x)[:max(0, 4*n-int(seed%4))] // any number of bytes
		if err := g.Broadcast(b, root); err != nil {
			return err
		}
		want := Contribution(root, n, seed)
		copy(collective.Bytes(want)[len(b):], collective.Bytes(x)[len(b):])
		return SameBits(x, want)
	case 6:
		return messages(g, root, n, seed)
	case 8:
		return ThereAndBack(g, RandomRuns(g.Ranks(), n, seed), seed)
	default:
		if err := g.AllReduce(x); err != nil {
			return err
		}
		return SameBits(x, ExpectedSum(g.Ranks(), n, seed))
	}
}

// messages has each rank send two messages to the same other place, both before it receives.
func messages(g Group, shift, n int, seed uint64) error {
	if g.Ranks() == 1 {
		return nil
	}
	shift = 1 + shift%(g.Ranks()-1)
	to, from := (g.Rank()+shift)%g.Ranks(), (g.Rank()-shift+g.Ranks())%g.Ranks()
	sizes := []int{max(0, 4*n-int(seed%4)), 3}
	sent := collective.Bytes(Contribution(g.Rank(), n+1, seed))
	for _, size := range sizes {
		if err := g.Send(sent[:size], to); err != nil {
			return err
		}
	}
	want := collective.Bytes(Contribution(from, n+1, seed))
	for _, size := range sizes {
		got := make([]byte, size)
		if err := g.Recv(got, from); err != nil {
			return err
		}
		if !bytes.Equal(got, want[:size]) {
			return fmt.Errorf("message of %d bytes from rank %d differs", size, from)
		}
	}
	return nil
}

// Each runs a rank per goroutine and returns their errors.
func Each[G Group](gs []G, f func(g G) error) []error {
	errs := make([]error, len(gs))
	var wg sync.WaitGroup
	for r, g := range gs {
		wg.Go(func() { errs[r] = f(g) })
	}
	wg.Wait()
	return errs
}

// Must ends the test when a rank has failed.
func Must(t testing.TB, errs []error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// Allocations does rounds of operations on all ranks, and returns how many allocations one takes,
// those of all ranks, after some that are not counted.
func Allocations[G Group](t *testing.T, gs []G, warm, rounds int,
	round func(G) func() error) float64 {
	t.Helper()
	return inRounds(t, gs, warm, rounds+1, round,
		func(once func()) float64 { return testing.AllocsPerRun(rounds, once) })
}

// inRounds has count do all but the first rounds.
func inRounds[G Group](t *testing.T, gs []G, warm, rounds int, round func(G) func() error,
	count func(once func()) float64) float64 {
	t.Helper()
	others := make(chan []error)
	go func() {
		others <- Each(gs[1:], func(g G) (err error) {
			once := round(g)
			for range warm + rounds {
				err = errors.Join(err, once())
			}
			return err
		})
	}()
	own := round(gs[0])
	once := func() {
		if err := own(); err != nil {
			t.Error(err)
		}
	}
	for range warm {
		once()
	}
	n := count(once)
	Must(t, <-others)
	return n
}

// ManySums does all-reduces of a few elements.
func ManySums(g Group, times int) error {
	x, ranks := make([]float32, 16), g.Ranks()
	for i := range times {
		for j := range x {
			x[j] = float32(g.Rank() + i%100)
		}
		if err := g.AllReduce(x); err != nil {
			return err
		}
		if want := float32(ranks*(i%100) + ranks*(ranks-1)/2); x[i%16] != want {
			return fmt.Errorf("operation %d: got %v, want %v", i, x[i%16], want)
		}
	}
	return nil
}

// SumUntil does all-reduces of n elements until one fails.
func SumUntil(g Group, n int) error {
	for x := make([]float32, n); ; {
		if err := g.AllReduce(x); err != nil {
			return err
		}
	}
}

// ExchangeUntil does all-to-alls of runs of n elements until one fails.
func ExchangeUntil(g Group, n int) (err error) {
	counts := slices.Repeat([]int{n}, g.Ranks())
	x, got := make([]float32, n*g.Ranks()), make([]int, g.Ranks())
	for dst := []float32(nil); err == nil; {
		dst, err = g.AllToAllV(dst, x, counts, got, nil)
	}
	return err
}

// ManyRuns has a group exchange runs of any lengths, of at most so many elements together.
func ManyRuns[G Group](t *testing.T, gs []G, rounds int, most func(*rand.Rand) int) {
	t.Helper()
	r := rand.New(rand.NewPCG(9, uint64(len(gs))))
	for range rounds {
		n, seed := r.IntN(most(r)), r.Uint64()
		lengths := RandomRuns(len(gs), n, seed)
		Must(t, Each(gs, func(g G) error { return ThereAndBack(g, lengths, seed) }))
	}
}
