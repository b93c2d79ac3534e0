package runner

import (
	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/link/step"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// deviceTask has the device choose: the logits stay there. What constraints allow is worked out on
// the host meanwhile, one row per chunk of the threads.
type deviceTask struct {
	r     *Runner
	wants []want
	some  []int        // of the wants
	rows  []sample.Row // by want
	// asked are those of the rows that have logits to be looked at, masks and without are, by want,
	// what a constraint allows, and what stands in the place of a token that none can be (0 for
	// nothing).
	asked   []sample.Row
	masks   [][]uint32
	without []int32
}

// can says whether the device can choose for all wants, and notes what is asked of it.
func (t *deviceTask) can(wants []want) bool {
	if t.r.opt.Sampler == nil {
		return false
	}
	t.wants, t.rows = wants, t.rows[:0]
	for i, w := range wants {
		s := &t.r.slots[w.slot]
		t.rows = append(t.rows, sample.Row{Index: i, Params: &s.params, State: s.state,
			Position: uint32(w.position + 1), Given: -1, Logprobs: s.params.Logprobs})
		row := &t.rows[i]
		if w.target >= 0 {
			row.Given, row.Logprobs = s.tokens[w.target], s.params.PromptLogprobs
		} else if s.pooling == step.PoolLogits {
			return false
		}
		if !t.r.opt.Sampler.Samples(row, t.r.opt.Vocab) {
			return false
		}
	}
	return true
}

// choose implements chooser, after can.
func (t *deviceTask) choose(_ []want, some []int, logits *layers.Tensor) error {
	t.some = some
	t.restrict()
	t.asked = t.asked[:0]
	for _, i := range some {
		c := &t.r.choices[i]
		*c = choice{token: t.without[i], top: c.top[:0], pooled: c.pooled[:0]}
		if t.without[i] == 0 {
			row := t.rows[i]
			row.Top = c.top
			t.asked = append(t.asked, row)
		}
	}
	if err := t.r.opt.Sampler.Sample(logits, t.asked); err != nil {
		return err
	}
	for i := range t.asked {
		row := &t.asked[i]
		c := &t.r.choices[row.Index]
		c.token, c.sampled, c.top = row.Token, row.Sampled, row.Top
		if row.Mask != nil && row.Token >= 0 && !sample.Allows(row.Mask, row.Token) {
			// Other parameters forbid what the constraint demands.
			*c = choice{token: sample.Stuck, top: c.top[:0], pooled: c.pooled}
		}
	}
	return nil
}

// restrict works out what the constraints of the rows allow.
func (t *deviceTask) restrict() {
	for len(t.masks) < len(t.rows) {
		t.masks, t.without = append(t.masks, nil), append(t.without, 0)
	}
	bound := 0
	for _, i := range t.some {
		w := t.wants[i]
		t.without[i] = 0
		if w.target < 0 && t.r.slots[w.slot].bound != nil {
			bound++
		}
	}
	if bound > 1 {
		t.r.opt.Pool.Run(t, len(t.some))
		return
	}
	for i := range t.some {
		t.Do(i, 0)
	}
}

// Do works out what the constraint of one row allows.
func (t *deviceTask) Do(chunk, _ int) {
	i := t.some[chunk]
	w := t.wants[i]
	s := &t.r.slots[w.slot]
	if w.target >= 0 || s.bound == nil {
		return
	}
	mask, none := s.bound.mask(t.masks[i][:0], t.r.opt.Vocab, &s.params)
	if t.without[i] = none; none == 0 {
		t.masks[i], t.rows[i].Mask = mask, mask
	}
}
