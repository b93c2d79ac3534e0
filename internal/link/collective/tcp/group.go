// Package tcp runs collective operations between the ranks of several nodes over one stream per
// pair of ranks, usually TLS over TCP.
//
// Every operation is a step: each rank sends one message to every other rank, empty where the other
// needs no data, and every message names its step. So each rank learns of each that it is in the
// same operation, one that runs ahead is at most a step ahead, and a stream's end is noticed
// wherever it matters. A message is one or more frames of a fixed header and a payload. The
// receiver knows both before it reads: it compares the header and takes no length from it, but that
// of a run of an all-to-all, within a limit.
//
// # Small messages
//
// At decode a message has a few kilobytes and latency is all. The calling goroutine writes to each
// peer with one write, then reads from each with one read; no other goroutine takes part, and
// deadlines are renewed only when half used. Writing before reading cannot block: a rank is at most
// one step ahead, so two small messages at most are under way, which a socket's send buffer holds.
// Connections for which that is not certain (not TCP, or a small buffer) are written to by their
// writer goroutine.
//
// Waits do not spin, unlike those in shared memory. A look at a socket is a system call (FIONREAD),
// and between hosts a message takes longer than spin.Shared allows; between two processes of one
// host, where it does not, all-reduces of 1 KB took 1.07 to 1.40 times a bare exchange over the
// same kind of connection with that policy before each read, and 1.01 to 1.04 without; of 16 KB
// 1.14 to 1.17 and 1.08 over TCP, and as much over TLS (BenchmarkAllReduce, a busy machine of 2
// cores).
//
// A caller blocked in one stream would not see a notice of an abort in another. So after a few
// milliseconds, when a hand-over costs nothing any more, it gives all streams to their reader
// goroutines and waits for whatever comes first; they keep watch until the caller drains them.
//
// # Large messages
//
// Each stream has a reader and a writer goroutine, so that reading never waits for writing. Large
// all-reduces are a reduce-scatter and an all-gather, in pieces, the one of a piece under way
// during the other of the next.
//
// # Runs
//
// In an all-to-all every message has a length of its own, in the tag of its step, which its
// receiver learns from the header; where it goes depends on those of the ranks before. So a rank
// sends all its messages, reads the headers of all others' in the calling goroutine, or finds them
// where its readers, who keep watch, have left them, and then receives each message straight into
// its place: small ones by itself, if all are. If a header does not come in a few milliseconds, all
// messages go through the readers and memory of their own: then what ranks that are in time have
// sent is read while the late one is waited for, and so is the notice of an abort behind it.
// Messages are sent before anything is waited for, the long ones by the writers, so that ranks
// cannot wait for each other in a circle; nor can they where a small one is written to a socket
// that is full, which is checked after a long one.
//
// # Messages
//
// Send and Recv use the same streams, one way each, in the order of the calls: what is sent before
// a collective operation must be received before it. A connection of their own would spare that
// rule, which no user of a group feels, and cost each pair of ranks a second TLS session, its
// buffers and its two goroutines. A small message is written by the caller if the socket has room
// for it, as the kernel says (SIOCOUTQ); others are copied for the writer goroutine, up to
// collective.MessageBuffer.
//
// # Ending
//
// A rank that fails or aborts sends every other rank an abort notice in the stream, between two
// frames. Ranks pass a notice on, because some streams may be blocked. The end of a stream means
// that its rank has left.
package tcp

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/eagleray/eagleray/internal/link/collective"
)

// DefaultTimeout is how long a rank waits for another when Options says nothing.
const DefaultTimeout = 60 * time.Second

// patience is how long the caller of a small operation reads one stream before it has all of them
// watched.
const patience = 5 * time.Millisecond

