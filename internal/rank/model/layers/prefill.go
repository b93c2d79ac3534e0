package layers

import "github.com/eagleray/eagleray/internal/compute"

// exchange gives the keys and values of the rows that this rank computes alone, which fill kv, to
// the others, and writes theirs to the cache.
func (y *Attention) exchange(kv compute.View, s *compute.Split, cache compute.Cache) error {
	y.share(kv, s.Rows, s.Share)
	y.dev.Resize(&y.gathered, y.group.Prefill.Size*s.Share, kv.Width)
	y.report(true)
	err := y.group.Prefill.Comm.AllGather(&y.gathered, &y.given)
	y.report(false)
	if err != nil {
		return err
	}
	half := kv.Width / 2
	y.dev.WriteCache(cache, y.layer, y.gathered.Columns(0, half), y.gathered.Columns(half, half),
		s.Slots)
	return nil
}

// share makes given the rows of x that this rank computes alone, as many as the rank with most has.
func (r *rank) share(x compute.View, rows []int32, share int) {
	r.dev.Pick(&r.given, x, rows)
	r.dev.Extend(&r.given, share-len(rows))
}

// GatherWanted gives the rows of x whose logits are wanted, and that this rank computed alone, to
// the first of those that divide rows. There they follow the rows that x has: WantedShare of each
// rank.
func (r *rank) GatherWanted(x *Tensor, s *compute.Split) error {
	p := r.group.Prefill
	r.share(x.All(), s.Wanted, s.WantedShare)
	var all *Tensor
	if p.Rank == 0 {
		all = &r.gathered
		r.dev.Resize(all, p.Size*s.WantedShare, x.Width)
	}
	r.report(true)
	err := p.Comm.Gather(all, &r.given, 0)
	r.report(false)
	if err == nil && all != nil {
		own := x.Rows
		r.dev.Extend(x, all.Rows)
		r.dev.Copy(x.Below(own), all.All())
	}
	return err
}
