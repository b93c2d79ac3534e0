package collectivetest

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/link/collective"
)

// Runs are the lengths of the runs of an all-to-all, by the rank that has them and the rank they
// are for.
type Runs [][]int

// RandomRuns are lengths of up to n elements that all ranks derive from the seed: even, uneven, to
// one rank or from one alone, without one rank, or none at all.
func RandomRuns(ranks, n int, seed uint64) Runs {
	r := rand.New(rand.NewPCG(seed, 55))
	kind, one, each := r.IntN(7), r.IntN(ranks), r.IntN(n/ranks+1)
	lengths := make(Runs, ranks)
	for from := range lengths {
		lengths[from] = make([]int, ranks)
		for to := range lengths[from] {
			length := r.IntN(r.IntN(n/ranks+1) + 1)
			switch {
			case kind == 0:
				length = each
			case kind == 1 && from != one, kind == 2 && to != one,
				kind == 3 && (from == one || to == one), kind == 4:
				length = 0
			case kind == 1 || kind == 2:
				length = r.IntN(n + 1)
			}
			lengths[from][to] = length
		}
	}
	return lengths
}

// to are the lengths of the runs for a rank.
func (r Runs) to(rank int) []int {
	var lengths []int
	for _, from := range r {
		lengths = append(lengths, from[rank])
	}
	return lengths
}

// run is what a rank has for another.
func run(from, to, n int, seed uint64) []float32 {
	return Contribution(1000*from+to, n, seed)
}

// ThereAndBack has every rank send runs to all, whose lengths these do not know, and send back what
// it got, whose lengths they do. Both must be what the ranks had.
func ThereAndBack(g Group, lengths Runs, seed uint64) error {
	var x, want []float32
	for to, n := range lengths[g.Rank()] {
		x = append(x, run(g.Rank(), to, n, seed)...)
	}
	for from, n := range lengths.to(g.Rank()) {
		want = append(want, run(from, g.Rank(), n, seed)...)
	}
	got := slices.Repeat([]int{-1}, g.Ranks())
	dst := make([]float32, 3, 3+len(want)*int(seed%3)/2) // too small, or larger than it need be
	dst, err := g.AllToAllV(dst, x, lengths[g.Rank()], got, nil)
	if err != nil {
		return err
	}
	if !slices.Equal(got, lengths.to(g.Rank())) {
		return fmt.Errorf("lengths %v, want %v", got, lengths.to(g.Rank()))
	}
	if err := SameBits(dst, want); err != nil {
		return fmt.Errorf("there: %w", err)
	}
	back := make([]float32, len(x))
	if err := g.AllToAll(back, dst, got, lengths[g.Rank()]); err != nil {
		return fmt.Errorf("back: %w", err)
	}
	if err := SameBits(back, x); err != nil {
		return fmt.Errorf("back: %w", err)
	}
	return nil
}

// runs holds all-to-alls to a reference in one process: groups of any size, lengths that a piece
// of memory or a frame ends within, and at, and beyond.
func runs[G Group](t *testing.T, group Make[G]) {
	for ranks := 1; ranks <= 4; ranks++ {
		gs := group(t, ranks, time.Minute)
		r := rand.New(rand.NewPCG(3, uint64(ranks)))
		for i := range 60 {
			seed, n := r.Uint64(), r.IntN(1<<r.IntN(15))
			if i%20 == 19 {
				n = 600_000 / ranks
			}
			Must(t, Each(gs, func(g G) error {
				return ThereAndBack(g, RandomRuns(ranks, n, seed), seed)
			}))
		}
		for _, n := range []int{0, 1, 1024, 16 << 10, 16<<10 + 1, 64 << 10, 64<<10 + 1, 128 << 10} {
			lengths := make(Runs, ranks)
			for from := range lengths {
				lengths[from] = slices.Repeat([]int{n}, ranks)
			}
			Must(t, Each(gs, func(g G) error { return ThereAndBack(g, lengths, uint64(n)) }))
		}
	}
}

// WhileUnderWay has a rank do something when its runs are on their way: the others have them before
// it has done it.
func WhileUnderWay[G Group](t *testing.T, group Make[G]) {
	gs := group(t, 3, time.Minute)
	for busy := range gs {
		var others sync.WaitGroup
		others.Add(len(gs) - 1)
		Must(t, Each(gs, func(g G) error {
			wait := others.Wait
			if g.Rank() != busy {
				defer others.Done()
				wait = nil
			}
			_, err := g.AllToAllV(nil, make([]float32, 6), []int{1, 2, 3}, make([]int, 3), wait)
			return err
		}))
	}
}

