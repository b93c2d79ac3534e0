package grammars

import (
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// A shedder gives memory back to the operating system after much of it has become garbage: the
// run-time system alone does so in minutes where little is going on.
type shedder struct {
	garbage int
	running bool
}

// muchGarbage is how many bytes are worth a collection, and shedDelay how long it waits for more.
const (
	muchGarbage = 64 << 20
	shedDelay   = 5 * time.Second
)

// add counts garbage of a cache, whose mu the caller holds: tables that are given up, and what the
// process allocates while one compiles that takes long.
func (s *shedder) add(c *Cache, bytes int) {
	if s.garbage += max(bytes, 0); s.garbage < muchGarbage || s.running || c.over {
		return
	}
	s.running = true
	c.tasks.Go(func() {
		select {
		case <-time.After(shedDelay):
		case <-c.closed:
			return
		}
		c.mu.Lock()
		s.garbage, s.running = 0, false
		c.mu.Unlock()
		debug.FreeOSMemory()
	})
}

// allocated is how many bytes the process has allocated so far.
func allocated() uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}
