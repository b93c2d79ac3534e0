package cuda

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cuda/driver"
	"github.com/eagleray/eagleray/internal/compute/cuda/kernels"
)

// meetTimeout bounds how long ranks wait for each other in NCCL as a group begins. It is less than
// hosts wait for each other: those that were not held up are still there to be told.
const meetTimeout = 30 * time.Second

// lookEvery is how often a communicator is asked whether it has failed: NCCL itself has what is
// enqueued wait for good.
const lookEvery = time.Second

// communicator is ranks that exchange by NCCL, until it ends.
type communicator struct {
	driver.Communicator
	version int
	over    atomic.Bool
	why     atomic.Pointer[error] // what it ended by, nil for the group's end
	aborts  sync.WaitGroup
}

// end has nothing wait any more; err is why, nil for the group's end. Graphs that exchange may be
// there still: the communicator is gone when they are, and aborts.Wait returns.
func (x *communicator) end(err error) {
	if err != nil {
		x.why.CompareAndSwap(nil, &err)
	}
	if !x.over.Swap(true) {
		x.aborts.Go(x.Abort)
	}
}

// ended is compute.ErrEnded, and why, once what was exchanged is not to be used.
func (x *communicator) ended() error {
	if !x.over.Load() {
		return nil
	}
	if why := x.why.Load(); why != nil {
		return fmt.Errorf("%w: %w", compute.ErrEnded, *why)
	}
	return compute.ErrEnded
}

// joinNCCL makes a communicator of all ranks, whose windows were refused, or adds to Why what is in
// the way. The error is the group's, or the device's.
func (c *Comm) joinNCCL(own *offer, offers []offer, ended <-chan struct{}) error {
	d := c.d
	local := oneMachine(offers)
	own.Why, own.Late = [len(own.Why)]byte{}, 0
	library, err := c.openNCCL(own, local)
	if err != nil {
		own.refuse(err)
	}
	if offers, err = c.exchange(own); err != nil {
		return err
	}
	steps := []func() error{
		func() error { return sameVersion(offers) },
		func() error { return c.enter(library, offers[0].ID, local, ended) },
		func() error {
			x := c.joined
			return c.try("NCCL", func() { x.end(errLate) })
		},
	}
	for _, step := range steps {
		if refusal(offers) != "" {
			break
		}
		if err := step(); err != nil {
			own.refuse(err)
		}
		if d.err != nil {
			return d.err // which ends the group
		}
		if offers, err = c.exchange(own); err != nil {
			return err
		}
	}
	if why := refusal(offers); why != "" {
		c.why += "; without NCCL: " + why
		c.leaveNCCL()
		return d.err
	}
	c.look(c.joined, c.left)
	return d.err
}

// errLate is what a trial ends by.
var errLate = errors.New("it did not end")

// late says that a rank only waited for others.
func late(err error) bool {
	return errors.Is(err, errLate) || errors.Is(err, context.DeadlineExceeded)
}

// oneMachine says whether all ranks run in the same boot of a machine.
func oneMachine(offers []offer) bool {
	for r := range offers {
		if offers[r].Machine == (offer{}).Machine || offers[r].Machine != offers[0].Machine {
			return false
		}
	}
	return true
}

// openNCCL opens the library, and says of this rank what others need; the error is why it cannot.
func (c *Comm) openNCCL(own *offer, local bool) (driver.NCCL, error) {
	if c.d.nccl.Open == nil {
		return nil, errors.New("it is left out")
	}
	if !local && !c.d.nccl.Between {
		return nil, errors.New("it does not encrypt, and is between machines only where " +
			"EAGLERAY_NCCL names it")
	}
	library, err := c.d.nccl.Open()
	if err != nil {
		return nil, err
	}
	own.Version = uint32(library.Version())
	if c.rank == 0 {
		own.ID, err = library.ID(local)
	}
	return library, err
}

// sameVersion wants one version of all ranks: NCCL does not promise that others understand it.
func sameVersion(offers []offer) error {
	for r := range offers {
		if a, b := offers[0].Version, offers[r].Version; a != b {
			return fmt.Errorf("rank 0 has version %s, rank %d %s", driver.NCCLVersion(int(a)), r,
				driver.NCCLVersion(int(b)))
		}
	}
	return nil
}

