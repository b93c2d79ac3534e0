package tcp

import (
	"fmt"

	"github.com/eagleray/eagleray/internal/link/collective"
)

const (
	// pieceElements is how much of a vector the ranks share the additions of at a time.
	pieceElements = 1 << 20 / 4
)

// splitFrom is the number of elements from which the ranks share the additions. Each rank then
// sends and receives less than 2n elements instead of (ranks-1)·n, but the messages go twice. Two
// ranks gain only the additions. The borders are where BenchmarkBorder shows the two ways to be
// equal.
func splitFrom(ranks int) int {
	if ranks == 2 {
		return 256 << 10 / 4
	}
	return 64 << 10 / 4
}

// reserve allocates memory for the other ranks' parts of an all-reduce of so many bytes.
func (g *Group) reserve(size int) {
	n := (size + 3) / 4
	need := min(n, splitFrom(g.ranks))
	if n >= splitFrom(g.ranks) {
		_, most := collective.Share(0, g.ranks, min(n, pieceElements))
		need = max(need, 2*most)
	}
	g.grow(need)
}

// grow allocates memory for so many elements of each other rank.
func (g *Group) grow(n int) {
	for _, p := range g.peers {
		if len(g.scratch[p.rank]) < 4*n {
			g.scratch[p.rank] = collective.Bytes(make([]float32, n))
		}
	}
}

// Barrier returns when every rank has called it.
func (g *Group) Barrier() error {
	return g.do(collective.Barrier, func() error {
		g.aim(nil, noRank, allRanks, nil, 0)
		return g.exchange(g.next(collective.Tag(collective.Barrier, 0, 0)))
	})
}

// AllReduce is that of shm.Group. After an error x is undefined.
func (g *Group) AllReduce(x []float32) error {
	return g.do(collective.AllReduce, func() error { return g.allReduce(x) })
}

func (g *Group) allReduce(x []float32) error {
	s := g.next(collective.Tag(collective.AllReduce, 0, 4*len(x)))
	if err := g.checkSum(); err != nil {
		return err
	}
	if g.ranks == 1 {
		return nil
	}
	g.reserve(4 * len(x))
	if len(x) >= splitFrom(g.ranks) {
		return g.reduceSplit(x, s)
	}
	return g.reduceWhole(x, s)
}

// reduceWhole has every rank add all contributions.
func (g *Group) reduceWhole(x []float32, s step) error {
	for _, p := range g.peers {
		p.out, p.in, p.wants = collective.Bytes(x), g.scratch[p.rank][:4*len(x)], true
	}
	if err := g.exchange(s); err != nil {
		return err
	}
	g.sum(x, 0)
	return nil
}

// sum adds the other ranks' contributions, which are at an offset of the scratch memory, to x.
func (g *Group) sum(x []float32, at int) {
	for p := range g.parts {
		if p != g.rank {
			g.parts[p] = collective.Floats(g.scratch[p])[at : at+len(x)]
		}
	}
	g.parts[g.rank] = x
	collective.SumTree(x, g.parts)
	g.parts[g.rank] = nil
}

// reduceSplit is a reduce-scatter and an all-gather: each rank adds up its share and sends it to
// the others. The reduce-scatter of a piece is under way during the all-gather of the one before.
// Every stream has the messages in the order R0 R1 A0 R2 A1 R3 A2 ...
func (g *Group) reduceSplit(x []float32, s step) error {
	for _, p := range g.peers {
		if p.owes {
			p.post(receiveJob{step: p.owed})
			p.owes = false
		}
	}
	pieces := (len(x) + pieceElements - 1) / pieceElements
	g.scatter(x, 0, s)
	for i := range pieces {
		var later uint32 // jobs of each stream that come after R of this piece
		if i > 0 {
			later++
		}
		if i+1 < pieces {
			later++
			g.scatter(x, i+1, s)
		}
		if err := g.await(later); err != nil {
			return err
		}
		g.gatherShares(x, i, s)
	}
	return g.awaitAll()
}

