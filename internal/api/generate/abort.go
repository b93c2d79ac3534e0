package generate

import (
	"strings"
	"sync"

	"github.com/eagleray/eagleray/internal/engine"
)

// inFlight are the requests that abort_requests can name, by their ids: with what they begin with
// here, such as "cmpl-", and without.
type inFlight struct {
	mu      sync.Mutex
	streams map[string]engine.Stream
}

// add notes a request until done is called.
func (l *inFlight) add(kind, id string, s engine.Stream) (done func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.streams == nil {
		l.streams = map[string]engine.Stream{}
	}
	names := []string{id, strings.TrimPrefix(id, kind)}
	for _, name := range names {
		l.streams[name] = s
	}
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, name := range names {
			if l.streams[name] == s { // ids of clients may be equal
				delete(l.streams, name)
			}
		}
	}
}

// abort ends those of the requests that are there, with what they have.
func (l *inFlight) abort(ids []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, id := range ids {
		if s := l.streams[id]; s != nil {
			s.Close() // who reads it finds the end
		}
	}
}
