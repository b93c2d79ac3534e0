package generate

import (
	"github.com/eagleray/eagleray/internal/api/wire"
)

// beams is what a request says of beam search.
type beams struct {
	// width is how many beams are kept, and answered: n.
	width int
	// penalty is the power of the length that the sum of log-probabilities is divided by.
	penalty float64
	// early ends the search with as many ends as beams.
	early bool
}

// decodeBeams reads the fields of beam search; n is known.
func (s *Sampling) decodeBeams(f *wire.Fields) {
	if !f.Boolean("use_beam_search", false) {
		needsBeams(f, "length_penalty", "1")
		needsBeams(f, "early_stopping", "false")
		return
	}
	s.Beams = &beams{width: s.N, penalty: 1, early: f.OptBool("early_stopping", false)}
	if v := f.OptFloat("length_penalty"); v != nil {
		if s.Beams.penalty = *v; *v < -16 || *v > 16 {
			f.Fail(wire.BadRequest("length_penalty",
				"`length_penalty` must be in [-16, 16], got %v", *v))
		}
	}
}

// needsBeams refuses a field that has no meaning without beam search, but for its neutral value.
func needsBeams(f *wire.Fields, name, neutral string) {
	before := f.Err
	if f.Unsupported(name, neutral); f.Err != before {
		f.Err.Message = "`" + name + "` needs `use_beam_search`"
	}
}

// CheckBeams refuses what beam search cannot obey, and more work than a request may ask for.
func (s *Sampling) CheckBeams(f *wire.Fields, m *Model, tools, budget bool) {
	if s.Beams == nil {
		return
	}
	off := func(v *float64, neutral float64) bool { return v != nil && *v != neutral }
	for _, c := range []struct {
		field string
		given bool
	}{
		{"stream", s.Stream},
		{"tools", tools},
		{s.constraintField, s.constraintField != ""},
		{s.stopField, len(s.stop) > 0},
		{"min_tokens", s.MinTokens > 0},
		{"logit_bias", len(s.LogitBias) > 0},
		{"allowed_token_ids", len(s.AllowedTokens) > 0},
		{"logprob_token_ids", len(s.LogprobTokens) > 0},
		{"bad_words", len(s.badWords) > 0},
		{"repetition_penalty", off(s.RepetitionPenalty, 1)},
		{"presence_penalty", off(s.PresencePenalty, 0)},
		{"frequency_penalty", off(s.FrequencyPenalty, 0)},
		{"repetition_detection", s.repetition.MaxPattern > 0},
		{"thinking_token_budget", budget},
	} {
		if c.given {
			f.Fail(wire.BadRequest(c.field,
				"`%s` and `use_beam_search` cannot be used together", c.field))
		}
	}
	if 2*s.N > m.VocabSize {
		f.Fail(wire.BadRequest("n",
			"beam search with n = %d needs a vocabulary of at least %d tokens, and the model's "+
				"has %d", s.N, 2*s.N, m.VocabSize))
	}
}

// checkBeamWork refuses a search after some prompts that asks for more tokens than one may.
func (s *Service) checkBeamWork(r *Sampling, prompts []Prompt) *wire.Error {
	if r.Beams == nil {
		return nil
	}
	work := 0
	for i := range prompts {
		work += r.N * int(prompts[i].Params.MaxTokens)
	}
	if work > s.lim.BeamTokens {
		return wire.BadRequest(r.maxTokensField,
			"beam search of %d tokens, that is `n` times `%s` times the number of prompts, is "+
				"more than %d", work, r.maxTokensField, s.lim.BeamTokens)
	}
	return nil
}
