package kvtransfer

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/eagleray/eagleray/internal/link/queue/handshake"
)

// Memory is the cache of one rank.
type Memory interface {
	// Heads is where the keys (values: false) or values of some heads are in a block of a layer,
	// all counted within the rank, from the first head to before the last.
	Heads(layer, block int, values bool, from, to int) []byte
}

// Options configure an Agent.
type Options struct {
	// Shape is the engine's, Rank the agent's number in it.
	Shape Shape
	Rank  int
	// Memory is the rank's cache, of so many Blocks.
	Memory Memory
	Blocks int
	// Host and Port are where it listens; 0 is any port. Remote says that blocks travel over TCP
	// also between processes of one host, which else share memory.
	Host   string
	Port   int
	Remote bool
	// Plan is the last one that the rank will not execute any more, or has.
	Plan uint64
	// Early is how much earlier than the driver's word of it a peer may ask for a transfer; 0 is 5
	// s.
	Early time.Duration
}

// Bounds of what a peer can make an agent do.
const (
	// maxPeers is how many connections are open at a time.
	maxPeers = 256
	// patience is how long a peer may be silent, or not read.
	patience = 30 * time.Second
	// defaultEarly is the default of Options.Early.
	defaultEarly = 5 * time.Second
)

// Agent is a rank's end of all transfers. Its methods may be called by several goroutines.
type Agent struct {
	opt      Options
	part     Part
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

	mu    sync.Mutex
	moved chan struct{} // closed, and replaced, when holds or done have changed
	holds map[Digest]*hold
	// freed are the last ones that are not held any more, oldest at next.
	freed [1024]Digest
	next  int
	ranks []Address
	// fetching ends the fetches under way, by their numbers; forsaken are the last numbers that
	// were cancelled while there was none, oldest at lost.
	fetching map[uint64]context.CancelFunc
	forsaken [64]uint64
	lost     int
}

// hold is what an agent hands out for one transfer.
type hold struct {
	Hold
	// ranks are those of the peer that have what they need, of so many.
	ranks map[int]bool
	// handed is closed when all have, or the hold is freed; over says that it is.
	handed chan struct{}
	over   bool
	// readers are the connections that read.
	readers map[net.Conn]bool
}

// Hold is what a driver tells its ranks to hand out.
type Hold struct {
	Secret Secret   `json:"secret"`
	Blocks []uint32 `json:"blocks"`
	// Digest names the contents up to the end of Blocks.
	Digest Digest `json:"digest"`
	// Plan is the last one that writes to them.
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
	a := &Agent{opt: o, part: o.Shape.Part(o.Rank), listener: l, cert: handshake.ServerTLS(cert),
		address: Address{Host: o.Host, Port: at.Port, Fingerprint: fingerprint},
		peers:   make(chan struct{}, maxPeers), moved: make(chan struct{}),
		holds:    map[Digest]*hold{},
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

// Know tells the agent where those of all ranks of its engine are.
func (a *Agent) Know(ranks []Address) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ranks = ranks
}

// Executed tells that the rank has executed a plan: what it was to write is there.
func (a *Agent) Executed(plan uint64) {
	a.done.Store(plan)
	if a.waiters.Load() > 0 {
		a.mu.Lock()
		a.wake()
		a.mu.Unlock()
	}
}

// wake lets those look again that wait. The caller holds mu.
func (a *Agent) wake() {
	close(a.moved)
	a.moved = make(chan struct{})
}

// await waits until f, which is called with mu held, says so.
func (a *Agent) await(ctx context.Context, f func() bool) error {
	a.waiters.Add(1)
	defer a.waiters.Add(-1)
	for {
		a.mu.Lock()
		ok, moved := f(), a.moved
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

// Hold hands out blocks until Free.
func (a *Agent) Hold(h Hold) error {
	for _, b := range h.Blocks {
		if int64(b) >= int64(a.opt.Blocks) {
			return fmt.Errorf("hold block %d of %d", b, a.opt.Blocks)
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.holds[nameOf(h.Secret)] = &hold{Hold: h, ranks: map[int]bool{},
		handed: make(chan struct{}), readers: map[net.Conn]bool{}}
	a.wake()
	return nil
}

// nameOf is the key of a transfer: that of a map must not be compared with what peers send.
func nameOf(s Secret) Digest { return sha256.Sum256(s[:]) }

// Handed waits until all ranks of the peer have what they need of a transfer, the transfer is
// freed, or ctx ends. It reports whether the peer has all.
func (a *Agent) Handed(ctx context.Context, s Secret) bool {
	a.mu.Lock()
	h := a.holds[nameOf(s)]
	a.mu.Unlock()
	if h == nil {
		return false
	}
	select {
	case <-h.handed:
		a.mu.Lock()
		defer a.mu.Unlock()
		return !h.over
	case <-ctx.Done():
	case <-a.life.Done():
	}
	return false
}

// Free ends the hand-out of a transfer, and returns when no peer reads its blocks any more: reads
// under way are cut off.
func (a *Agent) Free(s Secret) {
	a.mu.Lock()
	h := a.holds[nameOf(s)]
	if h == nil {
		a.mu.Unlock()
		return
	}
	delete(a.holds, nameOf(s))
	a.freed[a.next] = nameOf(s)
	a.next = (a.next + 1) % len(a.freed)
	a.wake()
	if h.over = true; !closed(h.handed) {
		close(h.handed)
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