// alone is an all-to-all of one rank of two, with n elements for each.
func alone[G Group](g G, n int) error {
	counts := slices.Repeat([]int{n}, g.Ranks())
	_, err := g.AllToAllV(nil, make([]float32, n*g.Ranks()), counts, make([]int, g.Ranks()), nil)
	return err
}

// otherRuns has a rank that knows better how long the other's run is.
func otherRuns[G Group](t *testing.T, group Make[G]) {
	for _, n := range []int{0, 5, 100_000} {
		gs := group(t, 2, time.Minute)
		errs := Each(gs, func(g G) error {
			if g.Rank() == 0 {
				return g.AllToAll(make([]float32, n+4), make([]float32, 2*n), []int{n, n},
					[]int{n, 4})
			}
			return errors.Join(g.AllToAll(make([]float32, 2*n), make([]float32, 2*n),
				[]int{n, n}, []int{n, n}), g.Barrier())
		})
		want := fmt.Sprintf("run of 4 elements here, of %d on rank 1", n)
		if !errors.Is(errs[0], collective.ErrMismatch) || errs[1] == nil ||
			!strings.Contains(errs[0].Error(), want) {
			t.Errorf("%d elements: %v", n, errs)
		}
	}
}

// badLengths checks that lengths that cannot be are refused by their number.
func badLengths[G Group](t *testing.T, group Make[G]) {
	x := make([]float32, 3)
	for want, op := range map[string]func(g G) error{
		"runs of 2 elements together in 3": func(g G) error {
			_, err := g.AllToAllV(nil, x, []int{1, 1}, make([]int, 2), nil)
			return err
		},
		"run of -1 elements for rank 1": func(g G) error {
			_, err := g.AllToAllV(nil, x, []int{4, -1}, make([]int, 2), nil)
			return err
		},
		"lengths of 3 runs for 2 ranks": func(g G) error {
			_, err := g.AllToAllV(nil, x, []int{1, 1, 1}, make([]int, 2), nil)
			return err
		},
		"lengths of 1 runs for 2 ranks": func(g G) error {
			_, err := g.AllToAllV(nil, x, []int{1, 2}, make([]int, 1), nil)
			return err
		},
		"run of 1073741824 elements for rank 1, after 1: at most 1073741824 together": func(
			g G) error {
			_, err := g.AllToAllV(nil, x, []int{1, collective.MaxExchange}, make([]int, 2), nil)
			return err
		},
		"runs of 4 elements together in 2": func(g G) error {
			return g.AllToAll(x[:2], x, []int{1, 2}, []int{2, 2})
		},
	} {
		err := op(group(t, 2, time.Minute)[0])
		if err == nil || !strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), "on rank 0: "+want) {
			t.Errorf("%v, not %q", err, want)
		}
	}
}

// otherOperation has one of two ranks in an all-to-all.
func otherOperation[G Group](t *testing.T, group Make[G]) {
	for name, op := range map[string]func(g G, n int) error{
		"all-reduce": func(g G, n int) error { return g.AllReduce(make([]float32, n)) },
		"barrier":    func(g G, _ int) error { return g.Barrier() },
		"all-to-all": func(g G, n int) error {
			return g.AllToAll(make([]float32, 2*n), make([]float32, 2*n), []int{n, n}, []int{n, n})
		},
	} {
		for _, n := range []int{0, 10, 100_000} {
			mismatch := false
			for rank, err := range Each(group(t, 2, time.Minute), func(g G) error {
				if g.Rank() == 0 {
					return alone(g, n)
				}
				return op(g, n)
			}) {
				if err == nil {
					t.Errorf("%s, %d elements: rank %d did not notice", name, n, rank)
					continue
				}
				mismatch = mismatch || errors.Is(err, collective.ErrMismatch) &&
					strings.Contains(err.Error(), "all-to-all-v ")
			}
			if !mismatch {
				t.Errorf("%s, %d elements: no word of two operations", name, n)
			}
		}
	}
}

