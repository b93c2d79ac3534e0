package ring

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/eagleray/eagleray/internal/link/queue"
	"github.com/eagleray/eagleray/internal/link/status"
	"github.com/eagleray/eagleray/internal/sys/spin"
)

// Driver is the end that broadcasts to the ranks and receives their replies. Send is for one
// goroutine at a time and Recv and Release for one other; the remaining methods may be called at
// any time from any.
type Driver struct {
	file   *os.File
	m      *mapping
	shared *broadcastControl
	closed atomic.Bool

	out writer

	in      []reader
	bad     []bool // by rank: its reply ring is corrupt and is read no more
	next    int    // the rank to look at first
	held    int    // the rank whose record was given out, -1 for none
	waiting waiter
	// interrupted makes the next check of Recv return queue.ErrInterrupted.
	interrupted atomic.Bool
}

func newDriver(f *os.File, m *mapping) *Driver {
	d := &Driver{file: f, m: m, shared: m.broadcastControl(), held: -1,
		in: make([]reader, m.ranks), bad: make([]bool, m.ranks)}
	d.waiting.policy = spin.NewPolicy(m.ranks+1, spin.Shared)
	d.out = writer{ring: m.broadcastRing(), sent: &d.shared.sent,
		data: &d.shared.data, space: &d.shared.space, closedErr: d.closedErr}
	d.out.wait.policy = d.waiting.policy
	for rank := range m.ranks {
		c := m.rankControl(rank)
		d.out.peers = append(d.out.peers, &peer{rank: rank, head: &c.read, state: &c.state})
		d.in[rank] = reader{ring: m.replyRing(rank), writer: rank,
			sent: &c.sent, taken: &c.taken, space: &c.space}
	}
	d.out.init()
	return d
}

func (d *Driver) closedErr() error {
	if d.closed.Load() {
		return queue.ErrClosed
	}
	return nil
}

// Send copies a record to the ring of all ranks, and waits for room as long as until, or without a
// limit if it is zero. A rank that has left or was dropped is not waited for. After an error no
// rank gets any part of the record. The error wraps queue.ErrTimeout, with a *queue.SlowError that
// names the ranks that hold it up; queue.ErrClosed; or ErrCorrupt, with a *CorruptError that names
// the rank, until that rank is dropped.
func (d *Driver) Send(record []byte, until time.Time) error {
	if !d.m.acquire() {
		return queue.ErrClosed
	}
	defer d.m.release()
	return d.out.send(record, until)
}

// Recv returns the next record of any rank, looking at the ranks in turn. It is valid until the
// next Recv or Release. Recv waits as long as until, or without a limit if it is zero. What a rank
// sent before it left, died or was dropped is still received. The error is queue.ErrTimeout; wraps
// queue.ErrClosed, after Close or when every rank has left or was dropped; or wraps ErrCorrupt,
// once for each rank, whose replies are read no more.
func (d *Driver) Recv(until time.Time) (rank int, record []byte, err error) {
	d.Release()
	if !d.m.acquire() {
		return -1, nil, queue.ErrClosed
	}
	rank, record, err = d.recv(until)
	d.waiting.done(&d.shared.replies)
	if err != nil {
		d.m.release()
		return rank, nil, err
	}
	d.held = rank
	return rank, record, nil
}

func (d *Driver) recv(until time.Time) (rank int, record []byte, err error) {
	for {
		if err := d.closedErr(); err != nil {
			return -1, nil, err
		}
		if d.interrupted.Swap(false) {
			return -1, nil, queue.ErrInterrupted
		}
		alone := d.alone() // before looking for what they may have sent last
		rank, record, what, err := d.scan()
		switch {
		case err != nil:
			d.bad[rank] = true
			return rank, nil, err
		case what == complete:
			return rank, record, nil
		case what == piece:
			continue
		case alone:
			return -1, nil, errAlone
		}
		if err := d.waiting.pause(&d.shared.replies, until); err != nil {
			if err == queue.ErrTimeout {
				return -1, nil, err
			}
			return -1, nil, fmt.Errorf("ring: wait for replies: %w", err)
		}
	}
}

