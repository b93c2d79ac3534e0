package cuda

import (
	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cuda/driver"
	"github.com/eagleray/eagleray/internal/compute/cuda/kernels"
)

// Places among which requests are divided have rows of their own, and share the experts of
// mixtures: each rank gets the rows of all places, computes what its experts make of them, and gets
// what all made of its own. No host counts what goes where: every place has room for as many rows
// as the largest has in the step, which all know from the plan; devices know how many there are.

// visitors are what ranks of several places exchange in.
type visitors struct {
	// divides says that the ranks have rows of their own.
	divides bool
	// back is what all ranks made of the rows of this one's place, lengths how much that is of
	// each, where kernels do not exchange.
	back    compute.Tensor
	lengths []int
	rows    []float32 // on the host
}

// NewPlaces is NewComm for a rank of each of several places.
func (d *Device) NewPlaces(rank, size int, host HostComm, group HostGroup) *Comm {
	c := d.NewComm(rank, size, host, group)
	c.divides, c.lengths = true, make([]int, size)
	return c
}

// GatherRows makes dst the rows of x of all ranks, of a width, with room for as many of each: where
// the devices exchange as products read them, so that only these may.
func (c *Comm) GatherRows(dst, x *compute.Tensor, width int) error {
	d, room := c.d, c.d.step.shape.room
	d.Resize(dst, c.size*room, width)
	m := of(dst.Memory)
	if !c.enqueues() {
		share := room * width
		all, from := dst.Floats(), c.rank*share
		copy(all[from:], x.Floats())
		c.rows = append(c.rows[:0], all[from:from+share]...)
		err := c.group.AllGather(all, c.rows)
		m.Filled()
		return err
	}
	from, to := at(x.Memory), m.values
	if d.dtype != compute.Float32 && width%2 == 0 {
		if x.Memory != nil {
			from = of(x.Memory).half(false)
		}
		to, width = m.half(true), width/2 // two numbers in the place of one
	}
	if c.windows != nil {
		p := kernels.RanksParams{Parts: from, Y: to}
		c.launchRows(kernels.GatherRows, p, room, width, x.Rows)
		return nil
	}
	share := room * width
	own := to + driver.Ptr(4*c.rank*share)
	elements(d, kernels.CopyRows, x.Rows*width, kernels.CopyRowsParams{X: from, Y: own,
		Count: int32(x.Rows), Width: int32(width), LDX: int32(width), LDY: int32(width)})
	return c.allGather(to, own, share)
}

// ScatterSums makes dst the sums of so many rows of this rank: parts are what its experts made of
// those of all, as Mix leaves them. They are cut as Mix cuts them where others are to be added.
func (c *Comm) ScatterSums(dst, parts *compute.Tensor, rows int, cut bool) error {
	d, room, width := c.d, c.d.step.shape.room, parts.Width
	have := rows
	if cut {
		have *= 2
	}
	d.Resize(dst, have, width)
	d.mix.cut = cut
	if c.windows != nil {
		p := kernels.RanksParams{Parts: at(parts.Memory), Y: at(dst.Memory), Cut: flag(cut)}
		c.launchRows(kernels.ScatterSums, p, room, width, rows)
		return nil
	}
	share := 2 * room * width
	d.Resize(&c.back, 2*c.size*room, width)
	back := of(c.back.Memory)
	if c.joined != nil {
		if err := c.byNCCL(func() error {
			return c.joined.AllToAll(back.values, at(parts.Memory), share, d.stream)
		}); err != nil {
			return err
		}
	} else {
		for r := range c.lengths {
			c.lengths[r] = share
		}
		err := c.group.AllToAll(back.Host(), parts.Floats(), c.lengths, c.lengths)
		back.Filled()
		if err != nil {
			return err
		}
	}
	elements(d, kernels.AddShares, rows*width, kernels.AddSharesParams{Parts: back.values,
		Y: at(dst.Memory), Ranks: int32(c.size), Room: int32(room), Rows: int32(rows),
		Width: int32(width), Cut: flag(cut)})
	return nil
}

// launchRows exchanges rows of all ranks, as many at a time as windows have room for: a place of a
// block has the high and low sums of all ranks' rows where they are scattered.
func (c *Comm) launchRows(k kernels.ID, r kernels.RanksParams, room, width, rows int) {
	r = c.exchanged(r, room*width)
	if width%4 != 0 {
		r.Vector = 0
	}
	r.Unit = 4
	each := slice
	if k == kernels.ScatterSums {
		each = slice / (2 * c.size) &^ 3
	}
	p := kernels.PlaceRowsParams{Ranks: r, Counts: c.d.step.places, Width: int32(width),
		Rows: int32(rows)}
	for most, n := c.places*each, room*width; n > 0; n -= int(p.Ranks.N) {
		p.Ranks.N = int32(min(n, most))
		blocks := min((int(p.Ranks.N)+4*peerThreads-1)/(4*peerThreads), c.places)
		launch(c.d, k, [3]uint32{uint32(blocks), 1, 1}, [3]uint32{peerThreads, 1, 1}, 0, p)
		p.From += p.Ranks.N
		p.Ranks.Parts += driver.Ptr(4 * most)
		p.Ranks.Y += driver.Ptr(4 * most)
	}
}
