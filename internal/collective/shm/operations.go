package shm

import (
	"fmt"

	"github.com/eagleray/eagleray/internal/collective"
	"github.com/eagleray/eagleray/internal/queue/futex"
)

type opcode uint8

const (
	opBarrier opcode = iota + 1
	opAllReduce
	opAllGather
	opGather
	opBroadcast
)

// String returns the name used in errors.
func (o opcode) String() string {
	switch o {
	case opBarrier:
		return "barrier"
	case opAllReduce:
		return "all-reduce"
	case opAllGather:
		return "all-gather"
	case opGather:
		return "gather"
	case opBroadcast:
		return "broadcast"
	}
	return fmt.Sprintf("operation %d", uint8(o))
}

// tag packs an operation, its root and its size, which all ranks of a step must agree on.
func tag(op opcode, root, size int) uint64 {
	return uint64(op)<<56 | uint64(root)<<48 | uint64(size)&(1<<48-1)
}

func describe(t uint64) string {
	return fmt.Sprintf("%v of %d bytes, root %d", opcode(t>>56), t&(1<<48-1), t>>48&0xff)
}

// enter starts the next step and returns its parity, once the buffer of that parity is free. By then all
// ranks are past the step before, so that those that did not have to meet there are compared too.
func (g *Group) enter() (parity int, err error) {
	g.seq += seqUnit
	parity = int(g.seq/seqUnit) & 1
	for p, c := range g.peers {
		if p == g.rank {
			continue
		}
		if err := g.await(p, g.seq-seqUnit); err != nil {
			return 0, err
		}
		if theirs := c.tag[1-parity].Load(); theirs != g.lastTag {
			return 0, mismatch(g.lastTag, theirs, p)
		}
	}
	return parity, nil
}

// publish shows the step to the others.
func (g *Group) publish(parity int, tag uint64) error {
	g.lastTag = tag
	own := g.peers[g.rank]
	own.tag[parity].Store(tag)
	word := own.word.Add(seqUnit)
	if own.sleepers.Load() > 0 {
		futex.Wake(&own.word)
	}
	if word&flagAborted != 0 {
		return g.abortCause()
	}
	return nil
}

// meet waits for a peer to reach the step and checks that it is in the same one.
func (g *Group) meet(p, parity int, tag uint64) error {
	if err := g.await(p, g.seq); err != nil {
		return err
	}
	if theirs := g.peers[p].tag[parity].Load(); theirs != tag {
		return mismatch(tag, theirs, p)
	}
	return nil
}

func mismatch(ours, theirs uint64, rank int) error {
	return fmt.Errorf("%w: %s here, %s on rank %d", collective.ErrMismatch, describe(ours), describe(theirs), rank)
}

func (g *Group) meetAll(parity int, tag uint64) error {
	for p := range g.ranks {
		if p == g.rank {
			continue
		}
		if err := g.meet(p, parity, tag); err != nil {
			return err
		}
	}
	return nil
}

// Barrier returns when every rank has called it.
func (g *Group) Barrier() error {
	if err := g.begin(opBarrier); err != nil {
		return err
	}
	return g.end(opBarrier, g.barrier())
}

func (g *Group) barrier() error {
	parity, err := g.enter()
	if err != nil {
		return err
	}
	t := tag(opBarrier, 0, 0)
	if err := g.publish(parity, t); err != nil {
		return err
	}
	return g.meetAll(parity, t)
}

// AllReduce replaces x by its sum over the ranks, in the order of collective.SumTree: the bits are the same on
// every rank and for every way of splitting the ranks' work.
func (g *Group) AllReduce(x []float32) error {
	if err := g.begin(opAllReduce); err != nil {
		return err
	}
	return g.end(opAllReduce, g.allReduce(x))
}

func (g *Group) allReduce(x []float32) error {
	if g.ranks == 1 {
		return g.barrier()
	}
	t := tag(opAllReduce, 0, 4*len(x))
	for first := true; first || len(x) > 0; first = false {
		n := min(len(x), g.seg.slot/4)
		var err error
		if g.ranks >= 4 && n >= splitFrom {
			err = g.reduceSplit(x[:n], t)
		} else {
			err = g.reduceWhole(x[:n], t)
		}
		if err != nil {
			return err
		}
		x = x[n:]
	}
	return nil
}

// splitFrom is the number of elements from which four or more ranks share the additions. With one step,
// every rank reads ranks·n elements; with two, less than 2n, for one more meeting. Two ranks gain nothing:
// they would move as many bytes either way.
const splitFrom = 16 << 10 / 4

// reduceWhole has every rank add all contributions.
func (g *Group) reduceWhole(x []float32, t uint64) error {
	parity, err := g.enter()
	if err != nil {
		return err
	}
	copy(floats(g.seg.buffer(g.rank, parity)), x)
	if err := g.publish(parity, t); err != nil {
		return err
	}
	if err := g.meetAll(parity, t); err != nil {
		return err
	}
	g.sum(x, parity, 0)
	return nil
}

// sum sets x to the sum of the contributions at an offset in the buffers; this rank's own is x itself.
func (g *Group) sum(x []float32, parity, from int) {
	parts := g.parts[:g.ranks]
	for p := range parts {
		parts[p] = floats(g.seg.buffer(p, parity))[from : from+len(x)]
	}
	parts[g.rank] = x
	collective.SumTree(x, parts)
}

