package shm

import (
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/eagleray/eagleray/internal/sys/futex"
)

// bare is two words that two processes wake each other by, and nothing else.
type bare struct {
	mine, theirs *atomic.Uint32
	seen         uint32
	timeout      unix.Timespec
}

// newBare takes the words from the ring from a rank to itself, which nothing else uses.
func newBare(g *Group) *bare {
	lines := g.seg.lines(g.ranks-1, g.ranks-1)
	word := func(rank int) *atomic.Uint32 {
		return (*atomic.Uint32)(
			unsafe.Pointer(&lines[rank*page]))
	}
	return &bare{mine: word(g.rank), theirs: word(1 - g.rank)}
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

const (
	besideBytes = 16 << 10
	besideSlice = 200
)

// beside runs slices of all-reduces, of messages there and back, and of bare futex round trips in
// turn, as long as rank 0 says, and returns the microseconds of each turn.
func beside(g *Group, more func() bool) (times [3][]float64, err error) {
	b, x := newBare(g), make([]float32, besideBytes/4)
	word, message := []byte{0}, make([]byte, besideBytes)
	turns := [3]func() error{
		func() error { return g.AllReduce(x) },
		func() error {
			if g.rank == 0 {
				return errors.Join(g.Send(message, 1), g.Recv(message, 1))
			}
			return errors.Join(g.Recv(message, 0), g.Send(message, 0))
		},
		func() error { return b.trip(g.rank) },
	}
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
			for range besideSlice {
				if err := turn(); err != nil {
					return times, err
				}
			}
			times[i] = append(times[i], float64(time.Since(began).Nanoseconds())/1e3/besideSlice)
		}
	}
}

// BenchmarkBesideFutex reports what an all-reduce of 16 KB between two processes takes, and a
// message of 16 KB there and back, beside a bare futex round trip between the same two.
func BenchmarkBesideFutex(b *testing.B) {
	const ranks, maxBytes = 2, 1 << 20
	f, err := Create(ranks, maxBytes)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	other := start(b, f, "beside", 1, ranks, maxBytes)
	g, err := Options{Timeout: time.Minute}.Join(f, 0, ranks, maxBytes)
	if err != nil {
		b.Fatal(err)
	}
	defer g.Close()
	const warm = 3
	round := -warm
	times, err := beside(g, func() bool {
		round++
		return round <= 0 || b.Loop()
	})
	if err != nil {
		b.Fatal(err)
	}
	if err := other.Wait(); err != nil {
		b.Fatalf("%v: %s", err, other.stderr.String())
	}
	var ratios []float64 // of slices that follow each other, which a busy machine disturbs alike
	for i, t := range times[0] {
		ratios = append(ratios, t/times[2][i])
	}
	median := func(t []float64) float64 {
		t = slices.Sorted(slices.Values(t[warm:]))
		return t[len(t)/2]
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(median(times[0]), "all-reduce-µs")
	b.ReportMetric(median(times[1]), "message-trip-µs")
	b.ReportMetric(median(times[2]), "futex-trip-µs")
	b.ReportMetric(median(ratios), "x-futex")
}

// TestBesideFutex runs the benchmark's turns once, without a word on how long they take.
func TestBesideFutex(t *testing.T) {
	f, err := Create(2, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	other := start(t, f, "beside", 1, 2, 1<<20)
	g, err := Options{Timeout: time.Minute}.Join(f, 0, 2, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	rounds := 0
	times, err := beside(g, func() bool { rounds++; return rounds <= 2 })
	if err := errors.Join(err, other.Wait()); err != nil || len(times[2]) != 2 {
		t.Errorf("%v, %v: %s", times, err, other.stderr.String())
	}
}
