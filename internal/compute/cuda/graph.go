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
	// unfit says that the pass at hand sent integers beside the batch's, or waited for the device:
	// a graph would send these again, and cannot wait.
	unfit bool
	// agreed is what ranks know of each other's step at hand; apart says that this one has steps
	// that are not to be recorded.
	agreed agreement
	apart  bool
	// replays is how many steps were done again.
	replays uint64
}

// repeated is what steps have in common that are done again.
type repeated struct {
	of any
	shape
	agreed uint32
}

// agreement is what ranks tell each other that exchange by NCCL: they record the same steps, and do
// again what all have recorded together (its guide, "Using NCCL with CUDA Graphs"). step is a hash
// of the shapes of their batches, 0 where one of them is not to be recorded; dropped, not 0, says
// that what was recorded is void on one of them.
type agreement struct{ step, dropped uint32 }

// agreedFirst is the hash of no shape (FNV-1a).
const agreedFirst = 2166136261

// join adds what a rank says.
func (a *agreement) join(of *agreement) {
	if a.dropped |= of.dropped; a.step != 0 && of.step != 0 {
		a.step = max(1, hashed(a.step, of.step))
		return
	}
	a.step = 0
}

// hashed is a hash of one before and another word.
func hashed(h, word uint32) uint32 {
	for range 4 {
		h, word = (h^word&0xff)*16777619, word>>8
	}
	return h
}

// hash is that of the shape of a step that may be recorded, else 0.
func (y *shape) hash() uint32 {
	if !y.decode {
		return 0
	}
	h := uint32(agreedFirst)
	for _, n := range y.lists {
		h = hashed(h, uint32(n))
	}
	for _, n := range [...]int{y.tables, y.runs, y.last, y.counted, y.turn, y.end, y.room, y.table,
		y.sequences, y.pages} {
		h = hashed(h, uint32(n))
	}
	return max(1, h)
}

// begin is what this rank says of the step at hand.
func (g *graphs) begin(y *shape) {
	g.agreed = agreement{}
	if !g.off && !g.apart {
		g.agreed.step = y.hash()
	}
}

// void says that what was recorded is not to be done again.
func (g *graphs) void() bool { return g.generation != g.recorded || g.agreed.dropped != 0 }

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
	if !alone || g.agreed.step == 0 || d.err != nil {
		return pass()
	}
	if g.void() {
		d.dropGraphs()
	}
	as := repeated{of, d.step.shape, g.agreed.step}
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
	g.unfit = false
	if y.seen++; y.seen > warmUp && !y.never {
		return d.record(y, pass)
	}
	err := pass()
	// In passes before, attention may have met a way to share rows, and memory have grown.
	if g.unfit && y.seen == warmUp && !g.void() {
		d.exclude(y)
	}
	return err
}

// exclude has a step not be recorded, of ranks that exchange by NCCL none any more.
func (d *Device) exclude(y *graph) {
	y.never = true
	for _, c := range d.comms {
		d.graphs.apart = d.graphs.apart || c.joined != nil
	}
}

// record records what pass asks for, then does it.
func (d *Device) record(y *graph, pass func() error) error {
	g := &d.graphs
	d.flush()
	if err := d.ctx.BeginCapture(d.stream); err != nil {
		d.check(fmt.Errorf("record a step: %w", err))
		return d.err
	}
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
	if g.unfit {
		d.exclude(y)
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