// abortsOfRuns ends waits for a rank that does not come: by a rank that has not come either, and by
// one that has sent its runs.
func abortsOfRuns[G Group](t *testing.T, group Make[G]) {
	for _, n := range []int{1, 100_000} {
		for _, sent := range []bool{false, true} {
			gs := group(t, 4, time.Minute)
			late := make(chan error)
			if sent {
				go func() { late <- alone(gs[2], n) }()
			}
			time.AfterFunc(30*time.Millisecond, func() { gs[2].Abort(errors.New("out of cheese")) })
			began := time.Now()
			errs := Each(gs[:2], func(g G) error { return alone(g, n) })
			if sent {
				errs = append(errs, <-late)
			}
			for rank, err := range errs {
				if !errors.Is(err, collective.ErrAborted) ||
					!strings.Contains(err.Error(), "out of cheese") {
					t.Errorf("runs of %d elements, rank %d: %v", n, rank, err)
				}
			}
			if took := time.Since(began); took > 20*time.Second {
				t.Errorf("runs of %d elements: took %v", n, took)
			}
		}
	}
}

// lateRuns wants those that say that a rank is late to say which.
func lateRuns[G Group](t *testing.T, group Make[G]) {
	for _, n := range []int{1, 100_000} {
		gs := group(t, 4, time.Second)
		late := 0
		for _, err := range Each(append(gs[:1:1], gs[2:]...),
			func(g G) error { return alone(g, n) }) {
			var e *collective.Error
			timeout := errors.Is(err, collective.ErrTimeout)
			if timeout {
				late++
			}
			if !errors.As(err, &e) || e.Op != "all-to-all-v" ||
				timeout && !slices.Equal(e.Missing, []int{1}) ||
				!timeout && !errors.Is(err, collective.ErrAborted) {
				t.Errorf("runs of %d elements: %v", n, err)
			}
		}
		if late == 0 {
			t.Errorf("runs of %d elements: nobody says who is late", n)
		}
	}
}

// leftRuns checks that the runs of a rank that has left since arrive, and that the next all-to-all
// names it.
func leftRuns[G Group](t *testing.T, group Make[G]) {
	for _, n := range []int{1, 1000, 100_000} {
		gs := group(t, 3, time.Minute)
		Must(t, Each(gs, func(g G) error {
			lengths := Runs{{n, n, n}, {n, n, n}, {n, n, n}}
			err := ThereAndBack(g, lengths, uint64(n))
			if g.Rank() == 1 {
				err = errors.Join(err, g.Close())
			}
			return err
		}))
		for rank, err := range Each([]G{gs[0], gs[2]}, func(g G) error { return alone(g, n) }) {
			if err == nil || !strings.Contains(err.Error(),
				"waiting for rank 1: rank has left the group") {
				t.Errorf("runs of %d elements, rank %d: %v", n, 2*rank, err)
			}
		}
	}
}

// countRuns counts the allocations of all-to-alls whose results have room: half as many for each
// message, and as many for each TLS record, of at most 16 KiB, may be. A busy machine makes ranks
// wait long, which may allocate: the best of several counts is taken, and none where all are slow.
func countRuns[G Group](t *testing.T, group Make[G], limit float64) {
	for _, n := range []int{0, 1000, 40_000} {
		const ranks, counts, times, warm = 3, 4, 10, 5
		gs := group(t, ranks, time.Minute)
		round := func(g G) func() error {
			x, got := make([]float32, ranks*n), make([]int, ranks)
			lengths, back := []int{n - n/2, n, n + n/2}, make([]float32, ranks*n)
			var dst []float32
			return func() (err error) {
				if dst, err = g.AllToAllV(dst, x, lengths, got, nil); err != nil {
					return err
				}
				return g.AllToAll(back, dst, got, lengths)
			}
		}
		per := inRounds(t, gs, warm, counts*(times+1), round, func(once func()) float64 {
			const long = 5 * time.Millisecond
			per := math.Inf(1)
			for range counts {
				began := time.Now()
				n := testing.AllocsPerRun(times, once)
				if time.Since(began) < times*long {
					per = min(per, n)
				}
			}
			return per
		})
		switch allowed := limit * float64(ranks*(ranks-1)+4*ranks*ranks*n/(16<<10)); {
		case math.IsInf(per, 1):
			t.Logf("runs of %d elements take too long to count allocations", n)
		case per > allowed:
			t.Errorf("%v allocations for runs of %d elements there and back", per, n)
		}
	}
}
