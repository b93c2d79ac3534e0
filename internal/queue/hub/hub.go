// Package hub is the driver's end of a queue whose ranks are on several hosts: those of the driver's host share
// one ring, each of the others has a link.
package hub

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/eagleray/eagleray/internal/queue"
	"github.com/eagleray/eagleray/internal/queue/link"
	"github.com/eagleray/eagleray/internal/queue/phase"
	"github.com/eagleray/eagleray/internal/queue/ring"
)

// Hub implements queue.Hub over a ring, links, or both.
type Hub struct {
	ring  *ring.Driver // nil when no rank is local
	links []*link.Link // by rank; nil for local ones
	gone  []atomic.Bool

	// inbox is how links hand over: an item's record is valid until taken is signalled.
	inbox   chan item
	held    int             // the rank whose record was handed out, -1 for none
	taken   []chan struct{} // by rank
	poke    chan struct{}
	poked   atomic.Bool
	done    chan struct{}
	once    sync.Once
	readers sync.WaitGroup
}

type item struct {
	rank   int
	record []byte
}

// New joins a ring (nil for none) and the links of remote ranks (nil entries for local ones). Close closes them.
func New(r *ring.Driver, links []*link.Link) *Hub {
	h := &Hub{ring: r, links: links, gone: make([]atomic.Bool, len(links)), inbox: make(chan item, len(links)),
		held: -1, taken: make([]chan struct{}, len(links)), poke: make(chan struct{}, 1), done: make(chan struct{})}
	for rank, l := range links {
		if l != nil {
			h.taken[rank] = make(chan struct{}, 1)
			h.readers.Go(func() { h.read(rank, l) })
		}
	}
	return h
}

// read hands over what comes from one link. Its end is known through link.Down.
func (h *Hub) read(rank int, l *link.Link) {
	for {
		record, err := l.Recv(time.Time{})
		if err != nil {
			return
		}
		select {
		case h.inbox <- item{rank, record}:
		case <-h.done:
			return
		}
		if h.ring != nil {
			h.ring.Interrupt()
		}
		select {
		case <-h.taken[rank]:
		case <-h.done:
			return
		}
	}
}

// Send implements queue.Hub.
func (h *Hub) Send(record []byte, until time.Time) error {
	for rank, l := range h.links {
		if l == nil || h.gone[rank].Load() {
			continue
		}
		if err := l.Send(record, until); err != nil && !h.gone[rank].Load() {
			return fmt.Errorf("send to rank %d: %w", rank, translate(err))
		}
	}
	if h.ring == nil {
		return nil
	}
	return translate(h.ring.Send(record, until))
}

// Recv implements queue.Hub.
func (h *Hub) Recv(until time.Time) (int, []byte, error) {
	if h.held >= 0 {
		h.taken[h.held] <- struct{}{}
		h.held = -1
	}
	for {
		select {
		case it := <-h.inbox:
			h.held = it.rank
			return it.rank, it.record, nil
		default:
		}
		if h.poked.Swap(false) {
			return 0, nil, queue.ErrInterrupted
		}
		if h.ring == nil {
			return h.recvLinks(until)
		}
		rank, record, err := h.ring.Recv(until)
		if errors.Is(err, ring.ErrInterrupted) {
			continue // a link has something, or Interrupt was called
		}
		return rank, record, translate(err)
	}
}

func (h *Hub) recvLinks(until time.Time) (int, []byte, error) {
	var expired <-chan time.Time
	if !until.IsZero() {
		t := time.NewTimer(time.Until(until))
		defer t.Stop()
		expired = t.C
	}
	select {
	case it := <-h.inbox:
		h.held = it.rank
		return it.rank, it.record, nil
	case <-h.poke:
		h.poked.Store(false)
		return 0, nil, queue.ErrInterrupted
	case <-expired:
		return 0, nil, queue.ErrTimeout
	case <-h.done:
		return 0, nil, queue.ErrClosed
	}
}

// Interrupt implements queue.Hub.
func (h *Hub) Interrupt() {
	h.poked.Store(true)
	if h.ring != nil {
		h.ring.Interrupt()
		return
	}
	select {
	case h.poke <- struct{}{}:
	default:
	}
}

// Drop implements queue.Hub.
func (h *Hub) Drop(rank int) {
	h.gone[rank].Store(true)
	if h.links[rank] == nil && h.ring != nil {
		h.ring.Drop(rank)
	}
}

// Status implements queue.Hub.
func (h *Hub) Status(rank int) (phase.Status, time.Duration) {
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

// Close implements queue.Hub.
func (h *Hub) Close() error {
	var errs []error
	h.once.Do(func() {
		close(h.done)
		for _, l := range h.links {
			if l != nil {
				errs = append(errs, l.Close("driver is shutting down"))
			}
		}
		if h.ring != nil {
			h.ring.Release()
			errs = append(errs, h.ring.Close())
		}
		h.readers.Wait()
	})
	return errors.Join(errs...)
}

// translate turns a transport's error into the queue's, keeping its words.
func translate(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, ring.ErrTimeout), errors.Is(err, link.ErrTimeout):
		return fmt.Errorf("%w: %w", queue.ErrTimeout, err)
	case errors.Is(err, ring.ErrClosed), errors.Is(err, link.ErrDown), errors.Is(err, link.ErrClosed):
		return fmt.Errorf("%w: %w", queue.ErrClosed, err)
	}
	return err
}

var _ queue.Hub = (*Hub)(nil)
