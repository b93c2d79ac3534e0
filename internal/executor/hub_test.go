package executor

import (
	"sync"
	"time"

	"github.com/eagleray/eagleray/internal/queue"
	"github.com/eagleray/eagleray/internal/status"
)

// memHub is a hub of ranks that are goroutines of the test.
type memHub struct {
	ranks []*memPort
	up    chan upward
	poke  chan struct{}
	done  chan struct{}
	once  sync.Once
}

type upward struct {
	rank   int
	record []byte
}

// memPort is a rank's end.
type memPort struct {
	hub    *memHub
	rank   int
	down   chan []byte
	status status.Rank
	mu     sync.Mutex
	gone   bool
}

func newMemHub(ranks int) *memHub {
	h := &memHub{up: make(chan upward, 64), poke: make(chan struct{}, 1), done: make(chan struct{})}
	for r := range ranks {
		h.ranks = append(h.ranks, &memPort{hub: h, rank: r, down: make(chan []byte, 4)})
	}
	return h
}

func (h *memHub) Send(record []byte, until time.Time) error {
	for _, p := range h.ranks {
		p.mu.Lock()
		gone := p.gone
		p.mu.Unlock()
		if gone {
			continue
		}
		select {
		case p.down <- append([]byte(nil), record...):
		case <-h.done:
			return queue.ErrClosed
		case <-alarm(until).C:
			return queue.ErrTimeout
		}
	}
	return nil
}

func (h *memHub) Recv(until time.Time) (int, []byte, error) {
	select {
	case u := <-h.up:
		return u.rank, u.record, nil
	case <-h.poke:
		return 0, nil, queue.ErrInterrupted
	case <-h.done:
		return 0, nil, queue.ErrClosed
	case <-alarm(until).C:
		return 0, nil, queue.ErrTimeout
	}
}

func (h *memHub) Interrupt() {
	select {
	case h.poke <- struct{}{}:
	default:
	}
}

func (h *memHub) Drop(rank int) {
	h.ranks[rank].mu.Lock()
	h.ranks[rank].gone = true
	h.ranks[rank].mu.Unlock()
}

func (h *memHub) Status(rank int) (status.Snapshot, time.Duration) {
	return h.ranks[rank].status.Snapshot(), 0
}

func (h *memHub) Close() error {
	h.once.Do(func() { close(h.done) })
	return nil
}

func (p *memPort) Recv(time.Time) ([]byte, error) {
	select {
	case b := <-p.down:
		return b, nil
	case <-p.hub.done:
		return nil, queue.ErrClosed
	}
}

func (p *memPort) Send(record []byte, _ time.Time) error {
	select {
	case p.hub.up <- upward{p.rank, append([]byte(nil), record...)}:
		return nil
	case <-p.hub.done:
		return queue.ErrClosed
	}
}

func (p *memPort) Status() *status.Rank { return &p.status }

func (p *memPort) Close() error { return nil }

var (
	_ queue.Hub  = (*memHub)(nil)
	_ queue.Port = (*memPort)(nil)
)
