package shm

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/eagleray/eagleray/internal/link/collective"
	"github.com/eagleray/eagleray/internal/sys/futex"
	"github.com/eagleray/eagleray/internal/sys/spin"
)

// bare is two words that two processes wake each other by, and nothing else.
type bare struct {
	mine, theirs        *atomic.Uint32
	mySleep, theirSleep *atomic.Uint32
	seen                uint32
	timeout             unix.Timespec
	policy              spin.Policy
}

// newBare takes the words from the ring from a rank to itself, which nothing else uses.
func newBare(g *Group) *bare {
	lines := g.seg.lines(g.ranks-1, g.ranks-1)
	word := func(rank, at int) *atomic.Uint32 {
		return (*atomic.Uint32)(unsafe.Pointer(&lines[rank*page+at]))
	}
	return &bare{mine: word(g.rank, 0), theirs: word(1-g.rank, 0), mySleep: word(g.rank, 128),
		theirSleep: word(1-g.rank, 128), policy: spin.NewPolicy(2, spin.Shared)}
}

func (b *bare) wake() {
	b.theirs.Add(1)
	futex.Wake(b.theirs)
}

func (b *bare) wait() error {
	for b.mine.Load() == b.seen {
		if err := futex.Wait(b.mine, b.seen, time.Minute, &b.timeout); err != nil {
			return err
		}
	}
	b.seen++
	return nil
}

// signal is wake without a system call where the other does not sleep, as await knows it.
func (b *bare) signal() {
	b.theirs.Add(1)
	if b.theirSleep.Load() != 0 {
		futex.Wake(b.theirs)
	}
}

// await is wait, but looks before it sleeps for as long as a group would.
func (b *bare) await() error {
	budget := b.policy.Budget()
	for began := time.Now(); b.mine.Load() == b.seen; spin.Pause(pauses) {
		if waited := time.Since(began); waited >= budget {
			b.policy.Failed()
			b.mySleep.Store(1)
			defer b.mySleep.Store(0)
			return b.wait()
		}
	}
	b.seen++
	return nil
}

// trip is a round trip, which rank 0 begins.
func (b *bare) trip(rank int) error {
	if rank == 0 {
		b.wake()
		return b.wait()
	}
	if err := b.wait(); err != nil {
		return err
	}
	b.wake()
	return nil
}

const besideBytes = 16 << 10

// besideFutex is an all-reduce, a message there and back, and a bare futex round trip.
func besideFutex(g *Group) []func() error {
	b, x := newBare(g), make([]float32, besideBytes/4)
	message := make([]byte, besideBytes)
	return []func() error{
		func() error { return g.AllReduce(x) },
		func() error {
			if g.rank == 0 {
				return errors.Join(g.Send(message, 1), g.Recv(message, 1))
			}
			return errors.Join(g.Recv(message, 0), g.Send(message, 0))
		},
		func() error { return b.trip(g.rank) },
	}
}

// besideExchange is an all-to-all in which each of two ranks has n elements for the other, there
// and back, and twice the least that it takes: both write as many bytes to memory that they share,
// say so, and read the other's.
func besideExchange(n int) func(g *Group) []func() error {
	return func(g *Group) []func() error {
		x, dst, got, back := make([]float32, n), make([]float32, n), make([]int, 2),
			make([]float32, n)
		counts := []int{n, n}
		counts[g.rank] = 0
		b := newBare(g)
		area := func(rank, parity int) []float32 {
			lines := g.seg.lines(rank, rank)
			return collective.Floats(lines[(1+parity)*len(lines)/4:])[:n]
		}
		return []func() error{
			func() (err error) {
				if dst, err = g.AllToAllV(dst, x, counts, got, nil); err != nil {
					return err
				}
				return g.AllToAll(back, dst, got, counts)
			},
			func() error {
				for parity := range 2 {
					copy(area(g.rank, parity), x)
					b.signal()
					if err := b.await(); err != nil {
						return err
					}
					copy(dst[:n], area(1-g.rank, parity))
				}
				return nil
			},
		}
	}
}

