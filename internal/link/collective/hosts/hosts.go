// Package hosts runs collective operations between ranks of several hosts, of which some share one:
// those of a host exchange through shared memory, those of different hosts over the connection
// between them.
//
// Each operation is one between hosts, then one within each host: every rank has what it needs from
// where. In that order a rank that waits within its host has sent to all others what they wait for,
// so that a timeout names the ranks that are late and no others. There are connections between the
// ranks of a host too, for notices of an abort only: a rank that waits long, in either way, watches
// them all. Sums are added by each rank that
// needs them, in the order of collective.SumTree: the bits are those of a group on one host.
package hosts

import (
	"errors"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/eagleray/eagleray/internal/link/collective"
	"github.com/eagleray/eagleray/internal/link/collective/shm"
	"github.com/eagleray/eagleray/internal/link/collective/tcp"
)

// Group is one rank's membership in a group, with the operations of shm.Group and tcp.Group and
// what these say of them.
type Group struct {
	rank, ranks int
	names       collective.Names
	far         *tcp.Group
	near        *shm.Group // nil for a rank that is alone on its host
	// local are the ranks of this host, this one included, in their order in near; places has the
	// place of each rank there, -1 for those of other hosts.
	local, places []int

	// mu is held during an operation and guards the memory below it.
	mu    sync.Mutex
	all   []float32   // of all ranks, one after the other
	host  []float32   // from the ranks of this host
	to    []float32   // for the ranks of this host
	own   []float32   // this rank's part of a sum
	parts [][]float32 // of a sum
	// Lengths of runs: equal ones of all ranks, and for and from the ranks of this host.
	equal, counts, got []int
}

// Options are choices of one rank; the zero value is the default.
type Options struct {
	// MaxBytes is that of the shared memory, as given to shm.Create, and of tcp.Options.
	MaxBytes int
	// Timeout bounds every wait for another rank, as that of the two transports.
	Timeout time.Duration
	// Names are what errors call the ranks, if not by their numbers in the group.
	Names collective.Names
	// Neighbours are those of shm.Options.
	Neighbours int
	// Moved is that of tcp.Options.
	Moved *atomic.Uint64
}

// Join makes this process, or goroutine, the given rank of a group. conns has a connection to each
// other rank, as tcp.Join wants it. Those of this host are local, in their order, this rank among
// them; memory is from shm.Create for so many ranks, and nil where there is only one. Join keeps
// nothing of it; the group owns the connections unless Join fails. All ranks of a group join it so,
// even one that is alone on its host.
func Join(memory *os.File, local []int, conns []net.Conn, rank int, o Options) (*Group, error) {
	g := &Group{rank: rank, ranks: len(conns), names: o.Names, local: local,
		places: make([]int, len(conns)), parts: make([][]float32, len(conns)),
		equal: make([]int, len(conns)), counts: make([]int, len(local)),
		got: make([]int, len(local))}
	for p := range g.places {
		g.places[p] = slices.Index(local, p)
	}
	var err error
	if memory != nil {
		near := shm.Options{Timeout: o.Timeout, Neighbours: o.Neighbours,
			OnWait: func() { g.far.Watch() }}
		for _, p := range local {
			near.Names = append(near.Names, o.Names.Of(p))
		}
		g.near, err = near.Join(memory, slices.Index(local, rank), len(local), o.MaxBytes)
		if err != nil {
			return nil, err
		}
	}
	far := tcp.Options{MaxBytes: o.MaxBytes, Timeout: o.Timeout, Names: o.Names, Quiet: local,
		Moved: o.Moved}
	if g.near != nil {
		far.OnEnd = g.near.Abort
	}
	if g.far, err = tcp.Join(conns, rank, far); err == nil {
		return g, nil
	}
	if g.near != nil {
		err = errors.Join(err, g.near.Close())
	}
	return nil, err
}

// Rank returns this rank's number.
func (g *Group) Rank() int { return g.rank }

// Ranks returns the size of the group.
func (g *Group) Ranks() int { return g.ranks }

// Guard sets what travels with every following operation.
func (g *Group) Guard(h uint64) {
	g.far.Guard(h)
	if g.near != nil {
		g.near.Guard(h)
	}
}

// Abort ends the group for all ranks.
func (g *Group) Abort(cause error) {
	g.far.Abort(cause)
	if g.near != nil {
		g.near.Abort(cause)
	}
}

// Close leaves the group. An operation under way here is aborted.
func (g *Group) Close() error {
	if g.near == nil {
		return g.far.Close()
	}
	return errors.Join(g.near.Close(), g.far.Close())
}

// do does an operation, and turns a failure into what the caller sees. One on one of the ways ends
// both, since some ranks notice only the one, and some only the other.
func (g *Group) do(op collective.Op, f func() error) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	err := f()
	if err == nil {
		return nil
	}
	failure := g.names.Failed(op, g.rank, err)
	if way := (*collective.Error)(nil); errors.As(err, &way) {
		// Not the operation of which this one is made; the ways keep their error.
		failure.Missing, failure.Err = way.Missing, way.Err
	}
	g.Abort(failure)
	return failure
}

// resize returns x with n elements, whatever they are.
func resize(x *[]float32, n int) []float32 {
	if cap(*x) < n {
		*x = make([]float32, n)
	}
	return (*x)[:n]
}
