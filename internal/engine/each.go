package engine

import (
	"errors"
	"sync"
)

// Each does something with every engine, by its index, at the same time. One that has failed for
// good, or was removed meanwhile, is left out as long as another one serves. The error is the first
// of the others.
func Each(engines []*Engine, f func(i int) error) error {
	errs := make([]error, len(engines))
	var group sync.WaitGroup
	for i := range engines {
		group.Go(func() { errs[i] = f(i) })
	}
	group.Wait()
	out := 0
	var first error
	for _, err := range errs {
		switch {
		case errors.Is(err, ErrFailed), errors.Is(err, ErrStopped):
			out++
		case first == nil:
			first = err
		}
	}
	if out == len(engines) {
		return errs[0]
	}
	return first
}
