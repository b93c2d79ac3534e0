package proof

import (
	"fmt"
	"math"

	"github.com/eagleray/eagleray/internal/compute/cuda/kernels"
	"github.com/eagleray/eagleray/internal/compute/sample"
)

// sampledParams are what rows are chosen by, in their order: each way alone, then together.
func sampledParams() []sample.Params {
	plain := sample.Params{TopP: 1, RepetitionPenalty: 1, Logprobs: sample.NoLogprobs,
		PromptLogprobs: sample.NoLogprobs, EOS: -1, MaxTokens: 100}
	list := make([]sample.Params, 10)
	for i := range list {
		list[i] = plain
		list[i].Seed, list[i].Temperature = uint64(i), 0.9
	}
	list[0].Temperature = 0
	list[2].TopK = 7
	list[3].TopP = 0.6
	list[4].MinP, list[4].TopP = 0.05, 0.8
	list[5].RepetitionPenalty, list[5].PresencePenalty, list[5].FrequencyPenalty = 1.3, 0.5, 0.2
	list[6].LogitBias = []sample.Bias{{ID: 3, Value: 4}, {ID: 8, Value: -2}}
	list[6].Logprobs = 5
	// Edits of one token that threads of several warps make, one after the other.
	for id := int32(200); id < 300; id++ {
		list[6].LogitBias = append(list[6].LogitBias, sample.Bias{ID: id, Value: 9})
	}
	list[6].RepetitionPenalty, list[6].MinTokens, list[6].StopTokens = 1.2, 50, []int32{299}
	list[7].AllowedTokens, list[7].Logprobs = []int32{1, 5, 9, 11}, 0
	list[8].TopK, list[8].TopP, list[8].MinP, list[8].Logprobs = 40, 0.9, 0.001, 20
	list[8].RepetitionPenalty, list[8].MinTokens, list[8].StopTokens = 1.1, 50, []int32{2, 6}
	list[9].Temperature, list[9].TopP = 3, 0.99 // of many tokens
	return list
}

// sampledCases are of tokens that are chosen from rows of logits, and described.
func sampledCases() (list []Case) {
	for _, n := range []struct {
		vocab int
		cost  Cost
	}{{700, Small}, {17000, Full}, {151936, Large}} {
		list = append(list, Case{Name: fmt.Sprintf("tokens of %d chosen", n.vocab), cost: n.cost,
			Kernels: []kernels.ID{kernels.Choose, kernels.Describe, kernels.Edit, kernels.Survey,
				kernels.Weigh}, run: func(s *subject) { sampled(s, n.vocab) }})
	}
	return list
}

// sampled holds tokens, ranks and log-probabilities to those of package sample: of rows that are
// chosen by all kinds of parameters, of one that a mask restricts, and of a given token.
func sampled(s *subject, vocab int) {
	params := sampledParams()
	logits, v := s.tensor(len(params)+3, vocab)
	for i := range v {
		v[i] *= 3
	}
	// Of the last row two logits of threads of several warps are infinite, and equally likely.
	endless := v[(len(params)+2)*vocab:]
	endless[5], endless[500] = float32(math.Inf(1)), float32(math.Inf(1))
	copy(logits.Floats(), v)
	logits.Memory.Filled()
	var rows []sample.Row
	prompt := []int32{4, 9}
	for id := int32(299); id >= 200; id-- {
		prompt = append(prompt, id)
	}
	add := func(p *sample.Params) *sample.Row {
		rows = append(rows, sample.Row{Index: len(rows), Params: p, Given: -1,
			State:    sample.NewState(p, prompt, []int32{7, 7, 12}),
			Position: uint32(10 + len(rows)), Logprobs: p.Logprobs})
		return &rows[len(rows)-1]
	}
	for i := range params {
		add(&params[i])
	}
	masked := add(&params[1])
	masked.Mask = make([]uint32, (vocab+31)/32)
	for i := range masked.Mask {
		masked.Mask[i] = 0x11111111
	}
	given := add(&params[1])
	given.Given, given.Logprobs = 17, 3
	last := add(&params[1])
	last.Given, last.Logprobs = 5, 2
	if err := s.Sample(logits, rows); err != nil {
		return // the device's own
	}
	var got []float32
	var want []float64
	for i := range rows {
		r := &rows[i]
		token, chosen, top := sampledOnHost(r, v[i*vocab:(i+1)*vocab])
		got, want = append(got, float32(r.Token)), append(want, float64(token))
		if r.Given >= 0 {
			got[len(got)-1] = float32(token) // it is not set
		}
		if r.Logprobs == sample.NoLogprobs {
			continue
		}
		for k, c := range append([]sample.Choice{chosen}, top...) {
			y := r.Sampled
			if k > 0 {
				y = sample.Choice{Token: -1}
				if k <= len(r.Top) {
					y = r.Top[k-1]
				}
			}
			got = append(got, float32(y.Token), float32(y.Rank), y.Logprob)
			want = append(want, float64(c.Token), float64(c.Rank), float64(c.Logprob))
		}
	}
	s.report("tokens", got, want, 1e-6)
}

// sampledOnHost is what package sample makes of a row.
func sampledOnHost(r *sample.Row, logits []float32) (token int32, c sample.Choice,
	top []sample.Choice) {
	var h sample.Sampler
	raw := append([]float32(nil), logits...)
	token = r.Given
	if token < 0 {
		work := append([]float32(nil), logits...)
		if r.Mask != nil {
			sample.Restrict(work, r.Mask)
		}
		token = h.Sample(work, r.Params, r.State, r.Position)
	}
	if r.Logprobs != sample.NoLogprobs {
		c, top = h.Logprobs(raw, token, r.Logprobs, false, nil)
	}
	return token, c, top
}
