package sample

import (
	"fmt"
	"math"
	"slices"
)

// ParamError says which sampling parameter is wrong, in the words of the OpenAI API and vLLM's
// extensions of it.
type ParamError struct {
	// Field is the name of the parameter in a request, for example "top_p".
	Field string
	// Message says what is allowed and what was given.
	Message string
}

// Error returns the message.
func (e *ParamError) Error() string { return e.Message }

// Validate checks every field against its range, as vLLM's SamplingParams does, and ids against the
// vocabulary; the error is a *ParamError.
func (p *Params) Validate(vocab int) error {
	if err := p.checkRanges(vocab); err != nil {
		return err
	}
	if err := p.checkIDs(vocab); err != nil {
		return err
	}
	return nil
}

// checkRanges checks every field but the lists of ids.
func (p *Params) checkRanges(vocab int) error {
	for _, check := range [...]func(int) *ParamError{p.checkFilters, p.checkPenalties,
		p.checkLengths} {
		if err := check(vocab); err != nil {
			return err
		}
	}
	return nil
}

func (p *Params) checkFilters(int) *ParamError {
	switch {
	case !finite(p.Temperature):
		return wrong("temperature", "must be a finite number", p.Temperature)
	case p.Temperature < 0:
		return wrong("temperature", "must be non-negative", p.Temperature)
	case !(p.TopP > 0 && p.TopP <= 1):
		return wrong("top_p", "must be in (0, 1]", p.TopP)
	case p.TopK < -1:
		return wrong("top_k", "must be 0 or -1 (off), or at least 1", p.TopK)
	case !(p.MinP >= 0 && p.MinP <= 1):
		return wrong("min_p", "must be in [0, 1]", p.MinP)
	}
	return nil
}

func (p *Params) checkPenalties(int) *ParamError {
	switch {
	case !(p.PresencePenalty >= -2 && p.PresencePenalty <= 2):
		return wrong("presence_penalty", "must be in [-2, 2]", p.PresencePenalty)
	case !(p.FrequencyPenalty >= -2 && p.FrequencyPenalty <= 2):
		return wrong("frequency_penalty", "must be in [-2, 2]", p.FrequencyPenalty)
	case !finite(p.RepetitionPenalty):
		return wrong("repetition_penalty", "must be a finite number", p.RepetitionPenalty)
	case p.RepetitionPenalty <= 0:
		return wrong("repetition_penalty", "must be greater than zero", p.RepetitionPenalty)
	}
	return nil
}

func (p *Params) checkLengths(vocab int) *ParamError {
	switch {
	case p.MaxTokens < 1:
		return wrong("max_tokens", "must be at least 1", p.MaxTokens)
	case p.MinTokens < 0:
		return wrong("min_tokens", "must be at least 0", p.MinTokens)
	case p.MinTokens > p.MaxTokens:
		rule := fmt.Sprintf("must be less than or equal to max_tokens=%d", p.MaxTokens)
		return wrong("min_tokens", rule, p.MinTokens)
	}
	if err := checkLogprobs("logprobs", p.Logprobs, vocab); err != nil {
		return err
	}
	return checkLogprobs("prompt_logprobs", p.PromptLogprobs, vocab)
}

func checkLogprobs(field string, n int32, vocab int) *ParamError {
	if n == NoLogprobs || n == AllLogprobs || n >= 0 && int(n) <= vocab {
		return nil
	}
	return wrong(field, fmt.Sprintf("must be between 0 and the vocabulary size %d, or the "+
		"whole vocabulary", vocab), n)
}

func (p *Params) checkIDs(vocab int) *ParamError {
	if p.EOS < -1 || int(p.EOS) >= vocab {
		return outside("eos_token_id", p.EOS, vocab)
	}
	if err := checkTokens("stop_token_ids", p.StopTokens, vocab); err != nil {
		return err
	}
	if err := checkTokens("eos_token_id", p.Withheld, vocab); err != nil {
		return err
	}
	if err := checkTokens("logprob_token_ids", p.LogprobTokens, vocab); err != nil {
		return err
	}
	if err := checkTokens("allowed_token_ids", p.AllowedTokens, vocab); err != nil {
		return err
	}
	if err := checkTokens("thinking_token_budget",
		slices.Concat(p.ThinkingStart, p.ThinkingEnd), vocab); err != nil {
		return err
	}
	for _, w := range p.BadWords {
		if len(w) == 0 {
			return &ParamError{Field: "bad_words",
				Message: "bad_words must not contain an empty word"}
		}
		if err := checkTokens("bad_words", w, vocab); err != nil {
			return err
		}
	}
	for _, b := range p.LogitBias {
		if b.ID < 0 || int(b.ID) >= vocab {
			return outside("logit_bias", b.ID, vocab)
		}
		if b.Value != b.Value {
			return wrong("logit_bias", fmt.Sprintf("of token %d must be a number", b.ID), b.Value)
		}
	}
	return nil
}

func checkTokens(field string, ids []int32, vocab int) *ParamError {
	for _, id := range ids {
		if id < 0 || int(id) >= vocab {
			return outside(field, id, vocab)
		}
	}
	return nil
}

func finite(v float32) bool { return !math.IsNaN(float64(v)) && !math.IsInf(float64(v), 0) }

func wrong(field, rule string, got any) *ParamError {
	return &ParamError{Field: field, Message: fmt.Sprintf("%s %s, got %v", field, rule, got)}
}

func outside(field string, id int32, vocab int) *ParamError {
	return wrong(field, fmt.Sprintf("must be token ids from 0 to %d (the vocabulary)", vocab-1), id)
}