func piece(x []float32, i int) []float32 {
	return x[i*pieceElements : min((i+1)*pieceElements, len(x))]
}

// half is where in the scratch memory the contributions to a piece are: pieces take turns.
func (g *Group) half(x []float32, i int) int {
	_, most := collective.Share(0, g.ranks, min(len(x), pieceElements))
	return i % 2 * most
}

// scatter has this rank's contribution to each share of a piece sent to the rank that adds it up,
// and the contributions to this rank's share received.
func (g *Group) scatter(x []float32, i int, s step) {
	x, at := piece(x, i), g.half(x, i)
	from, to := collective.Share(g.rank, g.ranks, len(x))
	for _, p := range g.peers {
		f, t := collective.Share(p.rank, g.ranks, len(x))
		p.send(collective.Bytes(x[f:t]), s)
	}
	for _, p := range g.peers {
		p.post(receiveJob{dst: g.scratch[p.rank][4*at : 4*(at+to-from)], step: s})
	}
}

// gatherShares adds up this rank's share of a piece, and has it sent and the others received.
func (g *Group) gatherShares(x []float32, i int, s step) {
	x, at := piece(x, i), g.half(x, i)
	from, to := collective.Share(g.rank, g.ranks, len(x))
	g.sum(x[from:to], at)
	for _, p := range g.peers {
		p.send(collective.Bytes(x[from:to]), s)
	}
	for _, p := range g.peers {
		f, t := collective.Share(p.rank, g.ranks, len(x))
		p.post(receiveJob{dst: collective.Bytes(x[f:t]), step: s})
	}
}

// AllGather is that of shm.Group.
func (g *Group) AllGather(dst, x []float32) error {
	return g.do(collective.AllGather, func() error {
		err := collective.CheckGather(collective.AllGather, g.rank, g.rank, g.ranks, len(dst),
			len(x))
		if err != nil {
			return err
		}
		copy(dst[g.rank*len(x):], x)
		g.aim(collective.Bytes(x), allRanks, allRanks, collective.Bytes(dst), 4*len(x))
		return g.exchange(g.next(collective.Tag(collective.AllGather, 0, 4*len(x))))
	})
}

// checkSum refuses a sum that is not defined, or misses ranks.
func (g *Group) checkSum() error {
	for p := range g.ranks {
		if p != g.rank && g.byRank[p] == nil {
			return fmt.Errorf("sum over %d ranks without rank %d", g.ranks, p)
		}
	}
	return collective.CheckSum(g.ranks)
}

// Gather sets dst on the root rank to the ranks' x, one after the other; elsewhere dst is not used.
// All x are of the same length. Other ranks than the root do not wait for each other, nor for the
// root to finish, but for a message of many frames to be on its way.
func (g *Group) Gather(dst, x []float32, root int) error {
	return g.do(collective.Gather, func() error {
		err := collective.CheckGather(collective.Gather, g.rank, root, g.ranks, len(dst), len(x))
		if err != nil {
			return err
		}
		s := g.next(collective.Tag(collective.Gather, root, 4*len(x)))
		if g.rank != root {
			g.aim(collective.Bytes(x), root, noRank, nil, 0)
		} else {
			copy(dst[g.rank*len(x):], x)
			g.aim(nil, noRank, allRanks, collective.Bytes(dst), 4*len(x))
		}
		return g.exchange(s)
	})
}

// Broadcast sets b on every rank to the root's. All are of the same length. The root does not wait
// for the others to have read it, but for a message of many frames to be on its way.
func (g *Group) Broadcast(b []byte, root int) error {
	return g.do(collective.Broadcast, func() error {
		if err := collective.CheckRoot(root, g.ranks); err != nil {
			return err
		}
		s := g.next(collective.Tag(collective.Broadcast, root, len(b)))
		if g.rank == root {
			g.aim(b, allRanks, noRank, nil, 0)
		} else {
			g.aim(nil, noRank, noRank, nil, 0)
			if p := g.byRank[root]; p != nil {
				p.in, p.wants = b, true
			}
		}
		return g.exchange(s)
	})
}
