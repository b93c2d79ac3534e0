package ring

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/eagleray/eagleray/internal/link/queue"
)

// A record in a ring is a header of 8 bytes, which lies at a multiple of 8, and the payload behind
// it, padded to 8 bytes. The header is one 64-bit number: the payload's length in the low half,
// flags in the high one. Records do not wrap around: a pad fills what is left at the end. Positions
// count bytes since the beginning and never go back; 2^63 bytes take 29 years at 10 GB/s.
const (
	recordHeader = 8

	// A record that is too long goes in pieces: the first has flagFirst, the last flagLast, a whole
	// record both. A first piece ends an unfinished record before it, which its writer gave up.
	flagFirst = 1
	flagLast  = 2
	flagPad   = 4
)

const (
	// maxWhole and maxPiece bound records in one piece and pieces. A whole record is read in place;
	// pieces are small enough for the reader to find them in a cache while the writer is at the
	// next.
	maxWhole = 512 << 10
	maxPiece = 128 << 10
	// warm is how far a writer goes in the ring before it looks whether all readers are close
	// behind, so that it can start over: the ring is as large as needed in use, and no larger in
	// the caches and in memory.
	warm = 128 << 10
)

// room is what a record takes in a ring.
func room(payload int) uint64 { return recordHeader + (uint64(payload)+7)&^7 }

// peer is a reader as its writer sees it.
type peer struct {
	rank int
	head *atomic.Uint64
	// state is the reader's own in the segment, dropped what the driver knows.
	state   *atomic.Uint32
	dropped atomic.Bool
}

// gone reports whether the writer need not wait for the reader.
func (p *peer) gone() bool { return p.dropped.Load() || p.state.Load() == stateLeft }

// writer is the writing end of a ring. It is for one goroutine.
type writer struct {
	ring []byte
	tail uint64 // of which sent is the public copy, never read here
	sent *atomic.Uint64
	// data is notified after each record, space waited for.
	data, space *event
	peers       []*peer
	// limit is how far tail may go with the readers where they were seen last.
	limit  uint64
	rewind uint64 // from this offset on the writer looks whether it can start over
	whole  int    // the longest payload in one piece
	piece  int    // the longest payload of a fragment
	wait   waiter
	// closedErr says why nothing can be sent any more.
	closedErr func() error
	// bytes is what was sent, records how many.
	records, bytes atomic.Uint64
}

func (w *writer) init() {
	w.limit = uint64(len(w.ring))
	w.rewind = warm
	w.whole = min(len(w.ring)/8, maxWhole)
	w.piece = min(len(w.ring)/8, maxPiece)
}

// send copies a record into the ring, in pieces if it is long.
func (w *writer) send(record []byte, until time.Time) error {
	if len(record) > queue.MaxRecord {
		return fmt.Errorf("ring: record of %d bytes is longer than %d", len(record),
			queue.MaxRecord)
	}
	piece := w.piece
	if len(record) <= w.whole {
		piece = w.whole
	}
	for flags := uint64(flagFirst); ; flags = 0 {
		n := min(piece, len(record))
		if n == len(record) {
			flags |= flagLast
		}
		if err := w.put(record[:n], flags, until); err != nil {
			return err
		}
		if flags&flagLast != 0 {
			return nil
		}
		record = record[n:]
	}
}

// put writes one piece, when there is room, and shows it to the readers.
func (w *writer) put(payload []byte, flags uint64, until time.Time) error {
	size := uint64(len(w.ring))
	at := w.tail & (size - 1)
	need, pad := room(len(payload)), uint64(0)
	if size-at < need {
		pad = size - at
	} else if at >= w.rewind && need <= at/2 {
		w.rewind = at + warm/2
		near, err := w.free(size - at/2) // no reader is further behind than that
		if err != nil {
			return err
		}
		if near {
			pad = size - at
		}
	}
	if err := w.await(pad+need, until); err != nil {
		return err
	}
	if pad > 0 {
		binary.NativeEndian.PutUint64(w.ring[at:], (pad-recordHeader)|flagPad<<32)
		at = 0
	}
	if at == 0 {
		w.rewind = warm
	}
	binary.NativeEndian.PutUint64(w.ring[at:], uint64(len(payload))|flags<<32)
	copy(w.ring[at+recordHeader:], payload)
	w.tail += pad + need
	w.bytes.Add(uint64(len(payload)))
	if flags&flagLast != 0 {
		w.records.Add(1)
	}
	w.sent.Store(w.tail) // publish
	w.data.notify()
	return nil
}

// free reports whether the ring has room for need bytes. It looks at the readers only when where
// they were last is not enough to know.
func (w *writer) free(need uint64) (bool, error) {
	if w.tail+need <= w.limit {
		return true, nil
	}
	lowest := w.tail
	for _, p := range w.peers {
		if p.gone() {
			continue
		}
		head := p.head.Load()
		if used := w.tail - head; used > uint64(len(w.ring)) || head%8 != 0 {
			return false, &CorruptError{Rank: p.rank, Detail: fmt.Sprintf(
				"position %d as reader of a ring of %d bytes written up to %d",
				head, len(w.ring), w.tail)}
		}
		lowest = min(lowest, head)
	}
	w.limit = lowest + uint64(len(w.ring))
	return w.tail+need <= w.limit, nil
}

// await returns when there is room for need bytes.
func (w *writer) await(need uint64, until time.Time) error {
	for {
		if err := w.closedErr(); err != nil {
			w.wait.done(w.space)
			return err
		}
		ok, err := w.free(need)
		if ok || err != nil {
			w.wait.done(w.space)
			return err
		}
		if err := w.wait.pause(w.space, until); err != nil {
			w.wait.done(w.space)
			if err == queue.ErrTimeout {
				return w.slow(need)
			}
			return fmt.Errorf("ring: wait for room: %w", err)
		}
	}
}

// slow names the readers that leave no room.
func (w *writer) slow(need uint64) error {
	e := &queue.SlowError{}
	for _, p := range w.peers {
		if !p.gone() && w.tail+need > p.head.Load()+uint64(len(w.ring)) {
			e.Ranks = append(e.Ranks, p.rank)
		}
	}
	if len(e.Ranks) == 0 { // they have just read it
		return queue.ErrTimeout
	}
	return e
}
