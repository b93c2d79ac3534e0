// Package pool runs the chunks of a data-parallel task on a fixed set of threads. It is made for
// steps of a few microseconds that follow each other closely, as the matrix products of one
// decoding step do: the hand-off to a helper that still spins costs a cache-line transfer, a helper
// without work soon parks in the kernel, and nothing is allocated.
//
// Chunks are claimed one by one from a shared counter, so a helper the operating system has
// descheduled never holds up the caller: the caller takes the remaining chunks itself and waits
// only for chunks that were already claimed.
//
// A spinning helper occupies one of the Go scheduler's processors. A program must therefore set
// GOMAXPROCS to the number of threads of its pools plus a few for everything else; with less, the
// result is still right but goroutines wait for each other.
package pool

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/eagleray/eagleray/internal/sys/machine"
	"github.com/eagleray/eagleray/internal/sys/spin"
)

// Task is work that is cut into independent chunks.
type Task interface {
	// Do computes one chunk. thread (0 … Threads-1) names scratch space no other running call uses;
	// which thread gets which chunk is arbitrary, so a result must depend on the chunk alone.
	// Do must not call Run of the same pool.
	Do(chunk, thread int)
}

// Panic is what Run panics with when a chunk panicked on any thread: the first panic's value with
// the stack it happened on. Chunks not yet started at that moment are skipped.
type Panic struct {
	Value any
	Chunk int
	Stack []byte
}

// Error describes the panic and includes its stack.
func (e *Panic) Error() string {
	return fmt.Sprintf("panic in chunk %d of a parallel task: %v\n%s", e.Chunk, e.Value, e.Stack)
}

// Unwrap returns the panic's value if it is an error.
func (e *Panic) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// MostWork is how many multiply-adds a chunk should have at most, also on one thread: about a
// millisecond of a core's vector units, some ten of portable code. Chunks are what shows that a
// task moves (Count); a kernel whose smallest piece has more work makes that a chunk.
const MostWork = 1 << 24

const (
	cacheLine = 128     // two lines: the hardware fetches neighbours in pairs
	maxChunks = 1 << 30 // leaves the claim counter room for failed claims
)

// Pool is a fixed set of threads. Its methods may be called from any goroutine; calls of Run are
// served one after the other.
//
// Memory order. Go's atomics are sequentially consistent: all of them fall into one total order.
//
//   - claim holds the number of chunks (high half) and the next chunk (low half) in one word. A
//     thread claims with a fetch-and-add, so the number it gets and the limit it compares it with
//     belong to the same Run, however late the thread is. Run returns only after every claimed
//     chunk is counted off in remaining, hence task and failure, plain fields, are stable for
//     the holder of a claim: they were written before the store to claim that the fetch-and-add
//     saw, and are written again only after remaining reached zero. A late thread that finds
//     next >= limit touches nothing.
//   - remaining is stored before claim is published and decremented only under a claim, so the
//     decrement to zero is the last access of a Run by any helper, and the caller's load of zero
//     makes the helpers' results visible to it.
//   - Helpers park with an event count (see park). No result depends on a helper waking: the caller
//     itself takes every chunk that is not claimed.
type Pool struct {
	mu      sync.Mutex
	threads int
	// processors are what helpers are bound to; nil for none.
	processors []int
	task       Task
	moved      *atomic.Uint64 // guarded by mu; nil counts nothing
	failure    atomic.Pointer[Panic]
	closing    atomic.Bool
	closed     sync.WaitGroup

	_         [cacheLine]byte
	claim     atomic.Uint64
	_         [cacheLine - 8]byte
	remaining atomic.Int64
	_         [cacheLine - 8]byte
	sleepers  atomic.Int32 // helpers that are parked or about to park
	wakeups   event
	_         [cacheLine]byte
	waiting   atomic.Bool // the caller is parked or about to park
	finished  event
	_         [cacheLine]byte
}

// New starts a pool of the given number of threads, at least 1. The caller of Run counts as
// thread 0, so threads-1 helpers are started; each is a goroutine locked to its own OS thread.
// Close stops them.
func New(threads int) *Pool { return NewBound(threads, nil) }

// NewBound starts a pool whose helpers run on the given processors only, any of them each; nil
// leaves that to the system, as does a system that refuses. The caller of Run binds itself.
func NewBound(threads int, processors []int) *Pool {
	threads = max(threads, 1)
	p := &Pool{threads: threads, processors: processors}
	p.closed.Add(threads - 1)
	for i := 1; i < threads; i++ {
		go p.help(i)
	}
	return p
}

// Threads returns the number of threads, the caller of Run included. A nil pool has one.
func (p *Pool) Threads() int {
	if p == nil {
		return 1
	}
	return p.threads
}

// Count has every chunk that a caller of Run computes itself counted, unless it is a task's only
// one, so that others see that a long task moves; nil counts nothing, and when Count returns,
// nothing is counted there any more.
func (p *Pool) Count(moved *atomic.Uint64) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.moved = moved
}

