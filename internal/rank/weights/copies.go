package weights

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
)

// Opened is what a rank answers that was told of an update.
type Opened struct {
	// Has says that the rank has it, or can map it.
	Has bool `json:"has"`
	// Host is equal for ranks that can map each other's memory.
	Host string `json:"host"`
	// Segments are where the rank has it, for others of its host: nil where that is the driver's
	// memory.
	Segments []Segment `json:"segments,omitempty"`
}

// Here is the Opened.Host of this process: a boot of a machine, what it sees of processes, and its
// user.
var Here = sync.OnceValue(func() string {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	space, err2 := os.Readlink("/proc/self/ns/pid")
	if err != nil || err2 != nil {
		return newID() // no host's
	}
	return fmt.Sprintf("%s %s %d", strings.TrimSpace(string(boot)), space, os.Getuid())
})

// copies are those of an update on hosts other than the driver's. Engines share them: what the
// ranks of one were sent those of others map.
type copies struct {
	mu    sync.Mutex
	hosts map[string]*site
}

// site is a host.
type site struct {
	// there are the segments of ranks that have the update, the newest last; offers counts them
	// all.
	there  [][]Segment
	offers int
	// coming is closed when the engine that has claimed the host has ended, nil while none has.
	coming chan struct{}
}

func (c *copies) at(host string) *site {
	s := c.hosts[host]
	if s == nil {
		s = new(site)
		c.hosts[host] = s
	}
	return s
}

// Copies lists where ranks have the update, and how much is known of each host: see Claim.
func (u *Update) Copies() (all [][]Segment, known map[string]int) {
	u.copies.mu.Lock()
	defer u.copies.mu.Unlock()
	known = map[string]int{}
	for host, s := range u.copies.hosts {
		all = append(all, s.there...)
		known[host] = s.offers
	}
	return all, known
}

// Offer takes note that a rank has the update.
func (u *Update) Offer(o *Opened) {
	if !o.Has || len(o.Segments) == 0 {
		return
	}
	u.copies.mu.Lock()
	defer u.copies.mu.Unlock()
	s := u.copies.at(o.Host)
	if slices.ContainsFunc(s.there, func(t []Segment) bool { return slices.Equal(t, o.Segments) }) {
		return
	}
	s.offers++
	s.there = append(s.there, o.Segments)
}

// Claim is for who wants to send the update to a host, because none of the copies there can be
// mapped of which so much was known. When there are others by now, or it is just being sent there,
// wait is closed when that is worth another look; else wait is nil, and the caller must Release the
// host.
func (u *Update) Claim(host string, known int) (wait <-chan struct{}) {
	u.copies.mu.Lock()
	defer u.copies.mu.Unlock()
	s := u.copies.at(host)
	if s.coming != nil {
		return s.coming
	}
	c := make(chan struct{})
	if s.offers != known {
		close(c)
		return c
	}
	s.coming, s.there = c, nil
	return nil
}

// Release ends a Claim. What came of it was offered before.
func (u *Update) Release(host string) {
	u.copies.mu.Lock()
	defer u.copies.mu.Unlock()
	s := u.copies.at(host)
	close(s.coming)
	s.coming = nil
}
