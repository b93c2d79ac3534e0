package engine

import "github.com/eagleray/eagleray/internal/sample"

// DefaultParams are the sampling parameters of a request that sets none: the generation config's, else
// OpenAI's defaults, with MaxTokens tokens of output.
func (i *Info) DefaultParams(maxTokens int) sample.Params {
	p := sample.Params{Temperature: 1, TopP: 1, RepetitionPenalty: 1, Logprobs: sample.NoLogprobs,
		PromptLogprobs: sample.NoLogprobs, MaxTokens: int32(maxTokens), EOS: i.EOS, StopTokens: i.StopTokens}
	g := i.Generation
	set := func(dst *float32, v *float64) {
		if v != nil {
			*dst = float32(*v)
		}
	}
	set(&p.Temperature, g.Temperature)
	set(&p.TopP, g.TopP)
	set(&p.MinP, g.MinP)
	set(&p.RepetitionPenalty, g.RepetitionPenalty)
	if g.TopK != nil {
		p.TopK = int32(max(*g.TopK, 0))
	}
	return p
}
