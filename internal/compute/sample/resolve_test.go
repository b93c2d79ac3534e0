package sample

import (
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"
)

// resolved is what a request without any field gets of a model without a generation config.
func resolved(change func(*Params)) Params {
	p := Params{Temperature: 1, TopP: 1, RepetitionPenalty: 1, Logprobs: NoLogprobs,
		PromptLogprobs: NoLogprobs,
		MaxTokens:      16, EOS: 99}
	change(&p)
	return p
}

// TestResolve holds the precedence request, generation config, default, and what is settled.
func TestResolve(t *testing.T) {
	suggested := Settings{Temperature: new(0.7), TopP: new(0.8), TopK: new(20), MinP: new(0.05),
		RepetitionPenalty: new(1.1), PresencePenalty: new(0.5), FrequencyPenalty: new(-0.5),
		MaxTokens: new(40)}
	neutral := Settings{Temperature: new(1.0), TopP: new(1.0), TopK: new(0), MinP: new(0.0),
		RepetitionPenalty: new(1.0), PresencePenalty: new(0.0), FrequencyPenalty: new(0.0),
		MaxTokens: new(16)}
	for name, c := range map[string]struct {
		generation Settings
		stops      []int32 // of the generation config
		set        Overrides
		maxTokens  int // of the API; 16 for all but one
		want       func(p *Params)
	}{
		"nothing":      {want: func(p *Params) {}},
		"all the room": {maxTokens: 0, want: func(p *Params) { p.MaxTokens = 256 }},
		"generation config": {generation: suggested, stops: []int32{7}, want: func(p *Params) {
			p.Temperature, p.TopP, p.TopK, p.MinP, p.RepetitionPenalty = 0.7, 0.8, 20, 0.05, 1.1
			p.PresencePenalty, p.FrequencyPenalty = 0.5, -0.5
			p.MaxTokens, p.StopTokens = 40, []int32{7}
		}},
		"request over generation config": {generation: suggested, set: Overrides{Settings: neutral},
			want: func(p *Params) {}},
		"one setting over generation config": {generation: suggested,
			set: Overrides{Settings: Settings{TopP: new(0.5)}}, want: func(p *Params) {
				p.Temperature, p.TopP, p.TopK, p.MinP, p.RepetitionPenalty = 0.7, 0.5, 20, 0.05, 1.1
				p.PresencePenalty, p.FrequencyPenalty, p.MaxTokens = 0.5, -0.5, 40
			}},
		"the rest": {set: Overrides{Logprobs: new(int32(5)), PromptLogprobs: new(int32(0)),
			Seed: 9, MinTokens: 3, AllowedTokens: []int32{2, 1},
			BadWords: [][]int32{{1, 2}}}, want: func(p *Params) {
			p.Logprobs, p.PromptLogprobs, p.Seed = 5, 0, 9
			p.MinTokens, p.AllowedTokens, p.BadWords = 3, []int32{2, 1}, [][]int32{{1, 2}}
		}},
		"greedy": {set: Overrides{Settings: Settings{Temperature: new(0.0), TopP: new(0.5),
			TopK: new(5),
			MinP: new(0.5)}}, want: func(p *Params) { p.Temperature = 0 }},
		"greedy over generation config": {generation: suggested,
			set: Overrides{Settings: Settings{Temperature: new(0.0)}}, want: func(p *Params) {
				p.Temperature, p.RepetitionPenalty, p.MaxTokens = 0, 1.1, 40
				p.PresencePenalty, p.FrequencyPenalty = 0.5, -0.5
			}},
		"greedy generation config": {generation: Settings{Temperature: new(0.0), TopP: new(0.5)},
			want: func(p *Params) { p.Temperature = 0 }},
		"tiny temperature": {set: Overrides{Settings: Settings{Temperature: new(0.001)}},
			want: func(p *Params) { p.Temperature = 0.01 }},
		"tiny temperature of the generation config": {generation: Settings{Temperature: new(0.001)},
			want: func(p *Params) { p.Temperature = 0.01 }},
		"top_k off": {set: Overrides{Settings: Settings{TopK: new(-1)}}, want: func(p *Params) {}},
		"top_k of one less": {set: Overrides{Settings: Settings{TopK: new(99)}},
			want: func(p *Params) { p.TopK = 99 }},
		"top_k of the vocabulary": {set: Overrides{Settings: Settings{TopK: new(100)}},
			want: func(p *Params) {}},
		"top_k beyond an int32": {set: Overrides{Settings: Settings{TopK: new(1 << 40)}},
			want: func(p *Params) {}},
		"top_k of the generation config off over it": {generation: Settings{TopK: new(5)},
			set: Overrides{Settings: Settings{TopK: new(-1)}}, want: func(p *Params) {}},
		"stop tokens": {stops: []int32{50, 9}, set: Overrides{StopTokens: []int32{9, 3, 9}},
			want: func(p *Params) { p.StopTokens = []int32{3, 9, 50} }},
		"ignore_eos": {stops: []int32{50}, set: Overrides{StopTokens: []int32{9}, IgnoreEOS: true},
			want: func(p *Params) {
				p.StopTokens, p.IgnoreEOS, p.Withheld = []int32{9}, true, []int32{50}
			}},
		"bias": {set: Overrides{LogitBias: []Bias{{1, 500}, {2, -500}, {3, 7},
			{4, float32(math.Inf(1))}}},
			want: func(p *Params) { p.LogitBias = []Bias{{1, 100}, {2, -100}, {3, 7}, {4, 100}} }},
	} {
		if name != "all the room" {
			c.maxTokens = 16
		}
		d := Defaults{Generation: c.generation, EOS: 99, StopTokens: c.stops, VocabSize: 100,
			MaxModelLen: 256}
		got, err := d.Resolve(&c.set, c.maxTokens)
		if want := resolved(c.want); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v\ngot  %+v\nwant %+v", name, err, got, want)
		}
		if err := got.Validate(100); err != nil {
			t.Errorf("%s: resolved parameters are refused: %v", name, err)
		}
	}
}

