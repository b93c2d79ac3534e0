//go:build !amd64

package pool

import "runtime"

// pause gives other goroutines the processor for a moment.
func pause(uint32) { runtime.Gosched() }
