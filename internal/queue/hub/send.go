package hub

import (
	"errors"
	"fmt"
	"time"
)

// longRecord is the shortest record that is sent over several links at the same time. Shorter ones fit the
// window, and cost less than to wake a goroutine.
const longRecord = 64 << 10

// parcel is a record for one rank.
type parcel struct {
	record []byte
	until  time.Time
}

// Send implements queue.Hub. Every rank is tried: the error names all that the record could not be queued for.
func (h *Hub) Send(record []byte, until time.Time) error {
	failed, under := false, 0
	for rank, l := range h.links {
		if l == nil || h.gone[rank].Load() {
			continue
		}
		if lane := h.lanes[rank]; lane != nil && len(record) >= longRecord {
			select {
			case lane <- parcel{record, until}:
				under++
				continue
			case <-h.done:
			}
		}
		h.deliver(rank, parcel{record, until})
	}
	var local error
	if h.ring != nil {
		local = translate(h.ring.Send(record, until))
	}
	for range under {
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
func (h *Hub) deliver(rank int, p parcel) {
	if err := h.links[rank].Send(p.record, p.until); err != nil && !h.gone[rank].Load() {
		h.errs[rank] = &RankError{Rank: rank, Err: translate(err)}
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

// carry delivers long records to one rank. What it has begun it ends: the record is the caller's.
func (h *Hub) carry(rank int) {
	for {
		select {
		case p := <-h.lanes[rank]:
			h.deliver(rank, p)
			h.sent <- struct{}{}
		case <-h.done:
			return
		}
	}
}
