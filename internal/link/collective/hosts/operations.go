package hosts

import "github.com/eagleray/eagleray/internal/link/collective"

const (
	// splitFrom is the number of elements from which the ranks share the additions of an
	// all-reduce: each then sends its part twice to every rank of another host, instead of all
	// once.
	splitFrom = 64 << 10 / 4
	// pieceElements is how many elements of a large all-reduce are under way at once.
	pieceElements = 4 << 20 / 4
)

// Barrier returns when every rank has called it.
func (g *Group) Barrier() error {
	return g.do(collective.Barrier, func() error {
		if err := g.far.Barrier(); err != nil || g.near == nil {
			return err
		}
		return g.near.Barrier()
	})
}

// AllReduce is that of shm.Group. After an error x is undefined.
func (g *Group) AllReduce(x []float32) error {
	return g.do(collective.AllReduce, func() error { return g.allReduce(x) })
}

func (g *Group) allReduce(x []float32) error {
	if err := collective.CheckSum(g.ranks); err != nil {
		return err
	}
	for len(x) >= splitFrom {
		part := min(len(x), pieceElements) / g.ranks
		piece, own := x[:g.ranks*part], resize(&g.own, part)
		if err := g.reduceScatter(own, piece); err != nil {
			return err
		}
		if err := g.allGather(piece, own); err != nil {
			return err
		}
		if x = x[len(piece):]; len(x) == 0 {
			return nil
		}
	}
	all := resize(&g.all, g.ranks*len(x))
	if err := g.allGather(all, x); err != nil {
		return err
	}
	g.sum(x, all)
	return nil
}

// sum sets dst to the sum of what is in all from each rank.
func (g *Group) sum(dst, all []float32) {
	for p := range g.parts {
		g.parts[p] = all[p*len(dst) : (p+1)*len(dst)]
	}
	collective.SumTree(dst, g.parts)
}

// reduceScatter sets dst to this rank's part of the sum of x over the ranks: x is the parts of all
// ranks, one after the other, each of the length of dst.
func (g *Group) reduceScatter(dst, x []float32) error {
	for p := range g.equal {
		g.equal[p] = len(dst)
	}
	all := resize(&g.all, len(x))
	if err := g.allToAll(all, x, g.equal, g.equal); err != nil {
		return err
	}
	g.sum(dst, all)
	return nil
}

// spread puts what came from the ranks of this host, n elements each, to their places among all.
func (g *Group) spread(all, host []float32, n int) {
	for place, rank := range g.local {
		copy(all[rank*n:(rank+1)*n], host[place*n:])
	}
}

// AllGather is that of shm.Group.
func (g *Group) AllGather(dst, x []float32) error {
	return g.do(collective.AllGather, func() error { return g.allGather(dst, x) })
}

func (g *Group) allGather(dst, x []float32) error {
	if err := g.far.AllGather(dst, x); err != nil || g.near == nil {
		return err
	}
	host := resize(&g.host, len(g.local)*len(x))
	if err := g.near.AllGather(host, x); err != nil {
		return err
	}
	g.spread(dst, host, len(x))
	return nil
}

// Gather sets dst on the root rank to the ranks' x, one after the other; elsewhere dst is not used.
// All x are of the same length.
func (g *Group) Gather(dst, x []float32, root int) error {
	return g.do(collective.Gather, func() error { return g.gather(dst, x, root) })
}

func (g *Group) gather(dst, x []float32, root int) error {
	if err := g.far.Gather(dst, x, root); err != nil || !g.isNear(root) {
		return err
	}
	if g.rank != root {
		return g.near.Gather(nil, x, g.places[root])
	}
	host := resize(&g.host, len(g.local)*len(x))
	if err := g.near.Gather(host, x, g.places[root]); err != nil {
		return err
	}
	g.spread(dst, host, len(x))
	return nil
}

// Broadcast sets b on every rank to the root's. All are of the same length.
func (g *Group) Broadcast(b []byte, root int) error {
	return g.do(collective.Broadcast, func() error {
		if err := g.far.Broadcast(b, root); err != nil || !g.isNear(root) {
			return err
		}
		return g.near.Broadcast(b, g.places[root])
	})
}

// Send sends b to another rank, which receives it by Recv into as many bytes, and before the next
// collective operation. It returns when b is copied, which waits while collective.MessageBuffer has
// not been received.
func (g *Group) Send(b []byte, to int) error {
	return g.do(collective.Send, func() error {
		if g.isNear(to) {
			return g.near.Send(b, g.places[to])
		}
		return g.far.Send(b, to)
	})
}

// Recv sets b to the next message from another rank, which must be of its length.
func (g *Group) Recv(b []byte, from int) error {
	return g.do(collective.Recv, func() error {
		if g.isNear(from) {
			return g.near.Recv(b, g.places[from])
		}
		return g.far.Recv(b, from)
	})
}

// isNear reports whether a rank is reached, or is, in the memory of this host.
func (g *Group) isNear(rank int) bool {
	return g.near != nil && rank >= 0 && rank < g.ranks && g.places[rank] >= 0
}
