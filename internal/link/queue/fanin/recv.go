package fanin

import (
	"errors"
	"time"

	"github.com/eagleray/eagleray/internal/link/queue"
)

// Recv implements queue.Hub.
func (h *Hub) Recv(until time.Time) (int, []byte, error) {
	h.receiving.Lock()
	defer h.receiving.Unlock()
	h.release()
	for {
		select {
		case a := <-h.inbox:
			h.held = a.rank
			h.arrivedFrom(a.rank)
			return a.rank, a.record, nil
		default:
		}
		if h.interrupted.Swap(false) {
			return 0, nil, queue.ErrInterrupted
		}
		var rank int
		var record []byte
		var err error
		switch direct := int(h.direct.Load()); {
		case h.ring != nil && !h.ringEnded:
			rank, record, err = h.ring.Recv(until)
			if h.remote && errors.Is(err, queue.ErrClosed) {
				h.ringEnded = true // the ranks of this host are all gone, those of others are not
				continue
			}
		case direct != none:
			rank = direct
			record, err = h.links[rank].Recv(until)
			if errors.Is(err, queue.ErrClosed) {
				h.direct.Store(none) // records of others may still arrive
				continue
			}
			if err == nil {
				h.arrivedFrom(rank)
			}
		default:
			err = h.await(until)
		}
		switch {
		case err == nil:
			return rank, record, nil
		case !errors.Is(err, queue.ErrInterrupted):
			return 0, nil, err
		}
		// The inbox has a record, or Interrupt was called.
	}
}

// release ends the caller's use of the last record, if it came over a link with a goroutine. That
// goroutine then reads on, and so does the goroutine of the link that the caller read itself.
// Without a ring the caller itself reads the link that brought the last two records.
func (h *Hub) release() {
	if h.held == none {
		return
	}
	held := h.held
	h.held = none
	if h.ring == nil && h.again {
		h.direct.Store(int32(held)) // it was none since the record before
		return
	}
	if direct := h.direct.Swap(none); direct != none {
		h.released[direct] <- struct{}{}
	}
	h.released[held] <- struct{}{}
}

// arrivedFrom notes which link brought a record.
func (h *Hub) arrivedFrom(rank int) {
	h.again = rank == h.last
	h.last = rank
}

// read sends the records of one link to the inbox; when parked the caller of Recv reads the link
// itself first. A link's end is known through link.Down.
func (h *Hub) read(rank int, parked bool) {
	for {
		if parked {
			select {
			case <-h.released[rank]:
				parked = false
			case <-h.done:
				return
			}
		}
		record, err := h.links[rank].Recv(time.Time{})
		if errors.Is(err, queue.ErrInterrupted) {
			continue // it was meant for the caller of Recv, which was here before
		}
		if err != nil {
			return
		}
		h.inbox <- arrival{rank, record} // there is room for one of each link
		h.nudge()
		parked = true
	}
}

// await waits for the inbox when there is nothing else to wait in.
func (h *Hub) await(until time.Time) error {
	var expired <-chan time.Time
	if !until.IsZero() {
		h.timer.Reset(time.Until(until))
		defer h.timer.Stop()
		expired = h.timer.C
	}
	select {
	case <-h.wake:
		return queue.ErrInterrupted
	case <-expired:
		return queue.ErrTimeout
	case <-h.done:
		return queue.ErrClosed
	}
}

// nudge makes the caller of Recv, wherever it waits, look at the inbox and at interrupted. One that
// is on its way from one link to another looks at both after it has stored where it goes.
func (h *Hub) nudge() {
	if h.ring != nil {
		h.ring.Interrupt()
	}
	if direct := h.direct.Load(); direct != none {
		h.links[direct].Interrupt()
	}
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// Interrupt implements queue.Hub.
func (h *Hub) Interrupt() {
	h.interrupted.Store(true)
	h.nudge()
}
