package handshake

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Options say where a driver listens and which workers it admits.
type Options struct {
	Instance Instance
	Token    Token
	// World is the number of ranks.
	World int
	// Shared admits any number of workers under one rank, which the caller tells apart. None of
	// them can resume.
	Shared bool
	// Binary is the SHA-256 that a worker's executable must have; zero admits any.
	Binary [32]byte
	// TCP is the host, or host:port, to listen at; "" for no TCP. It must name one address of this
	// machine.
	TCP string
	// PortRange is the first and last port to try when TCP names none; zero lets the system choose.
	PortRange [2]int
	// Unix listens on an abstract unix socket, which has no file that could be left behind.
	Unix bool
	// Deadline bounds one handshake; 10 s when zero.
	Deadline time.Duration
	// MaxPending bounds the handshakes under way; 128 + 2·World when zero. Beyond it the oldest are
	// dropped.
	MaxPending int
	// Log receives one line per refused peer; nil discards.
	Log *slog.Logger
}

// check fills in defaults.
func (o *Options) check() error {
	if o.Instance == "" || len(o.Instance) > maxInstance {
		return fmt.Errorf("handshake: instance of %d bytes, not 1 to %d", len(o.Instance),
			maxInstance)
	}
	if o.Token == (Token{}) {
		return fmt.Errorf("handshake: no token")
	}
	if o.World < 1 {
		return fmt.Errorf("handshake: world size %d", o.World)
	}
	if o.Deadline <= 0 {
		o.Deadline = defaultDeadline
	}
	if o.MaxPending <= 0 {
		o.MaxPending = 128 + 2*o.World
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return nil
}

// Listener accepts and authenticates the workers of a driver.
type Listener struct {
	o         Options
	endpoint  Endpoint
	config    *tls.Config
	listeners []net.Listener

	ranks   ranks
	pending pending
	faucet  faucet
	refused atomic.Uint64

	ready   chan *Conn
	closing chan struct{}
	once    sync.Once
	running sync.WaitGroup
}

// Listen binds the addresses and starts to admit workers. The ports stay bound until Close.
func Listen(o Options) (*Listener, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	if o.TCP == "" && !o.Unix {
		return nil, fmt.Errorf("handshake: neither a unix socket nor a TCP address to listen at")
	}
	l := &Listener{o: o, endpoint: Endpoint{Instance: o.Instance},
		ranks:   ranks{holders: map[int]*holder{}},
		pending: pending{max: o.MaxPending, byHost: map[string]int{}},
		ready:   make(chan *Conn, 2*o.World),
		closing: make(chan struct{})}
	if err := l.bind(); err != nil {
		for _, b := range l.listeners {
			b.Close()
		}
		return nil, err
	}
	for _, b := range l.listeners {
		l.running.Go(func() { l.accept(b) })
	}
	return l, nil
}

// Endpoint returns where the listener can be dialled.
func (l *Listener) Endpoint() Endpoint { return l.endpoint }

// Refused returns how many peers were refused.
func (l *Listener) Refused() uint64 { return l.refused.Load() }

// Accept returns the next worker that has proved itself: one that starts, or, when its Peer.Resume
// is set, one that goes on with a session. A worker's rank is registered before its welcome is
// sent.
func (l *Listener) Accept(ctx context.Context) (*Conn, error) {
	select {
	case <-l.closing:
		return nil, net.ErrClosed
	default:
	}
	for {
		select {
		case c := <-l.ready:
			if l.o.Shared || l.ranks.accept(c) {
				return c, nil
			}
			abort(c)
		case <-ctx.Done():
			return nil, fmt.Errorf("accept worker: %w", ctx.Err())
		case <-l.closing:
			return nil, net.ErrClosed
		}
	}
}

// Deregister ends the session of a rank's worker: it cannot resume, and another worker may
// register. It does nothing for a rank without a worker. It serves the replacement of single ranks
// of a living group.
func (l *Listener) Deregister(rank int) { l.ranks.deregister(rank) }

// Close frees the addresses, drops the handshakes under way and the workers not yet accepted,
// and waits for the listener's goroutines. Accepted connections stay open.
func (l *Listener) Close() error {
	l.once.Do(func() {
		close(l.closing)
		for _, b := range l.listeners {
			b.Close()
		}
		l.pending.close()
	})
	l.running.Wait()
	for {
		select {
		case c := <-l.ready:
			abort(c)
		default:
			return nil
		}
	}
}

// accept accepts connections from one listener. It retries after a failure that may be temporary,
// such as a lack of descriptors.
func (l *Listener) accept(b net.Listener) {
	const least, most = 5 * time.Millisecond, time.Second
	wait := least
	for {
		c, err := b.Accept()
		if err == nil {
			wait = least
			l.running.Go(func() { l.handle(c) })
			continue
		}
		select {
		case <-l.closing:
			return
		default:
		}
		if errors.Is(err, net.ErrClosed) {
			return
		}
		l.o.Log.Warn("accept failed", "address", b.Addr().String(), "error", err, "retry_in", wait)
		select {
		case <-l.closing:
			return
		case <-time.After(wait):
		}
		wait = min(2*wait, most)
	}
}