// Run calls t.Do once for each chunk 0 … chunks-1 and returns when all calls have returned. What
// the chunks wrote is then visible to the caller. On a nil pool, on a pool of one thread, and for a
// single chunk, everything runs on the calling goroutine. If a chunk panics on any thread, Run
// panics with a *Panic after the chunks already started have ended; the pool stays usable.
func (p *Pool) Run(t Task, chunks int) {
	if p == nil || chunks <= 1 {
		for i := range chunks {
			t.Do(i, 0)
		}
		return
	}
	p.mu.Lock()
	if p.threads == 1 || chunks > maxChunks {
		defer p.mu.Unlock()
		for i := range chunks {
			t.Do(i, 0)
			p.count()
		}
		return
	}
	p.task = t
	p.remaining.Store(int64(chunks))
	p.claim.Store(uint64(chunks) << 32)
	p.wake(chunks - 1)
	p.drain(0)
	p.await()
	p.task = nil
	failure := p.failure.Swap(nil)
	p.mu.Unlock()
	if failure != nil {
		panic(failure)
	}
}

// Close stops the helpers and waits until they have ended. A Run after Close still works, on the
// calling goroutine alone. Close may be called more than once.
func (p *Pool) Close() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closing.Store(true)
	p.wakeups.signal(p.threads)
	p.closed.Wait()
}

// pending reports whether a chunk waits to be claimed.
func (p *Pool) pending() bool {
	v := p.claim.Load()
	return uint32(v) < uint32(v>>32)
}

// drain claims and computes chunks until none is left, then counts them off.
func (p *Pool) drain(thread int) {
	n := int64(0)
	for p.pending() {
		v := p.claim.Add(1)
		chunk := uint32(v) - 1
		if chunk >= uint32(v>>32) {
			break
		}
		p.do(int(chunk), thread)
		if thread == 0 {
			p.count()
		}
		n++
	}
	// The caller may be gone as soon as the count reaches zero; then waiting is false or belongs to
	// a later Run, whose caller checks its own count again after a stray signal.
	if n > 0 && p.remaining.Add(-n) == 0 && p.waiting.Load() {
		p.finished.signal(1)
	}
}

// count counts a chunk of thread 0, whose Run holds mu. Others count nothing: the counter's cache
// line would go from one to the next with every chunk.
func (p *Pool) count() {
	if p.moved != nil {
		p.moved.Add(1)
	}
}

// do computes one claimed chunk and keeps the first panic for the caller.
func (p *Pool) do(chunk, thread int) {
	if p.failure.Load() != nil {
		return
	}
	defer func() {
		if v := recover(); v != nil {
			p.failure.CompareAndSwap(nil, &Panic{Value: v, Chunk: chunk, Stack: debug.Stack()})
		}
	}()
	p.task.Do(chunk, thread)
}

// await returns when every claimed chunk is done: it spins for as long as a chunk usually takes,
// then parks, for a helper that has been descheduled may need this very core.
func (p *Pool) await() {
	var start time.Time
	for looks := 1; p.remaining.Load() != 0; looks++ {
		spin.Pause(pauses)
		if looks%clockBatch != 0 {
			continue
		}
		if looks == clockBatch {
			start = time.Now()
		} else if time.Since(start) > awaitSpin {
			break
		}
	}
	if p.remaining.Load() == 0 {
		return
	}
	p.waiting.Store(true)
	for {
		seen := p.finished.observe()
		// Either this load sees zero, or the last helper's decrement comes after it in the total
		// order and that helper's load of waiting sees true and signals after seen was observed.
		if p.remaining.Load() == 0 {
			break
		}
		p.finished.wait(seen)
	}
	p.waiting.Store(false)
}

// wake wakes helpers if fewer than want are awake. It wakes two at most: each woken helper wakes
// further ones while chunks are left, so the cost for the caller does not grow with their number.
func (p *Pool) wake(want int) {
	helpers := p.threads - 1
	asleep := int(p.sleepers.Load())
	if need := min(want, helpers) - (helpers - asleep); need > 0 {
		p.wakeups.signal(min(need, 2))
	}
}

// help is the life of a helper thread.
func (p *Pool) help(thread int) {
	runtime.LockOSThread()
	if p.processors == nil {
		defer runtime.UnlockOSThread()
	} else {
		// The thread ends with its goroutine: its mask is no other one's.
		_ = machine.BindThread(p.processors)
	}
	defer p.closed.Done()
	wait := newIdle(p.threads)
	for {
		parked := false
		for !p.pending() {
			if p.closing.Load() {
				return
			}
			if wait.spin() {
				continue
			}
			p.park()
			parked = true
			break
		}
		if !p.pending() { // woken for a chunk that others have taken meanwhile, or to close
			continue
		}
		wait.end()
		if parked {
			p.wake(p.threads - 1)
		}
		p.drain(thread)
	}
}

// park blocks until the next wake-up. No wake-up is lost: a helper first announces itself in
// sleepers and only then looks for work again. If the look comes after the publication of a Run in
// the total order it sees the work (or that others took it all); if it comes before, the
// announcement does too, so the publisher's load of sleepers counts this helper as asleep. A
// publisher that then signals advances the event count after seen was observed, so wait returns at
// once.
func (p *Pool) park() {
	p.sleepers.Add(1)
	seen := p.wakeups.observe()
	if !p.pending() && !p.closing.Load() {
		p.wakeups.wait(seen)
	}
	p.sleepers.Add(-1)
}
