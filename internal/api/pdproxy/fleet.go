package pdproxy

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// fleet are servers that do the same.
type fleet struct {
	what string
	// spared says that requests go on without it: those that are not well are asked for nothing,
	// and not waited for.
	spared  bool
	servers []*server
	turn    atomic.Uint64
}

// server is one of them.
type server struct {
	url string
	mu  sync.Mutex
	// well ends when it does not answer, or its health is not well.
	well context.Context
	fall context.CancelFunc
	// busy is how many requests it has.
	busy atomic.Int64
}

func newServer(url string) *server {
	s := &server{url: url}
	s.rise()
	return s
}

// rise makes it one that is well. The caller holds mu, or has it alone.
func (s *server) rise() { s.well, s.fall = context.WithCancel(context.Background()) }

// while is well, the context of what goes on only while it is.
func (s *server) while() context.Context {
	s.mu.Lock()
	well := s.well
	s.mu.Unlock()
	return well
}

func (s *server) down() bool { return s.while().Err() != nil }

// taken is the body of an answer of a server, which has the request until it is closed.
type taken struct {
	io.ReadCloser
	release func()
}

// Close implements io.Closer. It is called once.
func (t *taken) Close() error {
	err := t.ReadCloser.Close()
	t.release()
	return err
}

// acquire gives a server a request, until release is called. Of a fleet that is spared the context
// ends, too, when the server is not well any more.
func (f *fleet) acquire(ctx context.Context, s *server) (_ context.Context, release func()) {
	s.busy.Add(1)
	ctx, cancel := context.WithCancel(ctx)
	life := ctx
	if f.spared {
		life = s.while()
	}
	stop := context.AfterFunc(life, cancel)
	return ctx, func() {
		stop()
		cancel()
		s.busy.Add(-1)
	}
}

func newFleet(what string, addresses []string) (*fleet, error) {
	f := &fleet{what: what}
	for _, a := range addresses {
		u, err := parse(a)
		if err != nil {
			return nil, fmt.Errorf("--%s %w", what, err)
		}
		f.servers = append(f.servers, newServer(u))
	}
	return f, nil
}

// order is in which servers are asked: those that are well before others, if these are asked at
// all; those with fewer requests first, and of equal ones each in its turn.
func (f *fleet) order() []*server {
	n := len(f.servers)
	if n == 0 {
		return nil
	}
	from := int(f.turn.Add(1) % uint64(n))
	all := slices.Concat(f.servers[from:], f.servers[:from])
	type state struct {
		down bool
		busy int64
	}
	seen := make(map[*server]state, n) // as it is now: it may change while they are sorted
	well := 0
	for _, s := range all {
		seen[s] = state{s.down(), s.busy.Load()}
		if !seen[s].down {
			well++
		}
	}
	slices.SortStableFunc(all, func(a, b *server) int {
		x, y := seen[a], seen[b]
		switch {
		case x.down != y.down && x.down:
			return 1
		case x.down != y.down:
			return -1
		}
		return int(x.busy - y.busy)
	})
	if f.spared {
		return all[:well]
	}
	return all
}

// up is how many are well.
func (f *fleet) up() (n int) {
	for _, s := range f.servers {
		if !s.down() {
			n++
		}
	}
	return n
}

// healthTimeout bounds the answer of a server about its health.
const healthTimeout = 5 * time.Second

// each does something for every server, all at the same time.
func (p *Proxy) each(do func(f *fleet, s *server)) {
	var doing sync.WaitGroup
	for _, f := range []*fleet{p.prefill, p.decode} {
		for _, s := range f.servers {
			doing.Go(func() { do(f, s) })
		}
	}
	doing.Wait()
}

// look asks a server for its health.
func (p *Proxy) look(ctx context.Context, f *fleet, s *server) {
	ctx, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	p.mark(f, s, p.ask(ctx, s))
}

// ask returns nil for a server that is well.
func (p *Proxy) ask(ctx context.Context, s *server) error {
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+"/health", nil)
	if err != nil {
		return err
	}
	r, err := p.client.Do(q)
	if err != nil {
		return err
	}
	r.Body.Close()
	if r.StatusCode != http.StatusOK {
		return fmt.Errorf("its health is %s", r.Status)
	}
	return nil
}

// mark takes note of how a server is, and says so when that has changed.
func (p *Proxy) mark(f *fleet, s *server, err error) {
	s.mu.Lock()
	switch down := s.well.Err() != nil; {
	case err != nil && !down:
		s.fall()
		p.opt.Log.Warn("a "+f.what+" server is not well", "server", s.url, "error", err)
	case err == nil && down:
		s.rise()
		p.opt.Log.Info("a "+f.what+" server is well again", "server", s.url)
	}
	s.mu.Unlock()
}

// health answers for all: without a decode server nothing is served, without a prefill server it is
// served all the same.
func (p *Proxy) health(w http.ResponseWriter) {
	status := http.StatusOK
	if p.decode.up() == 0 {
		status = http.StatusServiceUnavailable
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]string{
		"prefill": fmt.Sprintf("%d of %d", p.prefill.up(), len(p.prefill.servers)),
		"decode":  fmt.Sprintf("%d of %d", p.decode.up(), len(p.decode.servers))})
}
