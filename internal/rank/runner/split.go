package runner

import (
	"fmt"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/link/layout"
	"github.com/eagleray/eagleray/internal/link/step"
)

// split is which rows of a step ranks divide among them: whole requests among places, and in each
// those of long prompts among its ranks. All of them work it out from the plan, each for all: then
// they agree on what they exchange.
type split struct {
	layout layout.Layout
	own    int // this rank's number among them (layout.Layout.Row)
	ranks  []rankRows
}

// rankRows are the rows of one rank.
type rankRows struct {
	slots  []int32 // where keys and values go of those that it computes alone, by all groups
	wanted int     // how many of those have logits that are wanted
	rows   int     // how many it computes
}

func (s *split) init(l layout.Layout, rank int) {
	s.layout = l.Sizes()
	s.own = l.Row(rank)
	s.ranks = make([]rankRows, s.layout.Rows())
}

func (s *split) reset() {
	for i := range s.ranks {
		s.ranks[i] = rankRows{slots: s.ranks[i].slots[:0]}
	}
}

// addRows adds one request's tokens to the batch, those that this rank computes, as a sequence of
// the batch if its place computes them. Of the others it notes where they are computed. A head is
// to have them if the plan lists the request, as its at-th.
func (r *Runner) addRows(p *step.Row, at int, s *slot, listed bool) error {
	start, end := int(p.Start), int(p.Start)+int(p.Count)
	cached := r.opt.Blocks > 0
	if end <= start || end > len(s.tokens) || cached && end > r.reach(s) {
		return fmt.Errorf("slot %d computes positions %d to %d of %d tokens, and has blocks of %d",
			p.Slot, start, end, len(s.tokens), r.reach(s))
	}
	if p.Sample && end != len(s.tokens) {
		return fmt.Errorf("slot %d samples after position %d of %d tokens", p.Slot, end-1,
			len(s.tokens))
	}
	if !cached && (start > 0 || end < len(s.tokens)) {
		return fmt.Errorf("slot %d computes positions %d to %d of %d tokens, which see each other",
			p.Slot, start, end, len(s.tokens))
	}
	b := &r.batch
	seq := r.sequences
	if r.home(p.Slot) == r.place.DP {
		r.sequences++
		for g := range r.caches {
			c := &r.caches[g]
			c.tables = append(c.tables, c.tableOf(p.Slot, s))
		}
		b.States = append(b.States, int32(int(p.Slot)%r.placeSlots()))
	}
	for i := range r.split.layout.Pieces(end - start) {
		piece := r.split.layout.Piece(end-start, i)
		// The rank that computes the piece, or the first of all those of the place.
		first, pcp := r.home(p.Slot)*r.split.layout.PCP, r.split.layout.PCP
		place, alone := first+max(piece.PCP, 0), piece.PCP != layout.Everyone
		own := place == r.split.own || !alone && first == r.split.own/pcp*pcp
		r.split.count(first, place, piece)
		for pos := start + piece.From; pos < start+piece.To; pos++ {
			if !cached {
				b.Types = append(b.Types, int32(b2u(s.second > 0 && pos >= s.second)))
			}
			for g := range r.caches {
				to := int32(noSlot)
				if cached {
					var err error
					if to, err = r.slotOf(s, pos, g); err != nil {
						return err
					}
				}
				if own {
					c := &r.caches[g]
					c.slots = append(c.slots, to)
				}
				if alone {
					of := &r.split.ranks[place]
					of.slots = append(of.slots, to)
				}
			}
			if own {
				b.Tokens = append(b.Tokens, s.tokens[pos])
				b.Position = append(b.Position, int32(pos))
				b.Seq = append(b.Seq, seq)
				if r.opt.DraftStates > 0 {
					b.Kept = append(b.Kept, s.keptAt(pos))
				}
				if s.adapter != 0 {
					addAdapted(b, s.adapter)
				}
			}
			if alone && place == r.split.own {
				b.Split.Rows = append(b.Split.Rows, int32(len(b.Tokens)-1))
			}
			last := p.Sample && pos == end-1
			predicts := s.params.PromptLogprobs != sample.NoLogprobs && pos+1 < s.promptLen
			pools := s.pooling.Reads(pos, last)
			samples := !pools && p.Sample && pos >= end-1-s.drafted
			if predicts || pools || samples || listed {
				sent := r.send(place)
				if listed {
					r.states = append(r.states, state{seq: int32(at), position: pos, sent: sent})
				}
				if predicts {
					r.addWant(want{slot: p.Slot, target: int32(pos + 1), sent: sent})
				}
				if pools {
					r.addWant(want{slot: p.Slot, target: intoPool, last: last, position: pos,
						sent: sent})
				} else if samples {
					r.addWant(want{slot: p.Slot, target: toSample, position: pos, sent: sent})
				}
			}
			if last {
				s.sampled = elsewhere // until this rank has it
			}
		}
	}
	return nil
}

