package shm

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/eagleray/eagleray/internal/link/collective"
	"github.com/eagleray/eagleray/internal/sys/spin"
)

// DefaultTimeout is how long a rank waits for another when Options says nothing.
const DefaultTimeout = 60 * time.Second

// Options are choices of one rank; the zero value is the default.
type Options struct {
	// Timeout bounds every wait for another rank; DefaultTimeout if zero.
	Timeout time.Duration
	// Names are what errors call the ranks, if not by their numbers in the group.
	Names collective.Names
	// Neighbours is how many ranks run on this host, of whatever groups, if more than this one's: a
	// wait spins only while each may have a processor.
	Neighbours int
	// OnWait, if not nil, is called from an operation that has waited for some milliseconds.
	OnWait func()
}

// patience is how long an operation waits before it calls Options.OnWait.
const patience = 5 * time.Millisecond

// Group is one rank's membership in a group. Operations are collective: every rank calls the same
// ones in the same order with the same sizes. Calls on one Group are serialised; Abort and Close
// may be called at any time from any goroutine. No operation allocates unless it fails, but
// AllToAllV if dst is too small. A failed operation ends the group for all ranks; its error is a
// *collective.Error. Send and Recv concern two ranks only, and keep their order among themselves.
type Group struct {
	rank, ranks int
	timeout     time.Duration
	names       collective.Names
	onWait      func()
	seg         *segment
	peers       []*mark // of all ranks, this one included
	ins, outs   []ring  // of all ranks, this one included
	parts       [collective.MaxRanks][]float32
	runs        []run // from all ranks, in an all-to-all

	// mu is held during an operation and guards the fields below it.
	mu       sync.Mutex
	seq      uint32 // of the last step, in units of seqUnit
	last     stamp  // of the last step
	guard    uint64
	policy   spin.Policy // of waits for a step
	messages spin.Policy // of waits for a message
	timespec unix.Timespec
	failed   error

	// life guards the mapping against Close during Abort.
	life   sync.RWMutex
	closed bool
	cause  atomic.Pointer[error] // given to Abort here
}

// Join maps the segment and makes this process, or goroutine, the given rank of it, with default
// Options. The ranks may be in one process: each joins with a mapping of its own. ranks and
// maxBytes are those given to Create. It keeps nothing of the file, which the caller may close. A
// rank can be joined only once in the life of a segment.
func Join(f *os.File, rank, ranks, maxBytes int) (*Group, error) {
	return Options{}.Join(f, rank, ranks, maxBytes)
}

// Join is the function Join with these options.
func (o Options) Join(f *os.File, rank, ranks, maxBytes int) (*Group, error) {
	if err := checkLayout(ranks, maxBytes); err != nil {
		return nil, err
	}
	if rank < 0 || rank >= ranks {
		return nil, fmt.Errorf("rank %d of a collective group of %d", rank, ranks)
	}
	seg, err := open(f, ranks, maxBytes)
	if err != nil {
		return nil, err
	}
	if !seg.mark(rank).joined.CompareAndSwap(0, 1) {
		err := fmt.Errorf("rank %d of the collective group has already joined", rank)
		return nil, errors.Join(err, seg.unmap())
	}
	policy := spin.NewPolicy(max(ranks, o.Neighbours), spin.Shared)
	g := &Group{rank: rank, ranks: ranks, timeout: o.Timeout, names: o.Names, onWait: o.OnWait,
		seg: seg, runs: make([]run, ranks), policy: policy, messages: policy}
	if g.timeout <= 0 {
		g.timeout = DefaultTimeout
	}
	for p := range ranks {
		g.peers = append(g.peers, seg.mark(p))
		g.ins = append(g.ins, newRing(seg, p, rank))
		g.outs = append(g.outs, newRing(seg, rank, p))
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

// Abort ends the group: the waits of every rank, in this process and the others, return an error
// that wraps collective.ErrAborted (here also the cause; elsewhere its text), and so do all later
// operations. Only the first call in the group says why. It does nothing after Close.
func (g *Group) Abort(cause error) {
	if cause == nil {
		cause = errors.New("no cause given")
	}
	g.life.RLock()
	defer g.life.RUnlock()
	if g.closed {
		return
	}
	g.cause.CompareAndSwap(nil, &cause)
	g.seg.abort(g.rank, cause.Error())
	for p, m := range g.peers {
		m.end(flagAborted)
		for q := range g.ranks {
			written, read := g.seg.ringMarks(p, q)
			written.end(flagAborted)
			read.end(flagAborted)
		}
	}
}

// end sets a flag and wakes those that sleep on the mark.
func (m *mark) end(flag uint32) {
	m.word.Or(flag)
	m.wake()
}

// Close leaves the group and unmaps the segment. An operation under way here is aborted. Ranks that
// wait for this one, now or later, get collective.ErrLeft at once; those that have all they need
// from it go on.
func (g *Group) Close() error {
	if !g.mu.TryLock() {
		g.Abort(collective.ErrClosed)
		g.mu.Lock()
	}
	defer g.mu.Unlock()
	g.life.Lock()
	defer g.life.Unlock()
	if g.closed {
		return nil
	}
	g.closed = true
	g.peers[g.rank].end(flagLeft)
	for p := range g.ranks {
		g.outs[p].written.end(flagLeft)
		g.ins[p].read.end(flagLeft)
	}
	g.peers, g.ins, g.outs = nil, nil, nil
	return g.seg.unmap()
}

// do does an operation, unless the group has ended. It turns a failure into what the caller sees,
// and into the group's.
func (g *Group) do(op collective.Op, f func() error) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return g.names.Failed(op, g.rank, collective.ErrClosed)
	}
	if g.failed != nil {
		return g.names.Failed(op, g.rank, g.failed)
	}
	err := f()
	if err == nil {
		return nil
	}
	failure := g.names.Failed(op, g.rank, err)
	g.failed = failure.Err
	g.Abort(failure)
	return failure
}
