package runner

import (
	"slices"

	"github.com/eagleray/eagleray/internal/link/step"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// A row with drafts wants logits of each of its positions. The first is as that of any row. Those
// after it are looked at in turn, only once the token before was sampled and is the draft: then the
// request's sampling state and its constraint have come to that token, and nothing of them is ever
// to be undone.

// retract forgets the drafts from a position on, and the blocks that only they needed.
func (s *slot) retract(position, blockSize int) {
	if rejected := len(s.tokens) - position; rejected > 0 && rejected <= s.drafted {
		s.tokens = s.tokens[:position]
		s.table = s.table[:min(len(s.table), (position+blockSize-1)/blockSize)]
		s.ahead.retract(len(s.table) * blockSize)
	}
	s.drafted = 0
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
