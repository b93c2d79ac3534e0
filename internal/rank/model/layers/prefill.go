package layers

import (
	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/link/status"
)

// exchange gives what the cache keeps of the rows that this rank computes alone to the others, and
// writes theirs to the cache. kept is keys, then values, of the latter so many columns.
func (y *rank) exchange(kept compute.View, values, layer int, scales compute.CacheScales,
	b *compute.Batch, cache compute.Cache) error {
	s := &b.Split
	y.share(kept, s.Rows, s.Share)
	y.dev.Resize(&y.gathered, y.group.PCP.Size*s.Share, kept.Width)
	err := y.await(status.Keys, func() error {
		return y.group.PCP.Comm.AllGather(&y.gathered, &y.given)
	})
	if err != nil {
		return err
	}
	var v compute.View
	if values > 0 {
		v = y.gathered.Columns(kept.Width-values, values)
	}
	y.dev.WriteCache(cache, layer, y.gathered.Columns(0, kept.Width-values), v, scales,
		b.SharedSlotsOf(cache.Group(layer)))
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
	r.share(x.All(), s.Wanted, s.WantedShare)
	// First to the first rank of each place, then to that of the first place.
	given, all := &r.given, &r.gathered
	for _, p := range []*RowGroup{r.group.PCP, r.group.DP} {
		if p == nil {
			continue
		}
		if p.Rank > 0 {
			all = nil
		} else {
			r.dev.Resize(all, p.Size*given.Rows, x.Width)
		}
		err := r.await(status.Rows, func() error {
			if p.Visits != nil {
				return p.Visits.Gather(all, given, 0)
			}
			return p.Comm.Gather(all, given, 0)
		})
		if err != nil || all == nil {
			return err
		}
		given, all = all, given
	}
	own := x.Rows
	r.dev.Extend(x, given.Rows)
	r.dev.Copy(x.Below(own), given.All())
	return nil
}
