package batch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
)

// Do asks a server one row. It fails with an error that wraps ErrUnavailable when there is no
// answer now and may be one later, or with ctx's.
type Do func(ctx context.Context, r *Row) (Answer, error)

// ErrUnavailable says that a server does not answer now, for no fault of the request.
var ErrUnavailable = errors.New("not available now")

// Limiter bounds the rows that are asked at the same time, by their number and their bytes. Batches
// that share one take turns.
type Limiter struct {
	room  *semaphore.Weighted
	bytes int64
	share int64
}

// inFlightBytes bounds the bytes of rows that are asked at the same time.
const inFlightBytes = 128 << 20

// NewLimiter admits so many rows at a time.
func NewLimiter(rows int) *Limiter {
	rows = max(1, rows)
	return &Limiter{semaphore.NewWeighted(inFlightBytes), inFlightBytes,
		max(1, inFlightBytes/int64(rows))}
}

// weight is what a line takes: a row's share, or more if it is longer.
func (w *Limiter) weight(line []byte) int64 {
	return min(max(int64(len(line)), w.share), w.bytes)
}

// pump asks the rows of an input that have no answer yet.
type pump struct {
	input   io.Reader
	most    int // bytes of a line
	done    done
	limiter *Limiter
	do      Do
	// refusal is what is said of each row instead of asking it, nil for asking.
	refusal *fault
	// emit takes what came of a row; it is called by several goroutines.
	emit func(r *Row, o *outcome) error
}

// run ends when every row has an outcome, ctx ends, or emit fails. All rows are over then.
func (p *pump) run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var rows sync.WaitGroup
	err := p.feed(ctx, func(r *Row, weight int64) {
		rows.Go(func() {
			defer p.limiter.room.Release(weight)
			if err := p.row(ctx, r); err != nil {
				cancel(err)
			}
		})
	})
	if err != nil {
		cancel(err)
	}
	rows.Wait()
	return context.Cause(ctx)
}

// feed reads the rows that have no answer, and calls ask with each when there is room for it.
func (p *pump) feed(ctx context.Context, ask func(r *Row, weight int64)) error {
	in := newLines(p.input, p.most)
	for {
		line, err := in.next()
		if err == io.EOF {
			return nil
		}
		if err != nil && err != errTooLong {
			return err
		}
		if err == nil && len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		sum := uint32(1)
		if err == nil {
			sum = sumOf(line)
		}
		switch answered, other := p.done.has(in.number, sum); {
		case other != nil:
			return other
		case answered:
			continue
		}
		weight := p.limiter.weight(line)
		if err := p.limiter.room.Acquire(ctx, weight); err != nil {
			return err
		}
		r := longRow(in.number, p.most)
		if err == nil {
			r = parseRow(line, in.number)
		}
		ask(r, weight)
	}
}

// row asks one row until there is an answer.
func (p *pump) row(ctx context.Context, r *Row) error {
	if p.refusal != nil {
		return p.emit(r, r.unanswered(p.refusal.Code, p.refusal.Message))
	}
	if r.Problem != nil {
		return p.emit(r, r.unanswered(r.Problem.Code, r.Problem.Message))
	}
	if r.refused != "" {
		return p.emit(r, r.unanswered(CodeValue, r.refused))
	}
	wait := firstWait
	for {
		a, err := p.do(ctx, r)
		if err == nil {
			return p.emit(r, r.answered(&a))
		}
		if ctx.Err() != nil || !errors.Is(err, ErrUnavailable) {
			return fmt.Errorf("line %d: %w", r.Line, err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
		wait = min(2*wait, longestWait)
	}
}

// A row that finds a server unavailable is asked again after a while, each time twice as long.
const (
	firstWait   = 20 * time.Millisecond
	longestWait = 2 * time.Second
)
