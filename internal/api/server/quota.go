package server

import (
	"fmt"
	"net/http"
	"sync"

	"github.com/eagleray/eagleray/internal/api/wire"
)

// quota bounds how many requests of one client (an API key, else an address) are answered at the
// same time, and as many in the background. The zero limit is none.
type quota struct {
	limit int

	mu   sync.Mutex
	open map[claim]int
}

// claim is what a client has a limit of.
type claim struct {
	client string
	kind   Kind
}

// Kind is how requests are answered, as errors say it.
type Kind string

const (
	Answered     Kind = "are being answered"
	InBackground Kind = "are in the background"
)

// enter counts a request of a client, unless it has too many. leave is called when it is over.
func (q *quota) enter(c claim) *wire.Error {
	if q.limit == 0 {
		return nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.open[c] >= q.limit {
		return &wire.Error{Status: http.StatusTooManyRequests, RetryAfter: 1, Expected: true,
			Message: fmt.Sprintf("%d requests of this client %s: no more are, "+
				"until one is over (--max-requests-per-key)", q.limit, c.kind)}
	}
	if q.open == nil {
		q.open = map[claim]int{}
	}
	q.open[c]++
	return nil
}

func (q *quota) leave(c claim) {
	if q.limit == 0 {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.open[c]--; q.open[c] == 0 {
		delete(q.open, c)
	}
}