// enter makes this rank one of the communicator.
func (c *Comm) enter(library driver.NCCL, id driver.CommID, local bool,
	ended <-chan struct{}) error {
	ctx, cancel := context.WithTimeout(context.Background(), meetTimeout)
	defer cancel()
	done := make(chan struct{})
	c.watching.Go(func() {
		select {
		case <-ended:
			cancel()
		case <-done:
		}
	})
	defer close(done)
	m, err := library.Join(ctx, c.d.ctx, id, c.rank, c.size, local)
	if err != nil {
		return err
	}
	x := &communicator{Communicator: m, version: library.Version()}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.joined = x
	if c.gone {
		x.end(nil)
	}
	return nil
}

// look ends a communicator that has failed, until the rank has left it.
func (c *Comm) look(x *communicator, left <-chan struct{}) {
	c.watching.Go(func() {
		tick := time.NewTicker(lookEvery)
		defer tick.Stop()
		for {
			select {
			case <-left:
				return
			case <-tick.C:
			}
			if err := x.Failed(); err != nil {
				x.end(err)
				return
			}
		}
	})
}

// leaveNCCL ends this rank's communicator, if it has one.
func (c *Comm) leaveNCCL() {
	if c.joined == nil {
		return
	}
	c.joined.end(nil)
	c.d.wait()
	c.d.dropGraphs()
	if c.d.err == nil { // a device that is lost keeps its graphs, and ends with the process
		c.joined.aborts.Wait()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.joined = nil
}

// allGather makes dst the floats of all ranks.
func (c *Comm) allGather(dst, src driver.Ptr, floats int) error {
	return c.byNCCL(func() error { return c.joined.AllGather(dst, src, floats, c.d.stream) })
}

// byNCCL enqueues an exchange.
func (c *Comm) byNCCL(exchange func() error) error {
	d := c.d
	d.flush()
	if d.err != nil {
		return d.err
	}
	d.count(1)
	if err := exchange(); err != nil {
		c.joined.end(err)
	}
	return c.joined.ended()
}

// mostGathered is how many floats of all ranks a sum gathers at a time, fewestDivided from how many
// on a rank adds those of its share alone.
const (
	mostGathered  = 8 << 20
	fewestDivided = 1 << 18
)

// sumDivided sums n floats: each rank gets what all have of its share, adds that, and gives the
// sums to all. So less than twice the numbers come to a rank, where it gathers size−1 times them.
func (c *Comm) sumDivided(x driver.Ptr, n int) error {
	share := n / c.size
	parts := c.parts.grow(c.d, 4*n)
	err := c.byNCCL(func() error { return c.joined.AllToAll(parts, x, share, c.d.stream) })
	if err != nil {
		return err
	}
	own := x + driver.Ptr(4*c.rank*share)
	elements(c.d, kernels.SumChunks, share, kernels.SumChunksParams{Parts: parts, Y: own,
		Chunks: int32(c.size), Rows: 1, Width: int32(share), LDY: int32(share)})
	return c.allGather(x, own, share)
}

// sumGathered sums x over the ranks: each gathers the parts of all, or of its share, and adds them
// by the tree that adds the chunks of a product. NCCL's own sums have an order that depends on
// their size.
func (c *Comm) sumGathered(x *compute.Tensor) error {
	d, m := c.d, of(x.Memory)
	d.flush()
	defer m.written()
	if n := x.Rows * x.Width; c.size > 2 && n >= fewestDivided && n%c.size == 0 {
		return c.sumDivided(m.values, n)
	}
	most := max(1, mostGathered/(c.size*x.Width))
	for from := 0; from < x.Rows; from += most {
		rows := min(most, x.Rows-from)
		n := rows * x.Width
		own := m.values + driver.Ptr(4*from*x.Width)
		parts := c.parts.grow(d, 4*c.size*n)
		if err := c.allGather(parts, own, n); err != nil {
			return err
		}
		if rows == x.Rows {
			d.pending = pending{sums: m, parts: parts, chunks: c.size, rows: rows, width: x.Width}
			return nil
		}
		elements(d, kernels.SumChunks, n, kernels.SumChunksParams{Parts: parts, Y: own,
			Chunks: int32(c.size), Rows: int32(rows), Width: int32(x.Width),
			LDY: int32(x.Width)})
	}
	return nil
}

// gatherAll gathers the rows of x into dst on root; the others, which get them too, have no use for
// them.
func (c *Comm) gatherAll(dst, x *compute.Tensor) error {
	d := c.d
	d.flush()
	n := x.Rows * x.Width
	if dst == nil {
		return c.allGather(c.parts.grow(d, 4*c.size*n), at(x.Memory), n)
	}
	of(dst.Memory).written()
	return c.allGather(at(dst.Memory), at(x.Memory), n)
}
