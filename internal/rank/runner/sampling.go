package runner

import (
	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/link/step"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// chooser fills the runner's choices of some of the wanted rows of a piece of logits, which it may
// change: a token for each, or what the row is wanted for instead.
type chooser interface {
	choose(wants []want, some []int, logits *layers.Tensor) error
}

// chooser is the device where that can do all that is wanted, else the host: which copies all the
// logits if they are elsewhere.
func (r *Runner) chooser(wants []want) chooser {
	if r.onDevice.can(wants) {
		return &r.onDevice
	}
	return &r.sampling
}

// sampleTask chooses on the host, one row per chunk of the threads.
type sampleTask struct {
	r        *Runner
	wants    []want
	some     []int     // of the wants
	logits   []float32 // of each row that is wanted
	samplers []sample.Sampler
	raw      [][]float32 // one per thread: logits before sampling changed them
	masks    [][]uint32  // one per thread: what constraints allow
}

// choice is what became of one row.
type choice struct {
	token   int32
	sampled sample.Choice
	top     []sample.Choice
	// pooled is what the row has for PoolLogits instead of a token.
	pooled []float32
}

func (t *sampleTask) init(r *Runner, threads int) {
	t.r = r
	t.samplers = make([]sample.Sampler, threads)
	t.raw = make([][]float32, threads)
	t.masks = make([][]uint32, threads)
}

func (t *sampleTask) choose(wants []want, some []int, logits *layers.Tensor) error {
	t.wants, t.some, t.logits = wants, some, logits.Floats()
	if err := t.r.opt.Model.Failed(); err != nil {
		return err
	}
	if len(some) == 1 {
		t.Do(0, 0)
		return nil
	}
	t.r.opt.Pool.Run(t, len(some))
	return nil
}

// Do chooses the token of one row.
func (t *sampleTask) Do(chunk, thread int) {
	i := t.some[chunk]
	w, c, sampler := t.wants[i], &t.r.choices[i], &t.samplers[thread]
	s := &t.r.slots[w.slot]
	vocab := t.r.opt.Vocab
	logits := t.logits[i*vocab : (i+1)*vocab]
	if w.target >= 0 {
		c.token = s.tokens[w.target]
		c.sampled, c.top = sampler.Logprobs(logits, c.token, s.params.PromptLogprobs,
			s.params.AsLogits, c.top[:0])
		return
	}
	if !sample.Sound(logits) {
		*c = choice{token: sample.Unsound, top: c.top[:0]}
		return
	}
	if s.pooling == step.PoolLogits {
		*c = choice{pooled: c.pooled[:0], top: c.top[:0]}
		for _, id := range s.params.AllowedTokens {
			c.pooled = append(c.pooled, logits[id])
		}
		return
	}
	var mask []uint32
	if s.bound != nil {
		var none int32
		if mask, none = s.bound.mask(t.masks[thread][:0], vocab, &s.params); none != 0 {
			*c = choice{token: none, top: c.top[:0]}
			return
		}
		t.masks[thread] = mask
	}
	raw, wanted := logits, s.params.Logprobs != sample.NoLogprobs
	if wanted && !s.params.Processed {
		// Log-probabilities are of the model's own logits; sampling overwrites them.
		raw = append(t.raw[thread][:0], logits...)
		t.raw[thread] = raw
	}
	if mask != nil {
		sample.Restrict(logits, mask)
	}
	c.token = sampler.Sample(logits, &s.params, s.state, uint32(w.position+1))
	if mask != nil && !sample.Allows(mask, c.token) {
		// Other parameters forbid what the constraint demands.
		*c = choice{token: sample.Stuck, top: c.top[:0]}
		return
	}
	if wanted && s.params.Processed {
		sampler.Processed(logits, &s.params)
	}
	switch {
	case !wanted:
	case len(s.params.LogprobTokens) > 0:
		c.sampled, c.top = sampler.LogprobsOf(raw, c.token, s.params.LogprobTokens,
			s.params.AsLogits, c.top[:0])
	default:
		c.sampled, c.top = sampler.Logprobs(raw, c.token, s.params.Logprobs, s.params.AsLogits,
			c.top[:0])
	}
}

func (c *choice) logprobs(slot uint32) step.Logprobs {
	l := step.Logprobs{
		Slot: slot, Sampled: tokenLogprob(c.sampled), Top: make([]step.TokenLogprob, len(c.top)),
	}
	for i, x := range c.top {
		l.Top[i] = tokenLogprob(x)
	}
	return l
}

func tokenLogprob(c sample.Choice) step.TokenLogprob {
	return step.TokenLogprob{Token: c.Token, Rank: c.Rank, Logprob: c.Logprob}
}