// Options are choices of one rank; the zero value is the default.
type Options struct {
	// MaxBytes is the largest all-reduce, in bytes, for which memory is set aside at once; the
	// first larger one allocates. It is not a limit and need not be the same on all ranks.
	MaxBytes int
	// Timeout bounds every wait for another rank; DefaultTimeout if zero. A small operation may
	// wait a quarter longer.
	Timeout time.Duration
	// Names are what errors call the ranks, if not by their numbers in the group.
	Names collective.Names
	// Quiet are the ranks that operations leave out although there is a connection to them: it
	// carries notices of an abort only.
	Quiet []int
	// Moved, if not nil, counts received pieces of long messages until Close returns. The driver
	// reads it to tell a slow network from a stall.
	Moved *atomic.Uint64
	// OnEnd, if not nil, is called when the group has been aborted, with the error of later
	// operations. It must not wait for the group.
	OnEnd func(error)
}

// Group is one rank's membership in a group. Operations are collective: every rank calls the same
// ones in the same order with the same sizes. Calls on one Group are serialised; Abort and Close
// may be called at any time from any goroutine. No operation over plain TCP allocates unless it
// fails, waits long, or is larger than announced, but AllToAllV if dst is too small. A failed
// operation ends the group for all ranks; its error is a *collective.Error.
type Group struct {
	rank, ranks int
	timeout     time.Duration
	names       collective.Names
	onEnd       func(error)
	moved       *atomic.Uint64 // or nil
	peers       []*peer        // of the ranks with a connection, starting with the next
	byRank      []*peer        // nil for those that operations leave out
	readers     sync.WaitGroup
	writers     sync.WaitGroup

	// events has something whenever a reader or writer got on, or the group ended.
	events chan struct{}
	ended  atomic.Bool
	why    atomic.Pointer[abort]

	// mu is held during an operation and guards the fields below it.
	mu      sync.Mutex
	seq     uint64
	guard   uint64
	most    int              // elements that come in an all-to-all
	soon    *time.Timer      // of a short wait; stopped
	small   []byte           // a small message and its header
	empty   [headerSize]byte // an empty message
	scratch [][]byte         // by rank
	parts   [][]float32      // by rank
	failed  error
	closed  atomic.Bool
}

// abort is the cause of the group's end: an error of this rank, or the text of another rank's
// notice.
type abort struct {
	rank  int
	text  string
	cause error
}

// Join makes a group of len(conns) ranks, of which the caller is the given one. conns has an
// authenticated connection to each other rank, with nothing read or written that belongs to the
// group, and nil for the rank itself. It may be nil for other ranks too, on both sides: operations
// then leave these out, and sums of the group are refused. The group owns the connections from then
// on and closes them; they stay the caller's if Join fails. TCP connections are set to send without
// delay. For TLS, tls.Config.DynamicRecordSizingDisabled spares the first 128 KiB of a connection
// from going in records of 1.4 KB.
func Join(conns []net.Conn, rank int, o Options) (*Group, error) {
	ranks := len(conns)
	if err := collective.CheckMembers(ranks); err != nil {
		return nil, err
	}
	if rank < 0 || rank >= ranks {
		return nil, fmt.Errorf("rank %d of a collective group of %d", rank, ranks)
	}
	if conns[rank] != nil {
		return nil, fmt.Errorf("rank %d of a collective group of %d has a connection to itself",
			rank, ranks)
	}
	g := &Group{rank: rank, ranks: ranks, timeout: o.Timeout, names: o.Names, onEnd: o.OnEnd,
		moved: o.Moved, most: collective.MaxExchange, soon: time.NewTimer(patience),
		events: make(chan struct{}, 1), byRank: make([]*peer, ranks),
		scratch: make([][]byte, ranks), parts: make([][]float32, ranks)}
	g.soon.Stop()
	if g.timeout <= 0 {
		g.timeout = DefaultTimeout
	}
	for i := 1; i < ranks; i++ { // ranks start with different ones
		p := (rank + i) % ranks
		if conns[p] == nil {
			continue
		}
		peer, err := newPeer(g, p, conns[p])
		if err != nil {
			return nil, fmt.Errorf("connection to rank %d of the collective group: %w", p, err)
		}
		g.peers = append(g.peers, peer)
		if peer.quiet = slices.Contains(o.Quiet, p); !peer.quiet {
			g.byRank[p] = peer
		}
	}
	if len(g.peers) > 0 {
		g.small = make([]byte, headerSize+smallBytes)
		g.reserve(max(o.MaxBytes, smallBytes))
	}
	for _, p := range g.peers {
		g.readers.Go(p.readLoop)
		g.writers.Go(p.writeLoop)
	}
	return g, nil
}

