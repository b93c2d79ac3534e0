package queuebench

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/eagleray/eagleray/internal/sys/futex"
	"github.com/eagleray/eagleray/internal/sys/memfile"
)

// floor is the least that a round trip of the same shape can cost: to all readers, and from the
// first one back.
type floor interface {
	// given is passed to every reader, which opens its side with it.
	given() *os.File
	// made is how many round trips there have been.
	made() uint64
	// trip is the driver's side of one.
	trip() (time.Duration, error)
	// answer is a reader's side of those up to the end-th since the beginning; only the first
	// reader replies.
	answer(end uint64, reply bool) error
	// fail ends waits in this process.
	fail()
	close() error
}

// stream is a floor that also has one for large payloads.
type stream interface {
	// push sends n payloads to all readers at the same time, and returns when all have them.
	push(payload []byte, n int) (time.Duration, error)
	// absorb is a reader's side of it.
	absorb(n uint64, reply bool) error
}

// futexFloor is a round trip with nothing but futexes, in memory of the same kind as the ring's:
// the driver advances one word and wakes all readers; the first reader advances another and wakes
// the driver. There is no spinning and no copy. It is the least that a queue of processes that
// sleep can cost.
type futexFloor struct {
	file   *os.File
	memory []byte
	// request and reply are words in the memory.
	request, reply *atomic.Uint32
	seen           uint32
	scratch        unix.Timespec
	failed         atomic.Bool
}

const (
	floorBytes = 256
	replyAt    = 128
)

var errFloor = errors.New("the other side of the floor measurement is gone")

func newFutexFloor() (*futexFloor, error) {
	file, err := memfile.Create("eagleray-floor", floorBytes)
	if err != nil {
		return nil, err
	}
	return openFutexFloor(file)
}

func openFutexFloor(file *os.File) (*futexFloor, error) {
	m, err := unix.Mmap(int(file.Fd()), 0, floorBytes, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_SHARED)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("map memory file: %w", err), file.Close())
	}
	word := func(at int) *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(&m[at])) }
	return &futexFloor{file: file, memory: m, request: word(0), reply: word(replyAt)}, nil
}

// fail ends waits in this process.
func (f *futexFloor) fail() {
	f.failed.Store(true)
	for _, w := range []*atomic.Uint32{f.request, f.reply} {
		w.Add(1 << 31)
		futex.Wake(w)
	}
}

func (f *futexFloor) made() uint64 { return uint64(f.seen) }

func (f *futexFloor) given() *os.File { return f.file }

// close unmaps nothing while fail might still be called: the memory is a page and goes with the
// process.
func (f *futexFloor) close() error { return f.file.Close() }

// trip is the driver's side of a round trip.
func (f *futexFloor) trip() (time.Duration, error) {
	began := time.Now()
	f.seen++
	f.request.Store(f.seen)
	futex.Wake(f.request)
	for {
		v := f.reply.Load()
		if v == f.seen {
			return time.Since(began), nil
		}
		if f.failed.Load() {
			return 0, errFloor
		}
		if err := futex.Wait(f.reply, v, 0, &f.scratch); err != nil {
			return 0, fmt.Errorf("futex wait: %w", err)
		}
	}
}

// answer is the readers' side of the round trips up to the end-th since the beginning; only the
// first reader replies, and the others may miss some.
func (f *futexFloor) answer(end uint64, reply bool) error {
	for int32(f.seen-uint32(end)) < 0 {
		v := f.request.Load()
		if f.failed.Load() {
			return errFloor
		}
		if v == f.seen {
			if err := futex.Wait(f.request, v, 0, &f.scratch); err != nil {
				return fmt.Errorf("futex wait: %w", err)
			}
			continue
		}
		f.seen = v
		if reply {
			f.reply.Store(v)
			futex.Wake(f.reply)
		}
	}
	return nil
}

var _ floor = (*futexFloor)(nil)
