package cuda

import (
	"fmt"

	"github.com/eagleray/eagleray/internal/compute/cuda/driver"
)

// graphs are steps that were recorded, by their models and the shapes of their batches. Doing one
// again costs the host a call, where its launches cost one each.
type graphs struct {
	off  bool
	made map[repeated]*graph
	// generation counts the allocations of the device: a graph has addresses, and is void when one
	// of them may have become another's.
	generation, recorded uint64
	// foreign says that the pass at hand sent integers beside the batch's.
	foreign bool
	// replays is how many steps were done again.
	replays uint64
}

// repeated is what steps have in common that are done again.
type repeated struct {
	of any
	shape
}

// graph is a step that was recorded, or why it is not: seen is how often there was a batch of its
// shape.
type graph struct {
	seen  int
	never bool
	made  driver.Graph
}

// mostGraphs bounds how many there are, warmUp is how often a shape is computed before it is
// recorded: then all of its memory is there.
const (
	mostGraphs = 256
	warmUp     = 2
)

// Run has pass compute the layers of the batch at hand, or does again what it did for a batch of
// the same model and shape. alone says that it waits for nothing but the device.
func (d *Device) Run(of any, alone bool, pass func() error) error {
	g := &d.graphs
	if g.off || !alone || !d.step.shape.decode || d.err != nil {
		return pass()
	}
	if g.generation != g.recorded {
		d.dropGraphs()
	}
	as := repeated{of, d.step.shape}
	y := g.made[as]
	if y == nil {
		if len(g.made) >= mostGraphs {
			d.dropGraphs()
		}
		y = new(graph)
		g.made[as] = y
	}
	if y.made != 0 {
		d.flush()
		d.check(d.ctx.Replay(y.made, d.stream))
		d.count(1)
		g.replays++
		return d.err
	}
	if y.seen++; y.seen <= warmUp || y.never {
		return pass()
	}
	return d.record(y, pass)
}

// record records what pass asks for, then does it.
func (d *Device) record(y *graph, pass func() error) error {
	g := &d.graphs
	d.flush()
	if err := d.ctx.BeginCapture(d.stream); err != nil {
		d.check(fmt.Errorf("record a step: %w", err))
		return d.err
	}
	g.foreign = false
	before := g.generation
	failed := pass()
	d.flush()
	made, err := d.ctx.EndCapture(d.stream)
	if err != nil {
		d.check(fmt.Errorf("record a step: %w", err))
	}
	if failed != nil || d.err != nil {
		if d.err == nil {
			d.check(d.ctx.Destroy(made))
		}
		return failed
	}
	d.check(d.ctx.Replay(made, d.stream))
	if g.foreign || g.generation != before {
		y.never = true
		d.wait()
		d.check(d.ctx.Destroy(made))
		return d.err
	}
	y.made = made
	return d.err
}

// dropGraphs forgets all that was recorded.
func (d *Device) dropGraphs() {
	g := &d.graphs
	for _, y := range g.made {
		if y.made != 0 && d.err == nil {
			d.check(d.ctx.Destroy(y.made))
		}
	}
	clear(g.made)
	g.recorded = g.generation
}
