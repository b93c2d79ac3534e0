package offload

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// Patience waits for what files do, which may hang with their disk or server. What hangs cannot be
// ended: it is left alone, with the memory that it has, and nothing else is tried before it is
// over. Several goroutines may use it.
type Patience struct {
	// Limit is how long it waits.
	Limit time.Duration
	stuck atomic.Int64
}

// ErrAside says that nothing was tried: what was tried before hangs.
var ErrAside = errors.New("the folder is set aside")

// errHangs is wrapped by the error of what takes longer than the limit.
var errHangs = errors.New("no answer")

// Run returns what f does, ErrAside, or another error once the limit has passed: then f goes on,
// alone.
func (p *Patience) Run(f func() error) error {
	if p.stuck.Load() > 0 {
		return ErrAside
	}
	const over, left = 1, 2
	var state atomic.Int32
	done := make(chan error, 1)
	go func() {
		err := f()
		if !state.CompareAndSwap(0, over) {
			p.stuck.Add(-1)
		}
		done <- err
	}()
	late := time.NewTimer(p.Limit)
	defer late.Stop()
	select {
	case err := <-done:
		return err
	case <-late.C:
	}
	p.stuck.Add(1)
	if !state.CompareAndSwap(0, left) {
		p.stuck.Add(-1)
		return <-done
	}
	return fmt.Errorf("%w within %v: the folder is set aside until there is one", errHangs, p.Limit)
}