// Interrupt ends the Recv under way, or else the next one, with queue.ErrInterrupted: something
// else needs its caller. It may be called at any time from any goroutine, also after Close.
func (d *Driver) Interrupt() {
	if !d.m.acquire() {
		return
	}
	defer d.m.release()
	d.interrupted.Store(true)
	d.shared.replies.notify()
}

// scan reads one piece from every ring in turn, until a record is complete.
func (d *Driver) scan() (rank int, record []byte, what found, err error) {
	for range d.in {
		rank = d.next
		if d.next++; d.next == len(d.in) {
			d.next = 0
		}
		if d.bad[rank] {
			continue
		}
		record, got, err := d.in[rank].next()
		if err != nil || got == complete {
			return rank, record, got, err
		}
		if got == piece {
			what = piece
		}
	}
	return rank, nil, what, nil
}

// alone reports whether no rank can send any more.
func (d *Driver) alone() bool {
	for rank, p := range d.out.peers {
		if !d.bad[rank] && !p.gone() {
			return false
		}
	}
	return true
}

// Release gives the record of the last Recv back, so that its rank can use its space.
func (d *Driver) Release() {
	if d.held < 0 {
		return
	}
	d.in[d.held].release()
	d.held = -1
	d.m.release()
}

// Drop declares ranks dead: they no longer hold up Send. Their replies so far stay readable. If one
// lives after all, its calls end with queue.ErrClosed; a record it is just reading may change under
// it. All ranks of the ring are woken to look, once.
func (d *Driver) Drop(ranks ...int) {
	if !d.m.acquire() {
		return
	}
	defer d.m.release()
	ranks = slices.DeleteFunc(slices.Clone(ranks),
		func(rank int) bool { return rank < 0 || rank >= len(d.out.peers) })
	for _, rank := range ranks {
		d.m.rankControl(rank).dropped.Store(1) // before Send writes over what it may be reading
		d.out.peers[rank].dropped.Store(true)
	}
	d.shared.space.notify()
	d.shared.replies.notify()
	d.shared.data.notify()
	for _, rank := range ranks {
		d.m.rankControl(rank).space.notify()
	}
}

// Status returns the status the rank has published, also after its death; zero after Close.
func (d *Driver) Status(rank int) status.Snapshot {
	if rank < 0 || rank >= len(d.out.peers) || !d.m.acquire() {
		return status.Snapshot{}
	}
	defer d.m.release()
	return d.m.rankControl(rank).status.Snapshot()
}

// Lag returns how many records, and bytes of payload, were sent and not yet received by the rank:
// the depth of the queue, for the display of the ranks and for tests; zero after Close. A record in
// several pieces counts as sent with its last one, its bytes with each.
func (d *Driver) Lag(rank int) (records uint64, bytes int64) {
	if rank < 0 || rank >= len(d.out.peers) || !d.m.acquire() {
		return 0, 0
	}
	defer d.m.release()
	c := d.m.rankControl(rank)
	sent, sum := d.out.records.Load(), d.out.bytes.Load()
	// The rank may have read more since, and its counters are not trusted.
	return sent - min(c.records.Load(), sent), int64(sum - min(c.bytes.Load(), sum))
}

// Close ends all calls here with queue.ErrClosed; those of the ranks end likewise once they have
// received what was sent. The segment is unmapped when no call is inside and no record is held.
// Closing twice is harmless.
func (d *Driver) Close() error {
	if d.closed.Swap(true) {
		return nil
	}
	if !d.m.acquire() {
		return nil
	}
	defer d.m.release()
	d.shared.closed.Store(1)
	d.shared.data.notify()
	d.shared.space.notify()
	d.shared.replies.notify()
	for rank := range d.m.ranks {
		d.m.rankControl(rank).space.notify()
	}
	d.m.close()
	if err := d.file.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return fmt.Errorf("ring: close memory file: %w", err)
	}
	return nil
}
