package handshake

import (
	"crypto/rand"
	"sync"
)

func newSession() Session {
	var s Session
	rand.Read(s[:])
	return s
}

// holder is the worker that is registered as a rank.
type holder struct {
	id      Identity
	session Session
	// waiting is its connection, until that is accepted.
	waiting *Conn
}

// ranks maps each registered rank to its worker.
type ranks struct {
	mu      sync.Mutex
	holders map[int]*holder
}

// register enters a worker that starts by a connection, or finds the session of a worker that
// resumes. fresh says that this call entered it. One that has ended before it was accepted is no
// holder: its node may have gone, and another one have its rank.
func (r *ranks) register(id Identity, c *Conn) (s Session, fresh bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	h, registered := r.holders[id.Rank]
	if id.Resume != nil {
		if !registered || h.session != id.Resume.Session || h.id.PID != id.PID {
			return Session{}, false, refuse(UnknownSession,
				"rank %d, pid %d has no session %s here", id.Rank, id.PID, id.Resume.Session)
		}
		return h.session, false, nil
	}
	if registered && (h.waiting == nil || !h.waiting.ended()) {
		return Session{}, false, refuse(RankTaken, "rank %d is held by pid %d, not given to pid %d",
			id.Rank, h.id.PID, id.PID)
	}
	h = &holder{id, newSession(), c}
	r.holders[id.Rank] = h
	return h.session, true, nil
}

// accept says whether a connection is that of a holder, and has not ended while it waited: then its
// rank is free again.
func (r *ranks) accept(c *Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	rank := c.Peer.Rank
	h := r.holders[rank]
	if h == nil || h.session != c.Session {
		return false
	}
	if h.waiting == c && c.ended() {
		delete(r.holders, rank)
		return false
	}
	h.waiting = nil
	return true
}

// release deregisters the rank if s is still its session.
func (r *ranks) release(rank int, s Session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if h, ok := r.holders[rank]; ok && h.session == s {
		delete(r.holders, rank)
	}
}

func (r *ranks) deregister(rank int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.holders, rank)
}