// beside runs slices of operations in turn, as long as rank 0 says, and returns the microseconds of
// one operation in each slice.
func beside(g *Group, slice int, turns []func() error,
	more func() bool) (times [][]float64, err error) {
	word := []byte{0}
	times = make([][]float64, len(turns))
	for {
		if g.rank == 0 {
			word[0] = 0
			if more() {
				word[0] = 1
			}
		}
		if err := g.Broadcast(word, 0); err != nil || word[0] == 0 {
			return times, err
		}
		for i, turn := range turns {
			if err := g.Barrier(); err != nil {
				return times, err
			}
			began := time.Now()
			for range slice {
				if err := turn(); err != nil {
					return times, err
				}
			}
			times[i] = append(times[i],
				float64(time.Since(began).Nanoseconds())/1e3/float64(slice))
		}
	}
}

// contests are what a process of a role takes part in: turns, and how many are a slice.
var contests = map[string]struct {
	turns func(g *Group) []func() error
	slice int
}{
	"futex":      {besideFutex, 200},
	"exchange1":  {besideExchange(rowElements), 200},
	"exchange64": {besideExchange(64 * rowElements), 20},
}

// rowElements are those of a row that is sent to its experts.
const rowElements = 2048

// warm is how many slices do not count.
const warm = 3

// contest runs a contest between this process and another.
func contest(t testing.TB, role string, more func() bool) [][]float64 {
	const ranks, maxBytes = 2, 1 << 20
	f, err := Create(ranks, maxBytes)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	other := start(t, f, role, 1, ranks, maxBytes)
	g, err := Options{Timeout: time.Minute}.Join(f, 0, ranks, maxBytes)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	c := contests[role]
	times, err := beside(g, c.slice, c.turns(g), more)
	if err := errors.Join(err, other.Wait()); err != nil {
		t.Fatalf("%v: %s", err, other.Stderr.String())
	}
	return times
}

// rounds is the more of a benchmark.
func rounds(b *testing.B) func() bool {
	round := -warm
	return func() bool {
		round++
		return round <= 0 || b.Loop()
	}
}

func median(t []float64) float64 {
	t = slices.Sorted(slices.Values(t[warm:]))
	return t[len(t)/2]
}

// ratios are those of slices that follow each other, which a busy machine disturbs alike.
func ratios(a, b []float64) []float64 {
	r := make([]float64, len(a))
	for i := range a {
		r[i] = a[i] / b[i]
	}
	return r
}

// BenchmarkBesideFutex reports what an all-reduce of 16 KB between two processes takes, and a
// message of 16 KB there and back, beside a bare futex round trip between the same two.
func BenchmarkBesideFutex(b *testing.B) {
	times := contest(b, "futex", rounds(b))
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(median(times[0]), "all-reduce-µs")
	b.ReportMetric(median(times[1]), "message-trip-µs")
	b.ReportMetric(median(times[2]), "futex-trip-µs")
	b.ReportMetric(median(ratios(times[0], times[2])), "x-futex")
}

// BenchmarkAllToAll reports what an all-to-all of 64 rows of 2,048 elements between two processes
// takes, and of one row, there and back, beside a bare exchange of the same bytes.
func BenchmarkAllToAll(b *testing.B) {
	for _, rows := range []int{1, 64} {
		b.Run(fmt.Sprintf("rows=%d", rows), func(b *testing.B) {
			times := contest(b, fmt.Sprint("exchange", rows), rounds(b))
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(median(times[0]), "µs")
			b.ReportMetric(median(times[1]), "bare-µs")
			b.ReportMetric(median(ratios(times[0], times[1])), "x-bare")
		})
	}
}

// TestContests runs the benchmarks' turns, without a word on how long they take.
func TestContests(t *testing.T) {
	for role := range contests {
		left := 2
		if times := contest(t, role, func() bool { left--; return left >= 0 }); len(times[1]) != 2 {
			t.Errorf("%s: %v", role, times)
		}
	}
}