// count notes how many rows the rank at place computes of a piece, or all of those of its place,
// the first of which is known.
func (s *split) count(first, place int, piece layout.Piece) {
	n := piece.To - piece.From
	if piece.PCP != layout.Everyone {
		s.ranks[place].rows += n
		return
	}
	for i := range s.layout.PCP {
		s.ranks[first+i].rows += n
	}
}

// home is the place that computes the rows of a slot.
func (r *Runner) home(slot uint32) int { return int(slot) / r.placeSlots() }

// placeSlots is how many slots each place has.
func (r *Runner) placeSlots() int { return len(r.slots) / r.split.layout.DP }

// addAdapted notes that the last row of the batch has an adapter.
func addAdapted(b *compute.Batch, adapter uint32) {
	end := int32(len(b.Seq))
	if n := len(b.Adapters); n > 0 {
		if last := &b.Adapters[n-1]; last.Adapter == adapter && last.To == end-1 {
			last.To = end
			return
		}
	}
	b.Adapters = append(b.Adapters, compute.AdapterRows{Adapter: adapter, From: end - 1, To: end})
}

// send has the first rank get the hidden state of a row of the rank at place; on that it is the
// last one of the batch.
func (r *Runner) send(place int) sent {
	last := int32(len(r.batch.Tokens) - 1)
	b := sent{place: place, row: last}
	if b.place > 0 {
		b.row = int32(r.split.ranks[place].wanted)
		r.split.ranks[place].wanted++
	}
	if b.place > 0 && b.place == r.split.own {
		r.batch.Split.Wanted = append(r.batch.Split.Wanted, last)
	}
	return b
}

// addWant notes that something is wanted of a row. The first rank has the list: it samples.
func (r *Runner) addWant(w want) {
	if r.split.own == 0 {
		r.wants = append(r.wants, w)
	}
}

// divide completes the batch once all rows are known: shares are as large as the largest of any
// rank of the place, those of wanted rows as that of any place, and wanted rows of other ranks
// follow this one's.
func (r *Runner) divide() {
	s, pcp := &r.batch.Split, r.split.layout.PCP
	s.Share, s.WantedShare, s.Places = 0, 0, s.Places[:0]
	for i := r.split.own % pcp; r.split.layout.DP > 1 && i < len(r.split.ranks); i += pcp {
		s.Places = append(s.Places, int32(r.split.ranks[i].rows))
	}
	for i := range r.split.ranks {
		s.WantedShare = max(s.WantedShare, r.split.ranks[i].wanted)
	}
	first := r.split.own / pcp * pcp
	place := r.split.ranks[first : first+pcp]
	groups := len(r.caches)
	for i := range place {
		s.Share = max(s.Share, len(place[i].slots)/groups)
	}
	for g := range groups {
		for i := range place {
			slots := place[i].slots
			if first+i == r.split.own {
				slots = nil
			}
			for at := g; at < len(slots); at += groups {
				s.Slots = append(s.Slots, slots[at])
			}
			for range s.Share - len(slots)/groups {
				s.Slots = append(s.Slots, noSlot)
			}
		}
	}
	for i := range r.wants {
		r.find(&r.wants[i].sent)
	}
	for i := range r.states {
		r.find(&r.states[i].sent)
	}
}

// find sets where a row is, once it is known where those of other ranks go.
func (r *Runner) find(b *sent) {
	if b.place > 0 {
		b.row += int32(r.batch.Rows() + b.place*r.batch.Split.WantedShare)
	}
}

// noSlot is the cache slot of a row that is not written.
const noSlot = -1
