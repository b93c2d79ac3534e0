package hosts

import "github.com/eagleray/eagleray/internal/link/collective"

// Between hosts a run goes from the rank that has it straight to the rank it is for. By way of a
// rank of its own place on the other host there would be fewer messages, ranks of a host times
// fewer, but no fewer bytes of runs, which are for one rank each and cross the network once either
// way; and every byte would be copied through the memory of a host once more. It would spare a
// header of 32 bytes a message.

// AllToAllV is that of shm.Group.
//
// meanwhile, if it is not nil, is called when the runs for other hosts are on their way, before
// the wait for others.
func (g *Group) AllToAllV(dst, x []float32, counts, got []int,
	meanwhile func()) ([]float32, error) {
	into := dst[:0]
	err := g.do(collective.AllToAllV, func() error {
		all, err := g.allToAllV(dst, x, counts, got, meanwhile)
		if err == nil {
			into = all
		}
		return err
	})
	return into, err
}

// allToAllV has what comes from other hosts, and from this one, in memory of its own: where each
// run goes is known when both have come.
func (g *Group) allToAllV(dst, x []float32, counts, got []int,
	meanwhile func()) (_ []float32, err error) {
	if g.near == nil {
		return g.far.AllToAllV(dst, x, counts, got, meanwhile)
	}
	if g.all, err = g.far.AllToAllV(g.all, x, counts, got, meanwhile); err != nil {
		return nil, err
	}
	g.pack(x, counts)
	if g.host, err = g.near.AllToAllV(g.host, g.to, g.counts, g.got, nil); err != nil {
		return nil, err
	}
	own := got[g.rank] // which is in both
	for place, rank := range g.local {
		got[rank] = g.got[place]
	}
	if dst, err = (collective.Arrivals{Got: got}).Resize(dst); err != nil {
		return nil, err
	}
	at, far, near := 0, g.all, g.host
	for rank, n := range got {
		to := dst[at : at+n]
		at += n
		if g.places[rank] < 0 {
			far = far[copy(to, far):]
			continue
		}
		near = near[copy(to, near):]
		if rank == g.rank {
			far = far[own:]
		}
	}
	return dst, nil
}

// AllToAll is that of shm.Group.
func (g *Group) AllToAll(dst, x []float32, counts, lengths []int) error {
	return g.do(collective.AllToAll, func() error { return g.allToAll(dst, x, counts, lengths) })
}

func (g *Group) allToAll(dst, x []float32, counts, lengths []int) error {
	if err := g.far.AllToAll(dst, x, counts, lengths); err != nil || g.near == nil {
		return err
	}
	g.pack(x, counts)
	size := 0
	for place, rank := range g.local {
		g.got[place] = lengths[rank]
		size += lengths[rank]
	}
	host := resize(&g.host, size)
	if err := g.near.AllToAll(host, g.to, g.counts, g.got); err != nil {
		return err
	}
	at := 0
	for rank, n := range lengths {
		if g.places[rank] >= 0 {
			host = host[copy(dst[at:at+n], host):]
		}
		at += n
	}
	return nil
}

// pack sets g.to and g.counts to what of x is for the ranks of this host.
func (g *Group) pack(x []float32, counts []int) {
	size := 0
	for place, rank := range g.local {
		g.counts[place] = counts[rank]
		size += counts[rank]
	}
	g.to = resize(&g.to, size)
	at, to := 0, g.to
	for rank, n := range counts {
		if g.places[rank] >= 0 {
			to = to[copy(to, x[at:at+n]):]
		}
		at += n
	}
}
