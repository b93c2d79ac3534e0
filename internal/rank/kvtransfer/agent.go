package kvtransfer

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"iter"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/link/queue/handshake"
	"github.com/eagleray/eagleray/internal/link/step"
)

// Memory is the cache of one rank, as compute.Cache has it. Steps run beside both: they write to no
// block that is pinned, since its positions are computed, and know none that is fetched, until
// Fetch has returned.
type Memory interface {
	Read(spans iter.Seq[compute.Span], f func(b []byte) error) error
	Fill(spans iter.Seq[compute.Span], f func(b []byte) error) error
}

// Options configure an Agent.
type Options struct {
	// Shape is the engine's, Rank the agent's number in it. In data parallel attention each place
	// is an engine to others: Place is whose, Shape and Rank are within it.
	Shape Shape
	Rank  int
	Place int
	// Memory is the rank's cache, Blocks its size in blocks.
	Memory Memory
	Blocks int
	// Host and Port are where it listens; 0 is any port. Remote says that blocks travel over TCP
	// also between processes of one host, which else share memory.
	Host   string
	Port   int
	Remote bool
	// Plan is the last plan of earlier groups: every plan up to it counts as executed.
	Plan uint64
	// Early bounds the wait of a peer whose request for a transfer arrives before the driver's call
	// pins it; 0 is 5 s.
	Early time.Duration
}

// Bounds on peers.
const (
	// maxPeers is how many connections are open at a time.
	maxPeers = 256
	// patience is how long a peer may be silent, or not read.
	patience = 30 * time.Second
	// defaultEarly is the default of Options.Early.
	defaultEarly = 5 * time.Second
)

// Agent serves the pinned blocks of a rank to other engines, and fetches blocks for its own. Its
// methods may be called by several goroutines.
type Agent struct {
	opt      Options
	listener net.Listener
	local    *net.UnixListener // nil for none
	cert     *tls.Config
	address  Address
	life     context.Context
	quit     context.CancelFunc
	running  sync.WaitGroup
	peers    chan struct{}

	done    atomic.Uint64 // the last plan that was executed
	waiters atomic.Int32  // for it

	mu      sync.Mutex
	changed chan struct{} // closed, and replaced, when pins or done have changed
	pins    map[Digest]*pin
	// released are the names of the last pins that were released, oldest at next.
	released [1024]Digest
	next     int
	ranks    []Address
	// fetching cancels the fetches under way, by id; cancelled are the last ids that were cancelled
	// while no such fetch ran, oldest at oldest.
	fetching  map[uint64]context.CancelFunc
	cancelled [64]uint64
	oldest    int
}

// pin is a Pin with its readers.
type pin struct {
	Pin
	// ranks are the ranks of the peer that have read all they need.
	ranks map[int]bool
	// fetched is closed when all ranks have, or the pin is released; released says that it is.
	fetched  chan struct{}
	released bool
	// readers are the connections that read.
	readers map[net.Conn]bool
}

// Pin lists the blocks of one transfer, which stay unchanged until Release.
type Pin struct {
	// Place is where they are, among those of data parallel attention.
	Place  int    `json:"place,omitempty"`
	Secret Secret `json:"secret"`
	// Blocks has step.NoBlock for those that no peer reads.
	Blocks []uint32 `json:"blocks"`
	// Digest names the contents up to the end of Blocks.
	Digest Digest `json:"digest"`
	// Plan is the last plan that writes to them.
	Plan uint64 `json:"plan"`
}

// Listen starts an agent.
func Listen(o Options) (*Agent, error) {
	o.Early = cmp.Or(o.Early, defaultEarly)
	cert, fingerprint, err := handshake.Certificate("kv transfer")
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", net.JoinHostPort(o.Host, strconv.Itoa(o.Port)))
	if err != nil {
		return nil, fmt.Errorf("listen for transfers of KV blocks: %w", err)
	}
	at := l.Addr().(*net.TCPAddr)
	a := &Agent{opt: o, listener: l, cert: handshake.ServerTLS(cert),
		address: Address{Host: o.Host, Port: at.Port, Fingerprint: fingerprint},
		peers:   make(chan struct{}, maxPeers), changed: make(chan struct{}),
		pins:     map[Digest]*pin{},
		fetching: map[uint64]context.CancelFunc{}}
	if !o.Remote {
		// Without it blocks travel over TCP.
		a.local, a.address.Local, _ = listenLocal()
	}
	a.life, a.quit = context.WithCancel(context.Background())
	a.done.Store(o.Plan)
	a.running.Go(func() { a.accept(a.listener) })
	if a.local != nil {
		a.running.Go(func() { a.accept(a.local) })
	}
	return a, nil
}

