package executor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/eagleray/eagleray/internal/link/queue"
)

// loading is the progress of the ranks from their configuration to their first plan.
type loading struct {
	// ranks are the reports of the ranks, loaded says which have reported. recvLock guards both.
	ranks  []queue.Ready
	loaded []bool
	// stored says which ranks store no packed weights, or no more; allStored is closed when none
	// does.
	stored    []bool
	allStored chan struct{}
	// all has a value when all have reported.
	all chan struct{}
	// since is when they were given their configuration (nanoseconds of Unix time), 0 once all have
	// loaded.
	since atomic.Int64
}

func newLoading(ranks int) *loading {
	return &loading{ranks: make([]queue.Ready, ranks), loaded: make([]bool, ranks),
		stored: make([]bool, ranks), allStored: make(chan struct{}), all: make(chan struct{}, 1)}
}

// awaitReady receives until every rank has loaded.
func (e *Executor) awaitReady(ctx context.Context) error {
	e.loading.since.Store(time.Now().UnixNano())
	defer e.loading.since.Store(0)
	err := e.await(ctx, e.loading.all, time.Time{})
	if err != nil && ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return fmt.Errorf("start of %d ranks: %w", len(e.workers), err)
	}
	return err
}

// handleReady records that a rank has loaded.
func (l *loading) handleReady(rank int, body []byte) error {
	if l.loaded[rank] {
		return fmt.Errorf("rank is ready twice")
	}
	l.loaded[rank] = true
	if err := json.Unmarshal(body, &l.ranks[rank]); err != nil {
		return fmt.Errorf("decode ready: %w", err)
	}
	if err := l.checkTrail(rank); err != nil {
		return err
	}
	if !slices.Contains(l.loaded, false) {
		l.all <- struct{}{}
	}
	if !l.ranks[rank].Storing {
		l.handleStored(rank)
	}
	return nil
}

// handleStored records that a rank stores no packed weights, or no more.
func (l *loading) handleStored(rank int) {
	if l.stored[rank] {
		return
	}
	l.stored[rank] = true
	if !slices.Contains(l.stored, false) {
		close(l.allStored)
	}
}

// receiveStored receives what ranks say of packed weights that they store, while no other wait
// does.
func (e *Executor) receiveStored() {
	select {
	case <-e.loading.allStored:
	default:
		e.background.Go(func() {
			// An error is the end of the group.
			_ = e.await(context.Background(), e.loading.allStored, time.Time{})
		})
	}
}

// Stored is closed when no rank stores packed weights any more.
func (e *Executor) Stored() <-chan struct{} { return e.loading.allStored }

// Ranks returns the reports of the ranks.
func (e *Executor) Ranks() []queue.Ready { return e.loading.ranks }
