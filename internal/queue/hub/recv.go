package hub

import (
	"errors"
	"time"

	"github.com/eagleray/eagleray/internal/queue"
	"github.com/eagleray/eagleray/internal/queue/link"
	"github.com/eagleray/eagleray/internal/queue/ring"
)

// Recv implements queue.Hub.
func (h *Hub) Recv(until time.Time) (int, []byte, error) {
	h.receiving.Lock()
	defer h.receiving.Unlock()
	h.release()
	for {
		select {
		case it := <-h.inbox:
			h.held = it.rank
			h.came(it.rank)
			return it.rank, it.record, nil
		default:
		}
		if h.poked.Swap(false) {
			return 0, nil, queue.ErrInterrupted
		}
		var rank int
		var record []byte
		var err error
		switch direct := int(h.direct.Load()); {
		case h.ring != nil && !h.alone:
			rank, record, err = h.ring.Recv(until)
		case direct != nobody:
			rank = direct
			if record, err = h.links[rank].Recv(until); err == nil {
				h.came(rank)
			}
		default:
			err = h.await(until)
		}
		switch {
		case err == nil:
			return rank, record, nil
		case errors.Is(err, ring.ErrInterrupted), errors.Is(err, link.ErrInterrupted):
			// The inbox has something, or Interrupt was called.
		case errors.Is(err, link.ErrTimeout), errors.Is(err, queue.ErrTimeout):
			return 0, nil, queue.ErrTimeout
		case errors.Is(err, link.ErrDown):
			h.direct.Store(nobody) // others may still have something to say
		case errors.Is(err, ring.ErrClosed) && h.remote:
			h.alone = true // the ranks of this host are all gone, those of others are not
		default:
			return 0, nil, translate(err)
		}
	}
}

// release ends the caller's use of the last record, if it came over a link with a goroutine. Usually that goroutine
// goes on, and so does the one of the link that the caller has read himself, which is not where records come from
// now. Without a ring the caller takes over a link that brings one record after the other.
func (h *Hub) release() {
	if h.held == nobody {
		return
	}
	held := h.held
	h.held = nobody
	if h.ring == nil && h.again {
		h.direct.Store(int32(held)) // it was nobody's since the record before
		return
	}
	if direct := h.direct.Swap(nobody); direct != nobody {
		h.taken[direct] <- struct{}{}
	}
	h.taken[held] <- struct{}{}
}

// came notes which link brought a record.
func (h *Hub) came(rank int) {
	h.again = rank == h.last
	h.last = rank
}

// read hands over what comes from one link, in which the caller of Recv is first when parked. A link's end is
// known through link.Down.
func (h *Hub) read(rank int, parked bool) {
	for {
		if parked {
			select {
			case <-h.taken[rank]:
				parked = false
			case <-h.done:
				return
			}
		}
		record, err := h.links[rank].Recv(time.Time{})
		if errors.Is(err, link.ErrInterrupted) {
			continue // it was meant for the caller of Recv, who was here before
		}
		if err != nil {
			return
		}
		h.inbox <- item{rank, record} // there is room for one of each link
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
		return link.ErrInterrupted
	case <-expired:
		return queue.ErrTimeout
	case <-h.done:
		return queue.ErrClosed
	}
}

// nudge makes the caller of Recv, wherever it waits, look at the inbox and at poked. One that is on its way from
// one link to another looks at both after it has said where it goes.
func (h *Hub) nudge() {
	if h.ring != nil {
		h.ring.Interrupt()
	}
	if direct := h.direct.Load(); direct != nobody {
		h.links[direct].Interrupt()
	}
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// Interrupt implements queue.Hub.
func (h *Hub) Interrupt() {
	h.poked.Store(true)
	h.nudge()
}
