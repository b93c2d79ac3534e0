package fanin

import (
	"errors"
	"fmt"
	"time"
)

// longRecord is the shortest record that is sent over several links at the same time. Shorter ones
// fit the window, and cost less than to wake a goroutine.
const longRecord = 64 << 10

// item is a record for one rank.
type item struct {
	record []byte
	until  time.Time
}

// Send implements queue.Hub. Every rank is tried: the error names all that the record could not be
// queued for.
func (h *Hub) Send(record []byte, until time.Time) error {
	failed, queued := false, 0
	for rank, l := range h.links {
		if l == nil || h.gone[rank].Load() {
			continue
		}
		if q := h.sendQueues[rank]; q != nil && len(record) >= longRecord {
			select {
			case q <- item{record, until}:
				queued++
				continue
			case <-h.done:
			}
		}
		h.deliver(rank, item{record, until})
	}
	var local error
	if h.ring != nil {
		local = h.ring.Send(record, until)
	}
	for range queued {
		<-h.sent
	}
	for _, err := range h.errs {
		failed = failed || err != nil
	}
	if !failed {
		return local
	}
	err := errors.Join(append(h.errs, local)...)
	clear(h.errs)
	return err
}

// deliver sends to one rank and notes the error.
func (h *Hub) deliver(rank int, it item) {
	if err := h.links[rank].Send(it.record, it.until); err != nil && !h.gone[rank].Load() {
		h.errs[rank] = &RankError{Rank: rank, Err: err}
	}
}

// RankError says which rank a record could not be sent to.
type RankError struct {
	Rank int
	Err  error
}

func (e *RankError) Error() string { return fmt.Sprintf("send to rank %d: %v", e.Rank, e.Err) }

// Unwrap returns the cause.
func (e *RankError) Unwrap() error { return e.Err }

// deliverQueued delivers the items of one rank's send queue. It finishes the item that it is
// sending, because the record is the caller's memory.
func (h *Hub) deliverQueued(rank int) {
	for {
		select {
		case it := <-h.sendQueues[rank]:
			h.deliver(rank, it)
			h.sent <- struct{}{}
		case <-h.done:
			return
		}
	}
}
