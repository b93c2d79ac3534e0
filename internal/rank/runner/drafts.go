package runner

import (
	"fmt"
	"slices"

	"github.com/eagleray/eagleray/internal/link/step"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// A row with drafts wants logits of each of its positions. The first is as that of any row. Those
// after it are looked at in turn, only once the token before was sampled and is the draft: then the
// request's sampling state and its constraint have come to that token, and nothing of them is ever
// to be undone.

// retract forgets the drafts from a position on, and the blocks that only they needed.
func (r *Runner) retract(id uint32, position int) {
	s := &r.slots[id]
	if rejected := len(s.tokens) - position; rejected > 0 && rejected <= s.drafted {
		s.tokens = s.tokens[:position]
		r.cutTable(id, (position+r.opt.BlockSize-1)/r.opt.BlockSize)
		s.ahead.retract(r.reach(s))
	}
	s.drafted = 0
}

// A layer that keeps a state of a request keeps that after each position before a draft as well, so
// that the request can go on from any of them.

// goBack has a row go on from the state at its position, behind which drafts were computed.
func (r *Runner) goBack(row *step.Row, s *slot) {
	rejected := len(s.tokens) - int(row.Start)
	if n := len(s.kept); rejected > 0 && rejected <= n && r.computesHere(row.Slot) {
		r.opt.Cache.CopyState(int(row.Slot)%r.placeSlots(), int(s.kept[n-rejected]))
	}
	r.releaseStates(s)
}

func (r *Runner) releaseStates(s *slot) {
	r.unused = append(r.unused, s.kept...)
	s.kept = s.kept[:0]
}

// reserveStates finds places for the states before the drafts of a row.
func (r *Runner) reserveStates(row *step.Row, s *slot) error {
	if r.opt.DraftStates == 0 || s.drafted == 0 || !r.computesHere(row.Slot) {
		return nil
	}
	left := len(r.unused) - s.drafted
	if left < 0 {
		return fmt.Errorf("slot %d has %d drafts, and there is room for the states of %d",
			row.Slot, s.drafted, len(r.unused))
	}
	s.kept = append(s.kept, r.unused[left:]...)
	r.unused = r.unused[:left]
	return nil
}

// computesHere says whether this rank computes the rows of a slot.
func (r *Runner) computesHere(slot uint32) bool {
	return r.home(slot) == r.place.DP
}

// keptAt is where the state after a position is kept, -1 for nowhere.
func (s *slot) keptAt(pos int) int32 {
	if at := pos + 1 - (len(s.tokens) - s.drafted); at >= 0 && at < len(s.kept) {
		return s.kept[at]
	}
	return -1
}

// goOn tells what chooses the tokens of a request of one of its output.
func (s *slot) goOn(token int32) {
	if s.state != nil {
		s.state.Append(token)
	}
	if s.bound != nil {
		s.bound.append(token)
	}
}

// follows says whether a row is that of a draft.
func (r *Runner) follows(w want) bool {
	s := &r.slots[w.slot]
	return w.target == toSample && w.position >= len(s.tokens)-s.drafted
}

// going says whether a row is none of a draft, or that of one which was sampled, as far as is
// known.
func (r *Runner) going(w want) bool { return !r.follows(w) || r.slots[w.slot].going }

// choose fills the choices of the wanted rows of a piece of logits: of those of drafts as far as
// the drafts are sampled, one of each request at a time.
func (r *Runner) choose(wants []want, logits *layers.Tensor) error {
	r.round = r.round[:0]
	for i, w := range wants {
		if !r.follows(w) || i == 0 && r.going(w) {
			r.round = append(r.round, i)
		}
	}
	chooser := r.chooser(wants)
	for len(r.round) > 0 {
		if err := chooser.choose(wants, r.round, logits); err != nil {
			return err
		}
		next := r.round[:0]
		for _, i := range r.round {
			if r.accepts(wants[i], r.choices[i].token) && i+1 < len(wants) {
				next = append(next, i+1)
			}
		}
		r.round = next
	}
	return nil
}

// accepts says whether a row's token is the draft after it, with which the request goes on then.
func (r *Runner) accepts(w want, token int32) bool {
	s := &r.slots[w.slot]
	if w.target != toSample || w.position+1 >= len(s.tokens) {
		return false
	}
	if s.going = s.tokens[w.position+1] == token; s.going {
		s.goOn(token)
	}
	return s.going
}

// force adds to a result what comes next by the constraints of its requests, where those leave no
// choice.
func (r *Runner) force(res *step.Result) {
	for i, slot := range res.Slot {
		run, b := res.Run(i), r.slots[slot].bound
		last := run[len(run)-1]
		if b == nil || b.at == nil || b.missed || b.lost || last < 0 {
			continue
		}
		words := b.at.Words()
		r.mask = slices.Grow(r.mask[:0], words)[:words]
		f := step.AddDrafts(&res.Forced, slot)
		f.Tokens = b.at.Forced(f.Tokens, last, step.MaxDrafts, r.mask)
		// A tokenizer may have tokens that the model has not.
		if end := slices.IndexFunc(f.Tokens, func(t int32) bool {
			return int(t) >= r.opt.Vocab
		}); end >= 0 {
			f.Tokens = f.Tokens[:end]
		}
		if len(f.Tokens) == 0 {
			res.Forced = res.Forced[:len(res.Forced)-1]
		}
	}
}