// Address is where the agent listens.
func (a *Agent) Address() Address { return a.address }

// Of reports whether the agent is of a place.
func (a *Agent) Of(place int) bool { return a.opt.Place == place }

// First reports whether the agent is that of its engine's first rank, which tickets name.
func (a *Agent) First() bool { return a.opt.Rank == 0 }

// SetRanks tells the agent where those of all ranks of its engine are.
func (a *Agent) SetRanks(ranks []Address) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ranks = ranks
}

// Executed records that the rank has executed a plan: its blocks are written.
func (a *Agent) Executed(plan uint64) {
	a.done.Store(plan)
	if a.waiters.Load() > 0 {
		a.mu.Lock()
		a.notify()
		a.mu.Unlock()
	}
}

// notify wakes the goroutines in await. The caller holds mu.
func (a *Agent) notify() {
	close(a.changed)
	a.changed = make(chan struct{})
}

// await waits until f, which is called with mu held, returns true.
func (a *Agent) await(ctx context.Context, f func() bool) error {
	a.waiters.Add(1)
	defer a.waiters.Add(-1)
	for {
		a.mu.Lock()
		ok, moved := f(), a.changed
		a.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Pin serves blocks to peers until Release.
func (a *Agent) Pin(h Pin) error {
	for _, b := range h.Blocks {
		if b != step.NoBlock && int64(b) >= int64(a.opt.Blocks) {
			return fmt.Errorf("hold block %d of %d", b, a.opt.Blocks)
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.pins[nameOf(h.Secret)] = &pin{Pin: h, ranks: map[int]bool{},
		fetched: make(chan struct{}), readers: map[net.Conn]bool{}}
	a.notify()
	return nil
}

// nameOf returns the key of a transfer in maps. A lookup by the secret itself would compare it with
// bytes of peers in variable time.
func nameOf(s Secret) Digest { return sha256.Sum256(s[:]) }

// AwaitFetched waits until all ranks of the peer have read what they need of a transfer, the
// transfer is released, or ctx ends. It reports whether the peer has all.
func (a *Agent) AwaitFetched(ctx context.Context, s Secret) bool {
	a.mu.Lock()
	h := a.pins[nameOf(s)]
	a.mu.Unlock()
	if h == nil {
		return false
	}
	select {
	case <-h.fetched:
		a.mu.Lock()
		defer a.mu.Unlock()
		return !h.released
	case <-ctx.Done():
	case <-a.life.Done():
	}
	return false
}

// Release unpins the blocks of a transfer, and returns when no peer reads them: it closes the
// connections of reads under way.
func (a *Agent) Release(s Secret) {
	a.mu.Lock()
	h := a.pins[nameOf(s)]
	if h == nil {
		a.mu.Unlock()
		return
	}
	delete(a.pins, nameOf(s))
	a.released[a.next] = nameOf(s)
	a.next = (a.next + 1) % len(a.released)
	a.notify()
	if h.released = true; !closed(h.fetched) {
		close(h.fetched)
	}
	for c := range h.readers {
		c.Close()
	}
	a.mu.Unlock()
	// A reader ends with its connection.
	_ = a.await(context.Background(), func() bool { return len(h.readers) == 0 })
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// Go runs f in a goroutine that Close waits for; ctx ends with the agent.
func (a *Agent) Go(f func(ctx context.Context)) {
	a.running.Go(func() { f(a.life) })
}

// Close ends all transfers. When it has returned nothing reads or writes the cache.
func (a *Agent) Close() {
	a.quit()
	a.listener.Close()
	if a.local != nil {
		a.local.Close()
	}
	a.running.Wait()
}

// accept serves peers until the agent is closed.
func (a *Agent) accept(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			if a.life.Err() != nil {
				return
			}
			select {
			case <-time.After(10 * time.Millisecond): // no descriptor left, perhaps
				continue
			case <-a.life.Done():
				return
			}
		}
		select {
		case a.peers <- struct{}{}:
		default:
			c.Close()
			continue
		}
		a.running.Go(func() {
			defer func() { <-a.peers }()
			defer c.Close()
			defer context.AfterFunc(a.life, func() { c.Close() })()
			var memory *segment
			if u, ok := c.(*net.UnixConn); ok {
				var err error
				if memory, err = acceptLocal(u); err != nil {
					return // a stranger, or one that goes on over TCP
				}
				defer memory.close()
			}
			a.serve(tls.Server(c, a.cert), memory)
		})
	}
}
