package layers

import "github.com/eagleray/eagleray/internal/compute"

// exchange gives the keys and values of the rows that this rank computes alone to the others, and
// writes theirs to the cache. qkv has them after from values of each row.
func (y *Attention) exchange(qkv *Tensor, from int, s *compute.Split, cache *Cache) error {
	width := qkv.width - from
	y.given.Resize(s.Share, width)
	for i, row := range s.Rows {
		copy(y.given.Row(i), qkv.Row(int(row))[from:])
	}
	y.gathered.Resize(y.group.Prefill.Size*s.Share, width)
	y.report(true)
	err := y.group.Prefill.Comm.AllGather(y.gathered.data, y.given.data)
	y.report(false)
	if err != nil {
		return err
	}
	data := y.gathered.data
	y.dev.WriteCache(cache.kv, y.layer, y.gathered.rows, data, data[width/2:], width, s.Slots)
	return nil
}

// GatherWanted gives the rows of x whose logits are wanted, and that this rank computed alone, to
// the first of those that divide rows. There they follow the rows that x has: WantedShare of each
// rank.
func (r *rank) GatherWanted(x *Tensor, s *compute.Split) error {
	p := r.group.Prefill
	r.given.Resize(s.WantedShare, x.width)
	for i, row := range s.Wanted {
		copy(r.given.Row(i), x.Row(int(row)))
	}
	var dst []float32
	if p.Rank == 0 {
		own := x.rows
		x.extend(p.Size * s.WantedShare)
		dst = x.data[own*x.width:]
	}
	r.report(true)
	err := p.Comm.Gather(dst, r.given.data, 0)
	r.report(false)
	return err
}