// TestResolveBound: no output is longer than what the server allows.
func TestResolveBound(t *testing.T) {
	d := Defaults{MostTokens: 7, EOS: -1, VocabSize: 100, MaxModelLen: 256}
	for set, want := range map[int]int32{100: 7, 5: 5, 0: 7} {
		o := Overrides{}
		if set > 0 {
			o.MaxTokens = &set
		}
		if p, err := d.Resolve(&o, 0); err != nil || p.MaxTokens != want {
			t.Errorf("%d asked for: %d, %v", set, p.MaxTokens, err)
		}
	}
}

// TestResolveLeavesItsInputs: choices of one request and all requests of a model share them.
func TestResolveLeavesItsInputs(t *testing.T) {
	o := Overrides{StopTokens: []int32{9, 3}, LogitBias: []Bias{{1, 500}}}
	d := Defaults{StopTokens: []int32{8, 7}, EOS: -1, VocabSize: 10, MaxModelLen: 10}
	if _, err := d.Resolve(&o, 1); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(o.StopTokens, []int32{9, 3}) || o.LogitBias[0].Value != 500 ||
		!reflect.DeepEqual(d.StopTokens, []int32{8, 7}) {
		t.Errorf("changed %+v, %+v", o, d)
	}
}

// TestResolveRefuses holds that no value out of range is settled away.
func TestResolveRefuses(t *testing.T) {
	for field, o := range map[string]Overrides{
		"temperature":        {Settings: Settings{Temperature: new(-0.5)}},
		"top_p":              {Settings: Settings{Temperature: new(0.0), TopP: new(1.5)}},
		"top_k":              {Settings: Settings{TopK: new(-2)}},
		"min_p":              {Settings: Settings{Temperature: new(0.0), MinP: new(-0.1)}},
		"repetition_penalty": {Settings: Settings{RepetitionPenalty: new(0.0)}},
		"presence_penalty":   {Settings: Settings{PresencePenalty: new(2.5)}},
		"frequency_penalty":  {Settings: Settings{FrequencyPenalty: new(math.NaN())}},
		"max_tokens":         {Settings: Settings{MaxTokens: new(0)}},
		"min_tokens":         {MinTokens: 17},
		"logprobs":           {Logprobs: new(int32(101))},
		"prompt_logprobs":    {PromptLogprobs: new(int32(-3))},
	} {
		d := Defaults{EOS: -1, VocabSize: 100, MaxModelLen: 256}
		_, err := d.Resolve(&o, 16)
		var wrong *ParamError
		if !errors.As(err, &wrong) || wrong.Field != field || !strings.Contains(err.Error(),
			field) {
			t.Errorf("%s: %v", field, err)
		}
	}
}

func TestFit(t *testing.T) {
	d := Defaults{MaxModelLen: 100}
	for _, c := range []struct{ asked, prompt, want int32 }{{16, 10, 16}, {90, 10, 90}, {91, 10,
		90}, {1, 99, 1}} {
		p := Params{MaxTokens: c.asked}
		if d.Fit(&p, int(c.prompt)); p.MaxTokens != c.want {
			t.Errorf("%d tokens after %d: %d, want %d", c.asked, c.prompt, p.MaxTokens, c.want)
		}
	}
}
