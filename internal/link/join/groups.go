package join

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/eagleray/eagleray/internal/link/collective"
	"github.com/eagleray/eagleray/internal/link/collective/hosts"
	"github.com/eagleray/eagleray/internal/link/collective/shm"
	"github.com/eagleray/eagleray/internal/link/collective/tcp"
	"github.com/eagleray/eagleray/internal/link/layout"
)

// Group exchanges tensors between the ranks of one dimension of the layout; a rank's number in it
// is its place in that dimension. A call that fails ends the group; its error is a
// *collective.Error. Calls are serialised, but for Abort and Close.
type Group interface {
	// AllReduce replaces x by its sum over the ranks, added as a balanced binary tree over ranks.
	AllReduce(x []float32) error
	// AllGather concatenates x of all ranks, in rank order, into dst.
	AllGather(dst, x []float32) error
	// Gather concatenates x of all ranks, in rank order, into dst on root.
	Gather(dst, x []float32, root int) error
	// AllToAllV moves a run of elements from every rank to every rank: x is this rank's, counts are
	// their lengths. It returns those for this one, in the memory of dst if that has room, and sets
	// got to their lengths. AllToAll does so where a rank knows the lengths that come.
	AllToAllV(dst, x []float32, counts, got []int, meanwhile func()) ([]float32, error)
	AllToAll(dst, x []float32, counts, lengths []int) error
	// Broadcast sets b on every rank to the root's.
	Broadcast(b []byte, root int) error
	// Send sends b to another rank, which receives it by Recv into as many bytes, and before the
	// next operation that all ranks take part in. It returns when b is copied, which waits while
	// collective.MessageBuffer has not been received.
	Send(b []byte, to int) error
	// Recv sets b to the next message from another rank, which must be of its length.
	Recv(b []byte, from int) error
	// Guard sets a hash that must be equal on ranks that meet in a following operation: another one
	// fails it at once, with an error that wraps collective.ErrMismatch and names both.
	Guard(h uint64)
	// Abort ends every operation under way and to come, on all ranks.
	Abort(cause error)
	Close() error
}

// Groups are the communicators of a rank, one for each dimension of the layout, nil for those of
// size 1: two ranks meet in one at most. Sums need 1, 2, 4 or 8 ranks; the other operations any
// number.
type Groups struct{ TP, PP, PCP, DP Group }

// all returns the groups that are not nil.
func (g Groups) all() []Group {
	return slices.DeleteFunc([]Group{g.TP, g.PP, g.PCP, g.DP},
		func(g Group) bool { return g == nil })
}

// Close leaves all groups.
func (g Groups) Close() error {
	var errs []error
	for _, group := range g.all() {
		errs = append(errs, group.Close())
	}
	return errors.Join(errs...)
}

// Abort ends every operation of every group.
func (g Groups) Abort(cause error) {
	for _, group := range g.all() {
		group.Abort(cause)
	}
}

func (g *Groups) set(d dimension, group Group) {
	*[]*Group{tp: &g.TP, pp: &g.PP, pcp: &g.PCP, dp: &g.DP}[d] = group
}

// Groups makes this rank's communicators, once. The end of the driver aborts them; the caller
// closes them. moved, if not nil, counts the received pieces of long messages.
func (r *Rank) Groups(moved *atomic.Uint64) (Groups, error) {
	var groups Groups
	for _, c := range r.communicators {
		g, err := c.join(r.timeout, r.neighbours, moved)
		if err != nil {
			return Groups{}, errors.Join(err, groups.Close())
		}
		groups.set(c.dimension, g)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.groups = groups
	if r.ended {
		groups.Abort(errors.New("the driver is gone"))
	}
	return groups, nil
}

// join makes the group of a communicator: in memory when all its ranks are on one host, of
// connections when each is on another, else of both.
func (c *communicator) join(
	timeout time.Duration, neighbours int, moved *atomic.Uint64,
) (Group, error) {
	defer c.close()
	const most = collective.MessageBytes
	if c.hosts == 1 {
		o := shm.Options{Timeout: timeout, Names: c.ranks, Neighbours: neighbours}
		return o.Join(c.memory, c.at, len(c.ranks), most)
	}
	var g Group
	var err error
	if c.hosts == len(c.ranks) {
		o := tcp.Options{MaxBytes: most, Timeout: timeout, Names: c.ranks, Moved: moved}
		g, err = tcp.Join(c.conns, c.at, o)
	} else {
		o := hosts.Options{MaxBytes: most, Timeout: timeout, Names: c.ranks,
			Neighbours: neighbours, Moved: moved}
		g, err = hosts.Join(c.memory, c.local, c.conns, c.at, o)
	}
	if err != nil {
		return nil, err
	}
	c.conns = nil // the group closes them
	return g, nil
}

// InProcess makes the communicators of every rank of a layout, all in this process: for launchers
// that run ranks as goroutines, and for tests. Each rank runs on a goroutine of its own and closes
// its own groups; a rank that fails aborts them, since no other rank notices its end. timeout is as
// in Options.CollectiveTimeout.
func InProcess(l layout.Layout, timeout time.Duration) ([]Groups, error) {
	ranks := make([]Groups, l.World())
	fail := func(err error) ([]Groups, error) {
		for _, g := range ranks {
			err = errors.Join(err, g.Close())
		}
		return nil, fmt.Errorf("communicators of %v in one process: %w", l, err)
	}
	for rank := range ranks {
		for _, c := range communicators(l, rank) {
			if c.at != 0 {
				continue // the first of its ranks joins them all
			}
			memory, err := shm.Create(len(c.ranks), collective.MessageBytes)
			if err != nil {
				return fail(err)
			}
			for place, member := range c.ranks {
				o := shm.Options{Timeout: timeout, Names: c.ranks, Neighbours: l.World()}
				g, err := o.Join(memory, place, len(c.ranks), collective.MessageBytes)
				if err != nil {
					memory.Close()
					return fail(err)
				}
				ranks[member].set(c.dimension, g)
			}
			if err := memory.Close(); err != nil {
				return fail(err)
			}
		}
	}
	return ranks, nil
}

var (
	_ Group = (*shm.Group)(nil)
	_ Group = (*tcp.Group)(nil)
	_ Group = (*hosts.Group)(nil)
)
