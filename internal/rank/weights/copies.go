package weights

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
)

// Opened is a rank's answer to an update.
type Opened struct {
	// Has says that the rank has it, or can map it.
	Has bool `json:"has"`
	// Host is equal for ranks that can map each other's memory.
	Host string `json:"host"`
	// Segments are where the rank has it, for others of its host: nil where that is the driver's
	// memory.
	Segments []Segment `json:"segments,omitempty"`
}

// HostID returns the Opened.Host of this process: its machine's boot id, its PID namespace and its
// user.
var HostID = sync.OnceValue(func() string {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	space, err2 := os.Readlink("/proc/self/ns/pid")
	if err != nil || err2 != nil {
		return newID() // no host's
	}
	return fmt.Sprintf("%s %s %d", strings.TrimSpace(string(boot)), space, os.Getuid())
})

// copies are the copies of an update on hosts other than the driver's. Engines share them: ranks of
// one engine map the copy that was sent to ranks of another.
type copies struct {
	mu    sync.Mutex
	hosts map[string]*site
}

// site has the copies on one host.
type site struct {
	// segments lists the segments of ranks that have the update, the newest last; added counts all
	// that were ever added.
	segments [][]Segment
	added    int
	// copying is closed when the engine that copies to the host ends its copy; nil while none
	// copies.
	copying chan struct{}
}

func (c *copies) at(host string) *site {
	s := c.hosts[host]
	if s == nil {
		s = new(site)
		c.hosts[host] = s
	}
	return s
}

// Copies lists the segments of ranks that have the update, and the number of copies added on each
// host, for BeginCopy.
func (u *Update) Copies() (all [][]Segment, known map[string]int) {
	u.copies.mu.Lock()
	defer u.copies.mu.Unlock()
	known = map[string]int{}
	for host, s := range u.copies.hosts {
		all = append(all, s.segments...)
		known[host] = s.added
	}
	return all, known
}

// AddCopy records the segments of a rank that has the update.
func (u *Update) AddCopy(o *Opened) {
	if !o.Has || len(o.Segments) == 0 {
		return
	}
	u.copies.mu.Lock()
	defer u.copies.mu.Unlock()
	s := u.copies.at(o.Host)
	same := func(t []Segment) bool { return slices.Equal(t, o.Segments) }
	if slices.ContainsFunc(s.segments, same) {
		return
	}
	s.added++
	s.segments = append(s.segments, o.Segments)
}

// BeginCopy reserves a host for the caller to send the update to, when none of the known copies
// there can be mapped. A nil wait grants it; the caller must call EndCopy. Otherwise other copies
// were added, or another engine is sending one: the caller tries those once wait is closed.
func (u *Update) BeginCopy(host string, known int) (wait <-chan struct{}) {
	u.copies.mu.Lock()
	defer u.copies.mu.Unlock()
	s := u.copies.at(host)
	if s.copying != nil {
		return s.copying
	}
	c := make(chan struct{})
	if s.added != known {
		close(c)
		return c
	}
	s.copying, s.segments = c, nil
	return nil
}

// EndCopy releases the host that BeginCopy reserved. The caller has added its copies before.
func (u *Update) EndCopy(host string) {
	u.copies.mu.Lock()
	defer u.copies.mu.Unlock()
	s := u.copies.at(host)
	close(s.copying)
	s.copying = nil
}
