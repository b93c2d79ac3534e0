package pool

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/sys/spin"
)

type taskFunc func(chunk, thread int)

func (f taskFunc) Do(chunk, thread int) { f(chunk, thread) }

func newPool(t testing.TB, threads int) *Pool {
	t.Helper()
	previous := runtime.GOMAXPROCS(max(threads+2, runtime.NumCPU()))
	p := New(threads)
	t.Cleanup(func() {
		p.Close()
		runtime.GOMAXPROCS(previous)
	})
	return p
}

func TestEveryChunkOnce(t *testing.T) {
	for _, threads := range []int{0, 1, 2, 3, 8} {
		t.Run(fmt.Sprint(threads), func(t *testing.T) {
			p := newPool(t, threads)
			if want := max(threads, 1); p.Threads() != want {
				t.Fatalf("Threads() = %d, want %d", p.Threads(), want)
			}
			inUse := make([]atomic.Bool, p.Threads())
			for chunks := range 70 {
				// Plain counters: the race detector proves that Run orders them.
				counts := make([]int, chunks)
				p.Run(taskFunc(func(chunk, thread int) {
					if inUse[thread].Swap(true) {
						t.Errorf("thread %d runs two chunks at once", thread)
					}
					counts[chunk]++
					inUse[thread].Store(false)
				}), chunks)
				for i, n := range counts {
					if n != 1 {
						t.Fatalf("%d chunks: chunk %d ran %d times", chunks, i, n)
					}
				}
			}
		})
	}
}

func TestNilPoolRunsInline(t *testing.T) {
	var p *Pool
	n := 0
	p.Run(taskFunc(func(int, int) { n++ }), 5)
	p.Close()
	if n != 5 || p.Threads() != 1 {
		t.Errorf("ran %d chunks on %d threads, want 5 on 1", n, p.Threads())
	}
}

// A chunk that waits for all others to start ends only if helpers really run beside the caller, and
// are woken whenever they are parked.
func TestHelpersJoin(t *testing.T) {
	const threads = 4
	p := newPool(t, threads)
	for _, pause := range []time.Duration{0, 0, time.Millisecond, 20 * time.Millisecond, 0} {
		time.Sleep(pause)
		var here atomic.Int32
		all := make(chan struct{})
		p.Run(taskFunc(func(int, int) {
			if here.Add(1) == threads {
				close(all)
			}
			select {
			case <-all:
			case <-time.After(10 * time.Second):
				t.Error("helpers did not join within 10 s")
			}
		}), threads)
	}
}

// The caller takes over the chunks of a helper that does not get on, and waits only for the chunk
// the helper holds.
func TestStuckHelperHoldsOneChunk(t *testing.T) {
	p := newPool(t, 2)
	const chunks = 100
	var byCaller, byHelper int
	started := make(chan struct{})
	var rest atomic.Int32
	p.Run(taskFunc(func(_, thread int) {
		if thread == 0 {
			if byCaller == 0 {
				<-started
			}
			byCaller++
			rest.Add(1)
			return
		}
		byHelper++
		close(started)
		for rest.Load() < chunks-1 {
			time.Sleep(time.Millisecond)
		}
	}), chunks)
	if byHelper != 1 || byCaller != chunks-1 {
		t.Errorf("helper ran %d chunks and caller %d, want 1 and %d", byHelper, byCaller, chunks-1)
	}
}

// Random gaps make helpers spin, be about to park, park, and be woken in every order.
func TestRandomGaps(t *testing.T) {
	for _, threads := range []int{2, 3, 5} {
		p := newPool(t, threads)
		r := rand.New(rand.NewPCG(1, uint64(threads)))
		deadline := time.Now().Add(400 * time.Millisecond)
		for runs := 0; time.Now().Before(deadline); runs++ {
			chunks := 1 + r.IntN(3*threads)
			var sum atomic.Int64
			p.Run(taskFunc(func(chunk, _ int) {
				sum.Add(int64(chunk) + 1)
			}), chunks)
			if want := int64(chunks * (chunks + 1) / 2); sum.Load() != want {
				t.Fatalf("run %d: sum %d, want %d", runs, sum.Load(), want)
			}
			switch r.IntN(4) {
			case 0:
				spin.Pause(uint32(1 + r.IntN(3000)))
			case 1:
				time.Sleep(time.Duration(r.IntN(200)) * time.Microsecond)
			}
		}
		p.Close()
	}
}

