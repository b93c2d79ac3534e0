package sample

import (
	"errors"
	"math"
	"strings"
	"testing"
)

func TestValidate(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	bad := []struct {
		field, value string
		change       func(*Params)
	}{
		{"temperature", "-0.5", func(p *Params) { p.Temperature = -0.5 }},
		{"temperature", "NaN", func(p *Params) { p.Temperature = nan }},
		{"temperature", "+Inf", func(p *Params) { p.Temperature = inf }},
		{"top_p", "0", func(p *Params) { p.TopP = 0 }},
		{"top_p", "1.5", func(p *Params) { p.TopP = 1.5 }},
		{"top_p", "NaN", func(p *Params) { p.TopP = nan }},
		{"top_k", "-2", func(p *Params) { p.TopK = -2 }},
		{"min_p", "-0.1", func(p *Params) { p.MinP = -0.1 }},
		{"min_p", "1.1", func(p *Params) { p.MinP = 1.1 }},
		{"presence_penalty", "2.5", func(p *Params) { p.PresencePenalty = 2.5 }},
		{"presence_penalty", "NaN", func(p *Params) { p.PresencePenalty = nan }},
		{"frequency_penalty", "-2.5", func(p *Params) { p.FrequencyPenalty = -2.5 }},
		{"repetition_penalty", "0", func(p *Params) { p.RepetitionPenalty = 0 }},
		{"repetition_penalty", "+Inf", func(p *Params) { p.RepetitionPenalty = inf }},
		{"max_tokens", "0", func(p *Params) { p.MaxTokens = 0 }},
		{"min_tokens", "-1", func(p *Params) { p.MinTokens = -1 }},
		{"min_tokens", "17", func(p *Params) { p.MinTokens = 17 }},
		{"logprobs", "-3", func(p *Params) { p.Logprobs = -3 }},
		{"logprobs", "101", func(p *Params) { p.Logprobs = 101 }},
		{"prompt_logprobs", "101", func(p *Params) { p.PromptLogprobs = 101 }},
		{"stop_token_ids", "100", func(p *Params) { p.StopTokens = []int32{0, 100} }},
		{"stop_token_ids", "-1", func(p *Params) { p.StopTokens = []int32{-1} }},
		{"allowed_token_ids", "100", func(p *Params) { p.AllowedTokens = []int32{100} }},
		{"logprob_token_ids", "-1", func(p *Params) { p.LogprobTokens = []int32{3, -1} }},
		{"bad_words", "empty", func(p *Params) { p.BadWords = [][]int32{{}} }},
		{"bad_words", "100", func(p *Params) { p.BadWords = [][]int32{{1, 100}} }},
		{"logit_bias", "100", func(p *Params) { p.LogitBias = []Bias{{100, 1}} }},
		{"logit_bias", "NaN", func(p *Params) { p.LogitBias = []Bias{{1, nan}} }},
		{"eos_token_id", "100", func(p *Params) { p.EOS = 100 }},
	}
	for _, tt := range bad {
		err := with(tt.change).Validate(100)
		var pe *ParamError
		if !errors.As(err, &pe) || pe.Field != tt.field || !strings.Contains(err.Error(),
			tt.field) || !strings.Contains(err.Error(), tt.value) {
			t.Errorf("%s=%s: got %v", tt.field, tt.value, err)
		}
	}
	good := []func(*Params){
		func(*Params) {},
		func(p *Params) { p.Temperature, p.TopP, p.MinP = 0, 1e-9, 1 },
		func(p *Params) { p.PresencePenalty, p.FrequencyPenalty, p.RepetitionPenalty = -2, 2, 0.1 },
		func(p *Params) {
			p.MinTokens, p.Logprobs, p.PromptLogprobs, p.TopK = 16, 100, AllLogprobs,
				1<<30
		},
		func(p *Params) { p.EOS, p.StopTokens, p.AllowedTokens = 99, []int32{0}, []int32{99} },
	}
	for i, change := range good {
		if err := with(change).Validate(100); err != nil {
			t.Errorf("good %d: %v", i, err)
		}
	}
}