// Rank returns this rank's number.
func (g *Group) Rank() int { return g.rank }

// Ranks returns the size of the group.
func (g *Group) Ranks() int { return g.ranks }

// Guard sets the hash that travels with every following operation of this rank: ranks that meet in
// one with different guards fail it at once, with an error that wraps collective.ErrMismatch. It is
// a hash of what they must have in common.
func (g *Group) Guard(h uint64) {
	g.mu.Lock()
	g.guard = h
	g.mu.Unlock()
}

// Abort ends the group: the waits of every rank, here and elsewhere, return an error that wraps
// collective.ErrAborted (here also the cause; elsewhere its text), and so do all later operations.
// Each rank keeps the first cause it receives. Abort does not wait until the other ranks are
// notified, and does nothing after Close.
func (g *Group) Abort(cause error) {
	if cause == nil {
		cause = errors.New("no cause given")
	}
	if g.closed.Load() {
		return
	}
	g.finish(&abort{rank: g.rank, text: cause.Error(), cause: cause})
}

// finish ends the group, if it has not ended, and lets the writers send the cause to the other
// ranks.
func (g *Group) finish(a *abort) {
	if !g.why.CompareAndSwap(nil, a) {
		return
	}
	// A reader renews its deadline, then looks at this flag: in either order of the two it stops.
	g.ended.Store(true)
	for _, p := range g.peers {
		p.interrupt()
		select {
		case p.notices <- struct{}{}:
		default:
		}
	}
	g.notify()
	if g.onEnd != nil {
		g.onEnd(g.abortCause())
	}
}

// Watch reads abort notices of other ranks until the next operation, while this rank waits for
// something else.
func (g *Group) Watch() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.closed.Load() {
		g.postToReaders(nil)
	}
}

// abortCause says why the group was aborted.
func (g *Group) abortCause() error {
	a := g.why.Load()
	if a.cause != nil {
		return fmt.Errorf("%w: %w", collective.ErrAborted, a.cause)
	}
	return fmt.Errorf("%w by rank %d: %w", collective.ErrAborted, g.names.Of(a.rank),
		errors.New(a.text))
}

// notify wakes the caller that waits for readers and writers.
func (g *Group) notify() {
	select {
	case g.events <- struct{}{}:
	default:
	}
}

// do does an operation, unless the group has ended. It turns a failure into what the caller sees,
// and into the group's.
func (g *Group) do(op collective.Op, f func() error) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	err := g.failed
	switch {
	case g.closed.Load():
		err = collective.ErrClosed
	case err == nil && g.ended.Load():
		err = g.abortCause()
	}
	if err != nil {
		return g.names.Failed(op, g.rank, err)
	}
	if err = f(); err == nil {
		return nil
	}
	failure := g.names.Failed(op, g.rank, err)
	g.failed = failure.Err
	g.Abort(failure)
	g.awaitBuffers()
	return failure
}

// awaitBuffers returns when no goroutine uses the caller's memory. The group has ended, so the
// readers are stopping; a writer may be stuck, but only with a copy.
func (g *Group) awaitBuffers() {
	for _, p := range g.peers {
		p.awaitCopy()
	}
	for _, p := range g.peers {
		for p.received.Load() != p.posted {
			<-g.events
		}
	}
}
