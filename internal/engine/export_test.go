package engine

import "time"

// SetSettled has files be adopted that were left alone for a time, until the function it returns is called.
func SetSettled(d time.Duration) (undo func()) {
	before := settled
	settled = d
	return func() { settled = before }
}