// share returns the part of n elements that a rank adds up when they share the work: equal parts of whole
// cache lines, the last ones shorter or empty.
func (g *Group) share(rank, n int) (from, to int) {
	const line = 16
	each := (n + g.ranks*line - 1) / (g.ranks * line) * line
	return min(rank*each, n), min((rank+1)*each, n)
}

// reduceSplit is a reduce-scatter and an all-gather: each rank adds up its share and the others copy it.
func (g *Group) reduceSplit(x []float32, t uint64) error {
	parity, err := g.enter()
	if err != nil {
		return err
	}
	from, to := g.share(g.rank, len(x))
	own := floats(g.seg.buffer(g.rank, parity))
	copy(own, x[:from])
	copy(own[to:], x[to:])
	if err := g.publish(parity, t); err != nil {
		return err
	}
	if err := g.meetAll(parity, t); err != nil {
		return err
	}
	g.sum(x[from:to], parity, from)

	if parity, err = g.enter(); err != nil {
		return err
	}
	copy(floats(g.seg.buffer(g.rank, parity))[from:], x[from:to])
	if err := g.publish(parity, t); err != nil {
		return err
	}
	for i := 1; i < g.ranks; i++ {
		p := (g.rank + i) % g.ranks // start with different ones
		if err := g.meet(p, parity, t); err != nil {
			return err
		}
		from, to := g.share(p, len(x))
		copy(x[from:to], floats(g.seg.buffer(p, parity))[from:to])
	}
	return nil
}

// AllGather sets dst to the ranks' x, one after the other. All are of the same length, and dst of ranks times
// that.
func (g *Group) AllGather(dst, x []float32) error {
	if err := g.begin(opAllGather); err != nil {
		return err
	}
	if len(dst) != g.ranks*len(x) {
		return g.end(opAllGather, badLength("all-gather", len(dst), g.ranks, len(x)))
	}
	return g.end(opAllGather, g.gather(opAllGather, asBytes(dst), asBytes(x), g.rank))
}

// Gather sets dst on the root rank to the ranks' x, one after the other; elsewhere dst is not used. All x are
// of the same length. Other ranks than the root do not wait for each other, nor for the root to finish.
func (g *Group) Gather(dst, x []float32, root int) error {
	if err := g.begin(opGather); err != nil {
		return err
	}
	if root < 0 || root >= g.ranks {
		return g.end(opGather, badRoot(root, g.ranks))
	}
	if g.rank == root && len(dst) != g.ranks*len(x) {
		return g.end(opGather, badLength("gather", len(dst), g.ranks, len(x)))
	}
	return g.end(opGather, g.gather(opGather, asBytes(dst), asBytes(x), root))
}

func badLength(op string, dst, ranks, x int) error {
	return fmt.Errorf("%s of %d elements from each of %d ranks into %d", op, x, ranks, dst)
}

func badRoot(root, ranks int) error {
	return fmt.Errorf("root %d of %d ranks", root, ranks)
}

// gather moves x to the root (for opAllGather to every rank, which then is its own root).
func (g *Group) gather(op opcode, dst, x []byte, root int) error {
	t := tag(op, 0, len(x))
	if op == opGather {
		t = tag(op, root, len(x))
	}
	for at, first := 0, true; first || at < len(x); first = false {
		n := min(len(x)-at, g.seg.slot)
		parity, err := g.enter()
		if err != nil {
			return err
		}
		if g.rank != root || op == opAllGather {
			copy(g.seg.buffer(g.rank, parity), x[at:at+n])
		}
		if err := g.publish(parity, t); err != nil {
			return err
		}
		if g.rank == root {
			for p := range g.ranks {
				to := dst[p*len(x)+at : p*len(x)+at+n]
				if p == g.rank {
					copy(to, x[at:])
					continue
				}
				if err := g.meet(p, parity, t); err != nil {
					return err
				}
				copy(to, g.seg.buffer(p, parity))
			}
		}
		at += n
	}
	return nil
}

// Broadcast sets b on every rank to the root's. All are of the same length. The root does not wait for the
// others to have read it.
func (g *Group) Broadcast(b []byte, root int) error {
	if err := g.begin(opBroadcast); err != nil {
		return err
	}
	if root < 0 || root >= g.ranks {
		return g.end(opBroadcast, badRoot(root, g.ranks))
	}
	return g.end(opBroadcast, g.broadcast(b, root))
}

func (g *Group) broadcast(b []byte, root int) error {
	t := tag(opBroadcast, root, len(b))
	for first := true; first || len(b) > 0; first = false {
		n := min(len(b), g.seg.slot)
		parity, err := g.enter()
		if err != nil {
			return err
		}
		if g.rank == root {
			copy(g.seg.buffer(g.rank, parity), b[:n])
		}
		if err := g.publish(parity, t); err != nil {
			return err
		}
		if g.rank != root {
			if err := g.meet(root, parity, t); err != nil {
				return err
			}
			copy(b[:n], g.seg.buffer(root, parity))
		}
		b = b[n:]
	}
	return nil
}
