package logging

import (
	"io"
	"sync"
	"time"
)

// maxPending is how many bytes may wait for a slow reader.
const maxPending = 1 << 20

// Writer hands what is written on to another writer in its own time: Write never waits. What a
// reader does not take in time, beyond a megabyte, is dropped and counted.
type Writer struct {
	out io.Writer
	// lost is called with the number of writes that were dropped, once there is room again.
	lost func(lines int)

	mu      sync.Mutex
	pending []byte
	dropped int
	closed  bool
	wake    chan struct{}
	done    chan struct{}
}

// NewWriter starts a Writer. Close ends it.
func NewWriter(out io.Writer) *Writer {
	w := &Writer{out: out, wake: make(chan struct{}, 1), done: make(chan struct{})}
	go w.deliver()
	return w
}

// Write takes p, all of it or nothing. It never fails: a log whose reader is gone is no reason to
// end.
func (w *Writer) Write(p []byte) (int, error) {
	w.mu.Lock()
	switch {
	case w.closed:
	case len(w.pending)+len(p) > maxPending:
		w.dropped++
	default:
		w.pending = append(w.pending, p...)
	}
	w.mu.Unlock()
	w.signal()
	return len(p), nil
}

func (w *Writer) signal() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// Close writes what is pending, for as long as that is waited for. Later writes are ignored.
func (w *Writer) Close(within time.Duration) {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	w.signal()
	select {
	case <-w.done:
	case <-time.After(within):
	}
}

// deliver writes what is pending until the Writer is closed.
func (w *Writer) deliver() {
	defer close(w.done)
	var batch []byte
	for {
		w.mu.Lock()
		batch, w.pending = w.pending, batch[:0]
		dropped, closed := w.dropped, w.closed
		w.dropped = 0
		w.mu.Unlock()
		if len(batch) > 0 {
			// An error means that there is no reader: what follows is lost, too.
			_, _ = w.out.Write(batch)
		}
		switch {
		case dropped > 0 && w.lost != nil && !closed:
			w.lost(dropped)
		case len(batch) > 0:
		case closed:
			return
		default:
			<-w.wake
		}
	}
}
