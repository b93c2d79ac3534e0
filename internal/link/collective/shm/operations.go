package shm

import (
	"github.com/eagleray/eagleray/internal/link/collective"
)

// enter starts the next step and returns its parity, once the buffer of that parity is free. By
// then all ranks are past the step before, so that those that did not have to meet there are
// compared too.
func (g *Group) enter() (parity int, err error) {
	g.seq += seqUnit
	parity = int(g.seq/seqUnit) & 1
	for p, m := range g.peers {
		if p == g.rank {
			continue
		}
		if err := g.await(m, p, g.seq-seqUnit, &g.policy); err != nil {
			return 0, err
		}
		if theirs := m.stamp[1-parity]; theirs != g.last {
			return 0, g.mismatch(g.last, theirs, p)
		}
	}
	return parity, nil
}

// publish shows the step to the others.
func (g *Group) publish(parity int, tag uint64) error {
	g.last = stamp{tag, g.guard}
	own := g.peers[g.rank]
	own.stamp[parity] = g.last
	word := own.word.Add(seqUnit)
	own.wake()
	if word&flagAborted != 0 {
		return g.abortCause()
	}
	return nil
}

// meet waits for a peer to reach the step and checks that it is in the same one.
func (g *Group) meet(p, parity int) error {
	if err := g.await(g.peers[p], p, g.seq, &g.policy); err != nil {
		return err
	}
	if theirs := g.peers[p].stamp[parity]; theirs != g.last {
		return g.mismatch(g.last, theirs, p)
	}
	return nil
}

func (g *Group) mismatch(ours, theirs stamp, rank int) error {
	return collective.Mismatch(ours.tag, theirs.tag, ours.guard, theirs.guard, g.names.Of(rank))
}

func (g *Group) meetAll(parity int) error {
	for p := range g.ranks {
		if p == g.rank {
			continue
		}
		if err := g.meet(p, parity); err != nil {
			return err
		}
	}
	return nil
}

// Barrier returns when every rank has called it.
func (g *Group) Barrier() error {
	return g.do(collective.Barrier, g.barrier)
}

func (g *Group) barrier() error {
	parity, err := g.enter()
	if err != nil {
		return err
	}
	t := collective.Tag(collective.Barrier, 0, 0)
	if err := g.publish(parity, t); err != nil {
		return err
	}
	return g.meetAll(parity)
}

// AllReduce replaces x by its sum over the ranks, in the order of collective.SumTree: the bits are
// the same on every rank and for every way of splitting the ranks' work.
func (g *Group) AllReduce(x []float32) error {
	return g.do(collective.AllReduce, func() error { return g.allReduce(x) })
}

func (g *Group) allReduce(x []float32) error {
	if err := collective.CheckSum(g.ranks); err != nil {
		return err
	}
	if g.ranks == 1 {
		return g.barrier()
	}
	t := collective.Tag(collective.AllReduce, 0, 4*len(x))
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

// splitFrom is the number of elements from which four or more ranks share the additions. With one
// step, every rank reads ranks·n elements; with two, less than 2n, for one more meeting. Two ranks
// gain nothing: they would move as many bytes either way.
const splitFrom = 16 << 10 / 4

// reduceWhole has every rank add all contributions.
func (g *Group) reduceWhole(x []float32, t uint64) error {
	parity, err := g.enter()
	if err != nil {
		return err
	}
	copy(collective.Floats(g.seg.buffer(g.rank, parity)), x)
	if err := g.publish(parity, t); err != nil {
		return err
	}
	if err := g.meetAll(parity); err != nil {
		return err
	}
	g.sum(x, parity, 0)
	return nil
}

// sum sets x to the sum of the contributions at an offset in the buffers; this rank's own is x
// itself.
func (g *Group) sum(x []float32, parity, from int) {
	parts := g.parts[:g.ranks]
	for p := range parts {
		parts[p] = collective.Floats(g.seg.buffer(p, parity))[from : from+len(x)]
	}
	parts[g.rank] = x
	collective.SumTree(x, parts)
}

// reduceSplit is a reduce-scatter and an all-gather: each rank adds up its share and the others
// copy it.
func (g *Group) reduceSplit(x []float32, t uint64) error {
	parity, err := g.enter()
	if err != nil {
		return err
	}
	from, to := collective.Share(g.rank, g.ranks, len(x))
	own := collective.Floats(g.seg.buffer(g.rank, parity))
	copy(own, x[:from])
	copy(own[to:], x[to:])
	if err := g.publish(parity, t); err != nil {
		return err
	}
	if err := g.meetAll(parity); err != nil {
		return err
	}
	g.sum(x[from:to], parity, from)

	if parity, err = g.enter(); err != nil {
		return err
	}
	copy(collective.Floats(g.seg.buffer(g.rank, parity))[from:], x[from:to])
	if err := g.publish(parity, t); err != nil {
		return err
	}
	for i := 1; i < g.ranks; i++ {
		p := (g.rank + i) % g.ranks // start with different ones
		if err := g.meet(p, parity); err != nil {
			return err
		}
		from, to := collective.Share(p, g.ranks, len(x))
		copy(x[from:to], collective.Floats(g.seg.buffer(p, parity))[from:to])
	}
	return nil
}

// AllGather sets dst to the ranks' x, one after the other. All are of the same length, and dst of
// ranks times that.
func (g *Group) AllGather(dst, x []float32) error {
	return g.gather(collective.AllGather, dst, x, g.rank)
}

// Gather sets dst on the root rank to the ranks' x, one after the other; elsewhere dst is not used.
// All x are of the same length. Other ranks than the root do not wait for each other, nor for the
// root to finish.
func (g *Group) Gather(dst, x []float32, root int) error {
	return g.gather(collective.Gather, dst, x, root)
}

func (g *Group) gather(op collective.Op, dst, x []float32, root int) error {
	return g.do(op, func() error {
		err := collective.CheckGather(op, g.rank, root, g.ranks, len(dst), len(x))
		if err != nil {
			return err
		}
		return g.gatherBytes(op, collective.Bytes(dst), collective.Bytes(x), root)
	})
}

// gatherBytes moves x to the root (for collective.AllGather to every rank, which then is its own
// root).
func (g *Group) gatherBytes(op collective.Op, dst, x []byte, root int) error {
	t := collective.Tag(op, 0, len(x))
	if op == collective.Gather {
		t = collective.Tag(op, root, len(x))
	}
	for at, first := 0, true; first || at < len(x); first = false {
		n := min(len(x)-at, g.seg.slot)
		parity, err := g.enter()
		if err != nil {
			return err
		}
		if g.rank != root || op == collective.AllGather {
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
				if err := g.meet(p, parity); err != nil {
					return err
				}
				copy(to, g.seg.buffer(p, parity))
			}
		}
		at += n
	}
	return nil
}

// Broadcast sets b on every rank to the root's. All are of the same length. The root does not wait
// for the others to have read it.
func (g *Group) Broadcast(b []byte, root int) error {
	return g.do(collective.Broadcast, func() error { return g.broadcast(b, root) })
}

func (g *Group) broadcast(b []byte, root int) error {
	if err := collective.CheckRoot(root, g.ranks); err != nil {
		return err
	}
	t := collective.Tag(collective.Broadcast, root, len(b))
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
			if err := g.meet(root, parity); err != nil {
				return err
			}
			copy(b[:n], g.seg.buffer(root, parity))
		}
		b = b[n:]
	}
	return nil
}
