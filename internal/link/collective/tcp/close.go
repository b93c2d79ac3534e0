package tcp

import (
	"time"

	"github.com/eagleray/eagleray/internal/link/collective"
)

const (
	// linger bounds how long Close waits for what has been sent to reach the other ranks.
	linger = time.Second
	// lingerStep is how often it looks.
	lingerStep = 200 * time.Microsecond
)

// Close leaves the group and closes the connections. An operation under way here is aborted. Ranks
// that wait for this one, now or later, get collective.ErrLeft at once; those that have all they
// need from it go on. It waits up to a second for what is on its way to them. The error is always
// nil: a stream that does not close well has ended before.
func (g *Group) Close() error {
	if !g.mu.TryLock() {
		g.Abort(collective.ErrClosed)
		g.mu.Lock()
	}
	defer g.mu.Unlock()
	if g.closed.Swap(true) {
		return nil
	}
	until := time.Now().Add(linger)
	written := make(chan struct{})
	for _, p := range g.peers {
		close(p.jobs)
		close(p.sends)
	}
	go func() {
		g.writers.Wait()
		close(written)
	}()
	timer := time.NewTimer(linger)
	defer timer.Stop()
	clean := true
	select {
	case <-written:
	case <-timer.C:
		clean = false
	}
	for _, p := range g.peers {
		// If something of the peer is unread, closing drops what is still to be sent.
		for p.unsent() && time.Now().Before(until) {
			time.Sleep(lingerStep)
		}
		if !clean && p.tcp != nil {
			// TLS would send its close alert first, and wait for a rank that does not read.
			_ = p.tcp.Close()
		}
		_ = p.conn.Close()
	}
	g.readers.Wait()
	<-written
	return nil
}
