// Package fanin is the driver's end of a queue whose ranks are on several hosts: those of the
// driver's host share one ring, each of the others has a link.
//
// The caller of Recv waits where records come from: in the ring, if there is one, else on the link
// that the last two records came over, because a step's result comes from the same rank each time
// and a record handed from goroutine to goroutine costs more than a read. The other links have a
// goroutine each that reads, hands over, and waits until the record is done with. A long record
// goes to all links at the same time.
package fanin

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/eagleray/eagleray/internal/link/queue"
	"github.com/eagleray/eagleray/internal/link/queue/link"
	"github.com/eagleray/eagleray/internal/link/queue/ring"
	"github.com/eagleray/eagleray/internal/link/status"
)

// Hub implements queue.Hub over a ring, links, or both.
type Hub struct {
	ring  *ring.Driver // nil when no rank is local
	links []*link.Link // by rank; nil for local ones
	gone  []atomic.Bool

	// receiving is held by the caller of Recv, for Close to wait for.
	receiving sync.Mutex
	// inbox receives the records that goroutines of links read: an arrival's record is valid until
	// released is signalled.
	inbox    chan arrival
	released []chan struct{} // by rank
	held     int             // the rank whose goroutine's record was handed out, or none
	// direct is the rank whose link the caller of Recv reads itself, or none. last is the rank of
	// the last record that came over a link, again says that the one before was of the same.
	direct      atomic.Int32
	last        int
	again       bool
	wake        chan struct{} // ends a wait for the inbox
	interrupted atomic.Bool   // Interrupt was called, and no Recv has ended by it yet
	timer       *time.Timer   // of the caller of Recv
	ringEnded   bool          // no rank is left in the ring; the caller of Recv's
	remote      bool          // there are links

	sendQueues []chan item   // by rank; nil when there is nothing to send at the same time
	sent       chan struct{} // an item of a send queue was delivered
	errs       []error       // of the Send under way, by rank

	done    chan struct{}
	once    sync.Once
	running sync.WaitGroup
}

// none stands for no rank.
const none = -1

// arrival is a record that came over the link of a rank.
type arrival struct {
	rank   int
	record []byte
}

// New joins a ring (nil for none) and the links of remote ranks (nil entries for local ones). Close
// closes them.
func New(r *ring.Driver, links []*link.Link) *Hub {
	n := len(links)
	h := &Hub{ring: r, links: links, gone: make([]atomic.Bool, n),
		inbox: make(chan arrival, n), released: make([]chan struct{}, n), held: none, last: none,
		wake: make(chan struct{}, 1), timer: time.NewTimer(time.Hour),
		sendQueues: make([]chan item, n), sent: make(chan struct{}, n), errs: make([]error, n),
		done: make(chan struct{})}
	h.timer.Stop()
	var remote []int
	for rank, l := range links {
		if l != nil {
			remote = append(remote, rank)
		}
	}
	h.remote = len(remote) > 0
	h.direct.Store(none)
	if r == nil && len(remote) > 0 {
		h.direct.Store(int32(remote[0]))
		if len(remote) == 1 {
			return h // the callers of Recv and Send do it all
		}
	}
	for _, rank := range remote {
		h.released[rank] = make(chan struct{}, 1)
		parked := int32(rank) == h.direct.Load()
		h.running.Go(func() { h.read(rank, parked) })
		h.sendQueues[rank] = make(chan item)
		h.running.Go(func() { h.deliverQueued(rank) })
	}
	return h
}

// Drop implements queue.Hub.
func (h *Hub) Drop(ranks ...int) {
	var local []int
	for _, rank := range ranks {
		h.gone[rank].Store(true)
		if l := h.links[rank]; l != nil {
			l.Drop()
		} else {
			local = append(local, rank)
		}
	}
	if h.ring != nil && len(local) > 0 {
		h.ring.Drop(local...)
	}
}

// Status implements queue.Hub.
func (h *Hub) Status(rank int) (status.Snapshot, time.Duration) {
	if l := h.links[rank]; l != nil {
		s, at := l.PeerStatus()
		if at.IsZero() {
			return s, 0
		}
		return s, time.Since(at)
	}
	return h.ring.Status(rank), 0
}

// Stats are the figures of the link of a remote rank; ok is false for a local one.
func (h *Hub) Stats(rank int) (s link.Stats, ok bool) {
	if l := h.links[rank]; l != nil {
		return l.Stats(), true
	}
	return link.Stats{}, false
}

// Close implements queue.Hub. It may be called during a Recv; but the last record is void with it,
// so it must not be in use.
func (h *Hub) Close() error {
	var err error
	h.once.Do(func() {
		close(h.done)
		errs := make([]error, len(h.links)+1)
		var closing sync.WaitGroup
		for rank, l := range h.links {
			if l != nil {
				closing.Go(func() { errs[rank] = l.Close("driver is shutting down") })
			}
		}
		if h.ring != nil {
			errs[len(h.links)] = h.ring.Close()
			h.receiving.Lock()
			h.ring.Release() // the memory of a record would stay mapped
			h.receiving.Unlock()
		}
		closing.Wait()
		h.running.Wait()
		err = errors.Join(errs...)
	})
	return err
}

var _ queue.Hub = (*Hub)(nil)
