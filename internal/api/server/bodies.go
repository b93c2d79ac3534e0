package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/eagleray/eagleray/internal/api/wire"
)

// bodyBudget bounds the bytes of all request bodies under way, from their first byte until their
// requests are queued. A body takes its share before it is read, and waits where there is none.
//
// A quarter is kept for bodies of at most smallBody bytes: large ones that come slowly do not hold
// up the others.
type bodyBudget struct {
	total int64
	wait  time.Duration

	mu    sync.Mutex
	used  int64
	freed chan struct{} // closed when some of the budget came back
}

// smallBody is the most bytes of a body that may use the whole budget.
const smallBody = 1 << 20

func newBodyBudget(total int64, wait time.Duration) *bodyBudget {
	return &bodyBudget{total: total, wait: wait, freed: make(chan struct{})}
}

// errBodies is the answer to a body that found no room in time.
var errBodies = &wire.Error{Status: http.StatusServiceUnavailable, RetryAfter: 1, Expected: true,
	Message: "too many bytes of request bodies are under way: try again later"}

// reserve adds n bytes to a body that holds some already. It waits for room as long as the budget
// says, and ctx lasts.
func (b *bodyBudget) reserve(ctx context.Context, held, n int64) error {
	most := b.total
	if held+n > smallBody {
		most -= most / 4
	}
	var late <-chan time.Time
	for {
		b.mu.Lock()
		if b.used+n <= most || b.used == held { // alone, a body has room whatever its size
			b.used += n
			b.mu.Unlock()
			return nil
		}
		freed := b.freed
		b.mu.Unlock()
		if late == nil {
			timer := time.NewTimer(b.wait)
			defer timer.Stop()
			late = timer.C
		}
		select {
		case <-freed:
		case <-late:
			return errBodies
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (b *bodyBudget) release(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used -= n
	close(b.freed)
	b.freed = make(chan struct{})
}

// body is a request's body with its share of the budget.
type body struct {
	budget *bodyBudget
	// deadline is when reading ends, zero for never.
	deadline time.Time
	text     []byte
	held     int64
}

// done gives the share back. Calling it twice is harmless.
func (b *body) done() {
	if b.held > 0 {
		b.budget.release(b.held)
	}
	b.text, b.held = nil, 0
}

// firstPiece is how much of a body is read at first, and taken of the budget where its length is
// not known.
const firstPiece = 64 << 10

// receive reads a body of at most limit bytes, also once it is expanded. The caller calls done,
// also after an error.
func (b *body) receive(w http.ResponseWriter, r *http.Request, limit int64) error {
	length := r.ContentLength
	if length > limit { // a client that waits for 100 Continue need not send it
		return &http.MaxBytesError{Limit: limit}
	}
	in, err := Expand(w, r, limit)
	if err != nil {
		return err
	}
	claim := length + 1 // one to see the end
	if length < 0 || codingOf(r) != "" {
		claim = firstPiece
	}
	if err := b.reserve(r.Context(), claim); err != nil {
		return err
	}
	b.text = make([]byte, 0, min(claim, firstPiece))
	for {
		full := int64(len(b.text))
		if full == b.held { // its length is not known
			if err := b.reserve(r.Context(), full); err != nil {
				return err
			}
		}
		if full == int64(cap(b.text)) {
			b.text = slices.Grow(b.text, int(min(full, b.held-full)))
		}
		n, err := in.Read(b.text[len(b.text):min(int64(cap(b.text)), b.held)])
		b.text = b.text[:len(b.text)+n]
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return BodyFailure(err, b.deadline)
		}
	}
}

func (b *body) reserve(ctx context.Context, n int64) error {
	if err := b.budget.reserve(ctx, b.held, n); err != nil {
		return err
	}
	b.held += n
	return nil
}

// BodyFailure says whose fault it is that a body did not arrive by a deadline, zero for none: it
// took too long, its client went away, or it breaks the rules of HTTP.
func BodyFailure(err error, deadline time.Time) error {
	var tooLarge *http.MaxBytesError
	var bad *wire.Error
	// net/http does not tell that it waited for a trailer in vain.
	late := !deadline.IsZero() && !time.Now().Before(deadline)
	switch {
	case errors.As(err, &tooLarge), errors.As(err, &bad):
		return err
	case errors.Is(err, os.ErrDeadlineExceeded), late:
		return &wire.Error{Status: http.StatusRequestTimeout,
			Message: "request body was not received: " + err.Error()}
	case errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("%w: %w", ErrClientGone, err)
	}
	return wire.BadRequest("", "request body is malformed: %v", err)
}