func TestConcurrentRuns(t *testing.T) {
	p := newPool(t, 3)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 200 {
				var n atomic.Int32
				p.Run(taskFunc(func(int, int) { n.Add(1) }), 7)
				if n.Load() != 7 {
					t.Errorf("%d of 7 chunks ran", n.Load())
				}
			}
		})
	}
	wg.Wait()
}

var errTask = errors.New("task failed")

func TestPanicReachesCaller(t *testing.T) {
	for _, onHelper := range []bool{false, true} {
		p := newPool(t, 2)
		for round := range 3 {
			got := func() (v any) {
				defer func() { v = recover() }()
				var both sync.WaitGroup
				both.Add(2)
				p.Run(taskFunc(func(chunk, thread int) {
					if chunk < 2 { // one on each thread
						both.Done()
						both.Wait()
						if (thread != 0) == onHelper {
							panic(errTask)
						}
					}
				}), 2)
				return nil
			}()
			e, ok := got.(*Panic)
			if !ok {
				t.Fatalf("helper=%v round %d: Run panicked with %v, want *Panic", onHelper, round,
					got)
			}
			if !errors.Is(e, errTask) || !strings.Contains(e.Error(), "pool_test.go") {
				t.Errorf("panic does not carry value and stack: %v", e)
			}
		}
		n := atomic.Int32{}
		p.Run(taskFunc(func(int, int) { n.Add(1) }), 10)
		if n.Load() != 10 {
			t.Errorf("after a panic %d of 10 chunks ran", n.Load())
		}
	}
}

func TestClose(t *testing.T) {
	before := runtime.NumGoroutine()
	p := New(4)
	p.Run(taskFunc(func(int, int) {}), 16)
	p.Close()
	p.Close()
	// Close has waited for the helpers: they may still be on their last instructions.
	for until := time.Now().Add(time.Minute); runtime.NumGoroutine() > before; runtime.Gosched() {
		if time.Now().After(until) {
			t.Fatalf("%d goroutines after Close, %d before New", runtime.NumGoroutine(), before)
		}
	}
	n := 0
	p.Run(taskFunc(func(int, int) { n++ }), 16)
	if n != 16 {
		t.Errorf("after Close %d of 16 chunks ran", n)
	}
}

type nothing struct{ n atomic.Int64 }

func (t *nothing) Do(int, int) { t.n.Add(1) }

func TestNoAllocation(t *testing.T) {
	p := newPool(t, 3)
	task := &nothing{}
	if n := testing.AllocsPerRun(500, func() { p.Run(task, 9) }); n != 0 {
		t.Errorf("Run allocates %v times", n)
	}
}

func cpuTime(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Skipf("getrusage: %v", err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func TestIdleCostsNothing(t *testing.T) {
	p := newPool(t, 4)
	task := &nothing{}
	for range 1000 {
		p.Run(task, 8)
	}
	time.Sleep(5 * time.Millisecond)
	const span = 500 * time.Millisecond
	before := cpuTime(t)
	time.Sleep(span)
	// The Go runtime's own background work is in here too; a helper that spins would use 500 ms.
	if used := cpuTime(t) - before; used > span/5 {
		t.Errorf("an idle pool used %v of CPU in %v", used, span)
	}
}

func BenchmarkRun(b *testing.B) {
	for _, threads := range []int{1, 2} {
		b.Run(fmt.Sprintf("threads=%d", threads), func(b *testing.B) {
			p := newPool(b, threads)
			task := &nothing{}
			for b.Loop() {
				p.Run(task, 2)
			}
		})
	}
}

// BenchmarkHandOff is the time from Run to a helper's first instruction and back, helper spinning.
func BenchmarkHandOff(b *testing.B) {
	p := newPool(b, 2)
	task := &rendezvous{}
	for b.Loop() {
		task.here.Store(0)
		p.Run(task, 2)
	}
}

type rendezvous struct{ here atomic.Int32 }

func (t *rendezvous) Do(int, int) {
	t.here.Add(1)
	for t.here.Load() < 2 {
		spin.Pause(1)
	}
}

// BenchmarkWake is the same with a parked helper.
func BenchmarkWake(b *testing.B) {
	p := newPool(b, 2)
	runtime.LockOSThread() // or the sleeping caller may move to the helper's core
	defer runtime.UnlockOSThread()
	task := &rendezvous{}
	var spent time.Duration
	for range b.N {
		time.Sleep(300 * time.Microsecond)
		task.here.Store(0)
		start := time.Now()
		p.Run(task, 2)
		spent += time.Since(start)
	}
	b.ReportMetric(float64(spent.Nanoseconds())/float64(b.N), "ns/handoff")
}
