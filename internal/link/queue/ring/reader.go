package ring

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/eagleray/eagleray/internal/link/queue"
)

const (
	// keepBuffer is the largest buffer for records in pieces that is kept for the next one, and
	// keepFor how many records in one piece may come before that.
	keepBuffer = 32 << 20
	keepFor    = 64
)

// found is the result of reading a ring.
type found uint8

const (
	nothing found = iota
	piece         // of a record that is not complete
	complete
)

// reader is the reading end of a ring. It is for one goroutine. Nothing it reads from the segment
// is believed: positions and lengths are copied once and checked, so that no value, and no change
// of one in between, leads out of the ring.
type reader struct {
	ring   []byte
	writer int    // rank, -1 for the driver
	head   uint64 // of the next record
	freed  uint64 // up to here the writer may overwrite; taken is the public copy, never read here
	seen   uint64 // the writer's position when it was last read
	sent   *atomic.Uint64
	taken  *atomic.Uint64
	space  *event // notified when taken has moved

	// buffer collects a record in pieces, open while it is not complete.
	buffer []byte
	open   bool
	since  int // records in one piece since the last in several

	records, bytes *atomic.Uint64 // public counts of what was read; nil for none
	counted, sum   uint64
}

// next reads up to the end of the next piece. The caller has released the previous record. A record
// returned with complete is valid until release.
func (r *reader) next() (record []byte, what found, err error) {
	for {
		if r.head == r.seen {
			sent := r.sent.Load() // check
			if sent == r.head {
				r.release() // the writer may wait for it
				return nil, nothing, nil
			}
			if ahead := sent - r.head; ahead > uint64(len(r.ring)) || sent%8 != 0 {
				return nil, nothing, r.corrupt("position %d in a ring of %d bytes read up to %d",
					sent, len(r.ring), r.head)
			}
			r.seen = sent
		}
		size := uint64(len(r.ring))
		at := r.head & (size - 1)
		header := (*atomic.Uint64)(unsafe.Pointer(&r.ring[at])).Load()
		length, flags := header&(1<<32-1), header>>32
		need := recordHeader + (length+7)&^7
		if need > r.seen-r.head || need > size-at || flags > flagPad ||
			flags&flagPad != 0 && flags != flagPad {
			return nil, nothing,
				r.corrupt("record of %d bytes with flags %#x at %d of %d in a ring of %d", length,
					flags, r.head, r.seen, size)
		}
		r.head += need
		if flags == flagPad {
			continue
		}
		payload := r.ring[at+recordHeader : at+recordHeader+length : at+need]
		if flags == flagFirst|flagLast {
			r.discardPartial()
			r.count(len(payload), true)
			return payload, complete, nil
		}
		if err := r.collect(payload, flags); err != nil {
			return nil, nothing, err
		}
		r.count(len(payload), flags&flagLast != 0)
		// The writer gets room in larger parts than pieces, so that it is not woken for each.
		if r.head-r.freed >= size/4 {
			r.release()
		}
		if flags&flagLast == 0 {
			return nil, piece, nil
		}
		r.open = false
		return r.buffer, complete, nil
	}
}

// collect appends a piece to the record in the buffer.
func (r *reader) collect(payload []byte, flags uint64) error {
	switch {
	case flags&flagFirst != 0:
		r.buffer, r.open, r.since = r.buffer[:0], true, 0
	case !r.open:
		return r.corrupt("a further piece of a record that has not begun")
	case len(r.buffer)+len(payload) > queue.MaxRecord:
		return r.corrupt("a record longer than %d bytes", queue.MaxRecord)
	}
	if n := len(r.buffer) + len(payload); n > cap(r.buffer) {
		r.buffer = append(make([]byte, 0, max(n, 2*cap(r.buffer), maxPiece)), r.buffer...)
	}
	r.buffer = append(r.buffer, payload...)
	return nil
}

// discardPartial drops an unfinished record, which its writer gave up, when a record in one piece
// follows. It frees a buffer that was not used for keepFor records.
func (r *reader) discardPartial() {
	r.open = false
	if r.buffer == nil {
		return
	}
	if r.since++; r.since >= keepFor || cap(r.buffer) > keepBuffer {
		r.buffer = nil
	}
}

// count publishes what was read.
func (r *reader) count(payload int, last bool) {
	if r.records == nil {
		return
	}
	r.sum += uint64(payload)
	r.bytes.Store(r.sum)
	if last {
		r.counted++
		r.records.Store(r.counted)
	}
}

// release lets the writer overwrite the bytes that were read.
func (r *reader) release() {
	if !r.open && cap(r.buffer) > keepBuffer {
		r.buffer = nil
	}
	if r.freed == r.head {
		return
	}
	r.freed = r.head
	r.taken.Store(r.head) // free
	r.space.notify()
}

func (r *reader) corrupt(format string, args ...any) error {
	return &CorruptError{Rank: r.writer, Detail: fmt.Sprintf(format, args...)}
}
