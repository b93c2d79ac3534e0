package ring

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/eagleray/eagleray/internal/link/queue"
	"github.com/eagleray/eagleray/internal/link/status"
	"github.com/eagleray/eagleray/internal/sys/spin"
)

// Rank is a rank's end. Recv and Release are for one goroutine and Send for one, which may be the
// same; Status and Close may be called at any time from any.
type Rank struct {
	m      *mapping
	shared *broadcastControl
	own    *rankControl
	closed atomic.Bool

	in      reader
	bad     error // why the broadcast can be read no more
	held    bool
	waiting waiter

	out writer
	// driver stands for the state of the reader of the replies, which never leaves without closing.
	driver atomic.Uint32
}

// Map joins the segment as one of its ranks. Nothing in the file is trusted: it must be a memory
// file that is sealed against resizing, with a header of this version and of its size. It keeps
// nothing of the file, which the caller may close. A rank can be mapped only once in the life of a
// segment.
func Map(f *os.File, rank int) (*Rank, error) {
	l, err := readLayout(f)
	if err != nil {
		return nil, err
	}
	if rank < 0 || rank >= l.ranks {
		return nil, fmt.Errorf("ring: rank %d of a segment for %d", rank, l.ranks)
	}
	m, err := mapFile(f, l)
	if err != nil {
		return nil, err
	}
	own := m.rankControl(rank)
	if !own.state.CompareAndSwap(stateAbsent, stateJoined) {
		m.unmap()
		return nil, fmt.Errorf("ring: rank %d was mapped before", rank)
	}
	m.exposedAt = m.rankPage(rank)
	r := &Rank{m: m, shared: m.broadcastControl(), own: own}
	r.waiting.policy = spin.NewPolicy(l.ranks+1, spin.Shared)
	r.in = reader{ring: m.broadcastRing(), writer: -1, sent: &r.shared.sent,
		taken: &own.read, space: &r.shared.space,
		records: &own.records, bytes: &own.bytes}
	r.out = writer{ring: m.replyRing(rank), sent: &own.sent,
		data: &r.shared.replies, space: &own.space, closedErr: r.sendErr,
		peers: []*peer{{rank: -1, head: &own.taken, state: &r.driver}}}
	r.out.wait.policy = r.waiting.policy
	r.out.init()
	return r, nil
}

// closedErr returns why no call may go on: the rank is closed or dropped; nil while neither.
func (r *Rank) closedErr() error {
	if r.closed.Load() {
		return queue.ErrClosed
	}
	if r.own.dropped.Load() != 0 {
		return errDropped
	}
	return nil
}

// sendErr returns why Send must fail: closedErr, or that the driver has closed.
func (r *Rank) sendErr() error {
	if err := r.closedErr(); err != nil {
		return err
	}
	if r.shared.closed.Load() != 0 {
		return queue.ErrClosed
	}
	return nil
}

// Recv returns the next record of the driver, valid until the next Recv or Release. It waits as
// long as until, or without a limit if it is zero. The error is queue.ErrTimeout; or wraps
// queue.ErrClosed, after Close, after Drop, or when the driver has closed and all it sent was
// received; or wraps ErrCorrupt, and so does every later one.
func (r *Rank) Recv(until time.Time) ([]byte, error) {
	r.Release()
	if !r.m.acquire() {
		return nil, queue.ErrClosed
	}
	record, err := r.recv(until)
	r.waiting.done(&r.shared.data)
	if err != nil {
		r.m.release()
		return nil, err
	}
	r.held = true
	return record, nil
}

func (r *Rank) recv(until time.Time) ([]byte, error) {
	if r.bad != nil {
		return nil, r.bad
	}
	for {
		closed := r.shared.closed.Load() != 0 // before looking for what was sent last
		record, what, err := r.in.next()
		// The driver does not wait for a dropped rank, so what that read may not be what was sent.
		if gone := r.closedErr(); gone != nil {
			return nil, gone
		}
		switch {
		case err != nil:
			r.bad = err
			return nil, err
		case what == complete:
			return record, nil
		case what == piece:
			continue
		case closed:
			return nil, queue.ErrClosed
		}
		if err := r.waiting.pause(&r.shared.data, until); err != nil {
			if err == queue.ErrTimeout {
				return nil, err
			}
			return nil, fmt.Errorf("ring: wait for the driver: %w", err)
		}
	}
}

// Release gives the record of the last Recv back, so that the driver can use its space.
func (r *Rank) Release() {
	if !r.held {
		return
	}
	r.in.release()
	r.held = false
	r.m.release()
}

// Send copies a record to the driver, and waits for room as long as until, or without a limit if it
// is zero. After an error the driver gets no part of the record. The error wraps queue.ErrTimeout,
// with a *queue.SlowError; queue.ErrClosed, after Close, Drop or the driver's Close; or ErrCorrupt.
func (r *Rank) Send(record []byte, until time.Time) error {
	if !r.m.acquire() {
		return queue.ErrClosed
	}
	defer r.m.release()
	return r.out.send(record, until)
}

// Status returns where the rank publishes what it is doing. It may be used for ever: after Close it
// is memory that no other process sees.
func (r *Rank) Status() *status.Rank {
	if !r.m.acquire() {
		return new(status.Rank)
	}
	defer r.m.release()
	r.m.exposed.Store(true)
	return &r.own.status
}

// Close detaches the rank: calls here end with queue.ErrClosed, the driver no longer waits for this
// rank, and receives what it has sent. A record that another goroutine is just reading may change
// under it. The segment is unmapped when no call is inside and no record is held. Closing twice is
// harmless.
//
// It is called at every end of the rank, also after the driver's death, which the segment itself
// does not show.
func (r *Rank) Close() error {
	if r.closed.Swap(true) {
		return nil
	}
	if !r.m.acquire() {
		return errors.New("ring: rank is unmapped before it is closed")
	}
	defer r.m.release()
	r.own.state.Store(stateLeft)
	r.shared.data.notify()
	r.own.space.notify()
	r.shared.space.notify()
	r.shared.replies.notify()
	r.m.close()
	return nil
}
