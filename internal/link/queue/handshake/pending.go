package handshake

import (
	"net"
	"sync"
	"time"
)

// stranger is a connection whose handshake is under way.
type stranger struct {
	conn    net.Conn
	host    string
	evicted bool
}

// pending holds the strangers, oldest first. Beyond max, evict drops the oldest stranger of the
// host that has the most: a worker needs milliseconds, so a flood of silent dialers evicts its own
// connections, not a worker of another host.
type pending struct {
	mu     sync.Mutex
	max    int
	all    []*stranger
	byHost map[string]int
	closed bool
}

// add registers c, and evicts another stranger if the list is full. It returns nil after close.
func (p *pending) add(c net.Conn) *stranger {
	s := &stranger{conn: c, host: host(c.RemoteAddr())}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	if len(p.all) >= p.max {
		p.evict()
	}
	p.all = append(p.all, s)
	p.byHost[s.host]++
	return s
}

func (p *pending) evict() {
	most := 0
	for _, n := range p.byHost {
		most = max(most, n)
	}
	for _, s := range p.all {
		if p.byHost[s.host] == most {
			s.evicted = true
			p.remove(s)
			s.conn.Close()
			return
		}
	}
}

// remove takes s out; p.mu is held.
func (p *pending) remove(s *stranger) {
	for i, other := range p.all {
		if other != s {
			continue
		}
		p.all = append(p.all[:i], p.all[i+1:]...)
		if p.byHost[s.host]--; p.byHost[s.host] == 0 {
			delete(p.byHost, s.host)
		}
		return
	}
}

// done removes s after its handshake and reports whether it was evicted before.
func (p *pending) done(s *stranger) (dropped bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.remove(s)
	return s.evicted
}

// close evicts all strangers; add refuses later ones.
func (p *pending) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for len(p.all) > 0 {
		p.evict()
	}
}

func (p *pending) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.all)
}

func host(a net.Addr) string {
	if t, ok := a.(*net.TCPAddr); ok {
		return t.IP.String()
	}
	return a.Network()
}

// faucet bounds the log lines about strangers: a burst, then a few each second, and a count of the
// rest.
type faucet struct {
	mu         sync.Mutex
	level      float64
	at         time.Time
	suppressed int
}

const (
	faucetBurst  = 256
	faucetPerSec = 4
)

// open says whether a line may be written now, and how many were not since the last one.
func (f *faucet) open(now time.Time) (ok bool, suppressed int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.at.IsZero() {
		f.level = faucetBurst
	} else {
		f.level = min(faucetBurst, f.level+now.Sub(f.at).Seconds()*faucetPerSec)
	}
	f.at = now
	if f.level < 1 {
		f.suppressed++
		return false, 0
	}
	f.level--
	suppressed, f.suppressed = f.suppressed, 0
	return true, suppressed
}
