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

// holder is the worker that has a rank.
type holder struct {
	id      Identity
	session Session
}

// ranks knows who holds which rank.
type ranks struct {
	mu   sync.Mutex
	held map[int]holder
}

// claim takes a rank for a worker that starts, or finds the session of one that resumes. fresh says
// that the rank was taken now.
func (r *ranks) claim(id Identity) (s Session, fresh bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	h, taken := r.held[id.Rank]
	if id.Resume != nil {
		if !taken || h.session != id.Resume.Session || h.id.PID != id.PID {
			return Session{}, false, refuse(UnknownSession,
				"rank %d, pid %d has no session %s here", id.Rank, id.PID, id.Resume.Session)
		}
		return h.session, false, nil
	}
	if taken {
		return Session{}, false, refuse(RankTaken, "rank %d is held by pid %d, not given to pid %d",
			id.Rank, h.id.PID, id.PID)
	}
	h = holder{id: id, session: newSession()}
	r.held[id.Rank] = h
	return h.session, true, nil
}

// release gives the rank back if s is still its session.
func (r *ranks) release(rank int, s Session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if h, ok := r.held[rank]; ok && h.session == s {
		delete(r.held, rank)
	}
}

func (r *ranks) forget(rank int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.held, rank)
}
