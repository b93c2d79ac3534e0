package openai

import (
	"fmt"
	"net/http"
	"sync"
)

// quota bounds how many requests of one client (an API key, else an address) are answered at the
// same time. The zero limit is none.
type quota struct {
	limit int

	mu   sync.Mutex
	open map[string]int
}

// enter counts a request of a client, unless it has too many. leave is called when it is over.
func (q *quota) enter(client string) *apiError {
	if q.limit == 0 {
		return nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.open[client] >= q.limit {
		return &apiError{status: http.StatusTooManyRequests, retryAfter: 1, expected: true,
			message: fmt.Sprintf("%d requests of this client are being answered: no more are, "+
				"until one is over (--max-requests-per-key)", q.limit)}
	}
	if q.open == nil {
		q.open = map[string]int{}
	}
	q.open[client]++
	return nil
}

func (q *quota) leave(client string) {
	if q.limit == 0 {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.open[client]--; q.open[client] == 0 {
		delete(q.open, client)
	}
}
