package api

import (
	"reflect"
	"slices"
	"testing"

	"github.com/eagleray/eagleray/internal/api/openai"
	"github.com/eagleray/eagleray/internal/compute/sample"
)

func ptr[T any](v T) *T { return &v }

// neutral is what a request without any field gets.
func neutral() sample.Params {
	return sample.Params{Temperature: 1, TopP: 1, RepetitionPenalty: 1, Logprobs: sample.NoLogprobs,
		PromptLogprobs: sample.NoLogprobs, MaxTokens: 16, EOS: 2047}
}

// TestParams holds how each field reaches the engine, and the precedence of defaults.
func TestParams(t *testing.T) {
	config := sample.Defaults{Generation: sample.Settings{Temperature: ptr(0.7), TopP: ptr(0.8),
		TopK: ptr(20), MinP: ptr(0.05), RepetitionPenalty: ptr(1.1),
		PresencePenalty: ptr(0.5), FrequencyPenalty: ptr(-0.5), MaxTokens: ptr(40)},
		StopTokens: []int32{2045}}
	for name, c := range map[string]struct {
		defaults sample.Defaults
		fields   string
		want     func(p *sample.Params)
	}{
		"nothing": {fields: `"seed":1`, want: func(p *sample.Params) {}},
		"every number": {fields: `"temperature":0.5,"top_p":0.9,"top_k":7,"min_p":0.1,"repetition_penalty":1.2,"presence_penalty":-1,"frequency_penalty":2,"max_tokens":30,"min_tokens":3`,
			want: func(p *sample.Params) {
				p.Temperature, p.TopP, p.TopK, p.MinP = 0.5, 0.9, 7, 0.1
				p.RepetitionPenalty, p.PresencePenalty, p.FrequencyPenalty = 1.2, -1, 2
				p.MaxTokens, p.MinTokens = 30, 3
			}},
		"top_k off": {fields: `"top_k":-1`, want: func(p *sample.Params) {}},
		"top_k all": {fields: `"top_k":5000`, want: func(p *sample.Params) {}},
		"greedy": {fields: `"temperature":0,"top_p":0.5,"top_k":5,"min_p":0.5`,
			want: func(p *sample.Params) { p.Temperature = 0 }},
		"tiny temperature": {fields: `"temperature":0.0001`,
			want: func(p *sample.Params) { p.Temperature = 0.01 }},
		"logprobs": {fields: `"logprobs":5,"prompt_logprobs":0`,
			want: func(p *sample.Params) { p.Logprobs, p.PromptLogprobs = 5, 0 }},
		"named logprobs": {fields: `"logprobs":0,"logprob_token_ids":[7,5]`,
			want: func(p *sample.Params) { p.Logprobs, p.LogprobTokens = 3, []int32{7, 5} }},
		"named logprobs and echo": {fields: `"logprobs":1,"logprob_token_ids":[7],"echo":true`,
			want: func(p *sample.Params) {
				p.Logprobs, p.LogprobTokens, p.PromptLogprobs = 2, []int32{7}, 1
			}},
		"echo scores the prompt": {fields: `"logprobs":2,"echo":true`,
			want: func(p *sample.Params) { p.Logprobs, p.PromptLogprobs = 2, 2 }},
		"echo alone": {fields: `"echo":true`, want: func(p *sample.Params) {}},
		"echo no tokens": {fields: `"echo":true,"max_tokens":0`,
			want: func(p *sample.Params) { p.MaxTokens = 1 }},
		"ignore_eos": {defaults: sample.Defaults{StopTokens: []int32{2045}},
			fields: `"ignore_eos":true,"stop_token_ids":[9]`,
			want: func(p *sample.Params) {
				p.IgnoreEOS, p.StopTokens, p.Withheld = true, []int32{9}, []int32{2045}
			}},
		"stop tokens": {fields: `"stop_token_ids":[9,3,9]`,
			want: func(p *sample.Params) { p.StopTokens = []int32{3, 9} }},
		"stop tokens too": {defaults: sample.Defaults{StopTokens: []int32{2045, 9}},
			fields: `"stop_token_ids":[9,3]`,
			want:   func(p *sample.Params) { p.StopTokens = []int32{3, 9, 2045} }},
		"bias": {fields: `"logit_bias":{"5":1.5,"7":-1000}`,
			want: func(p *sample.Params) {
				p.LogitBias = []sample.Bias{{ID: 5, Value: 1.5}, {ID: 7,
					Value: -100}}
			}},
		"allowed": {fields: `"allowed_token_ids":[1,2]`,
			want: func(p *sample.Params) { p.AllowedTokens = []int32{1, 2} }},
		"generation config": {defaults: config, fields: `"seed":1`, want: func(p *sample.Params) {
			p.Temperature, p.TopP, p.TopK, p.MinP, p.RepetitionPenalty = 0.7, 0.8, 20, 0.05, 1.1
			p.PresencePenalty, p.FrequencyPenalty = 0.5, -0.5
			p.StopTokens = []int32{2045}
		}},
		"request over generation config": {defaults: config,
			fields: `"temperature":1,"top_p":1,"top_k":0,"min_p":0,"repetition_penalty":1,"presence_penalty":0,"frequency_penalty":0,"max_tokens":50`,
			want:   func(p *sample.Params) { p.MaxTokens, p.StopTokens = 50, []int32{2045} }},
		"null over nothing": {defaults: sample.Defaults{Generation: sample.Settings{Temperature: ptr(0.7)}}, fields: `"temperature":null`, want: func(p *sample.Params) { p.Temperature = 0.7 }},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t, func(o *Options) {
				o.Info.Generation, o.Info.StopTokens = c.defaults.Generation, c.defaults.StopTokens
			})
			s.ok(t, completionsPath, `{"prompt":[1,2,3],`+c.fields+`}`)
			want := neutral()
			c.want(&want)
			got := s.engine.last(t).Params
			want.Seed = got.Seed
			if len(want.StopTokens) == 0 {
				want.StopTokens = got.StopTokens[:0]
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("got  %+v\nwant %+v", got, want)
			}
		})
	}
}

func TestSeeds(t *testing.T) {
	s := newServer(t)
	s.ok(t, completionsPath, `{"prompt":["a","b"],"n":2,"seed":-5}`)
	var seeds []int64
	for _, r := range s.engine.requests {
		seeds = append(seeds, int64(r.Params.Seed))
	}
	if want := []int64{-5, -4, -5, -4}; !slices.Equal(seeds, want) {
		t.Errorf("seeds %v, want %v", seeds, want)
	}
	seen := map[uint64]bool{}
	for range 3 {
		s.ok(t, completionsPath, `{"prompt":"a","n":2}`)
	}
	for _, r := range s.engine.requests[4:] {
		seen[r.Params.Seed] = true
	}
	if len(seen) != 6 {
		t.Errorf("%d different seeds for 6 sequences without one", len(seen))
	}
}

// TestMaxTokens holds how much room an output gets.
func TestMaxTokens(t *testing.T) {
	for name, c := range map[string]struct {
		path, body string
		defaults   sample.Settings
		want       int32
	}{
		"completion default": {completionsPath, `{"prompt":[1]}`, sample.Settings{},
			16},
		"completion default in the end": {completionsPath, `{"prompt":[` + repeat("1", 250) +
			`]}`, sample.Settings{}, 6},
		"completion all the room": {completionsPath, `{"prompt":[1],"max_tokens":255}`,
			sample.Settings{}, 255},
		"completion config in the end": {completionsPath, `{"prompt":[` + repeat("1", 250) +
			`]}`, sample.Settings{MaxTokens: ptr(100)}, 6},
		"chat default is the room": {openai.ChatPath, `{` + hiChat + `}`, sample.Settings{},
			-1},
		"chat config": {openai.ChatPath, `{` + hiChat + `}`,
			sample.Settings{MaxTokens: ptr(33)}, 33},
		"chat max_tokens": {openai.ChatPath, `{` + hiChat + `,"max_tokens":5}`,
			sample.Settings{MaxTokens: ptr(33)}, 5},
		"chat max_completion_tokens": {openai.ChatPath, `{` + hiChat +
			`,"max_completion_tokens":6}`, sample.Settings{}, 6},
		"chat max_completion_tokens wins": {openai.ChatPath, `{` + hiChat +
			`,"max_completion_tokens":6,"max_tokens":9}`, sample.Settings{}, 6},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t, func(o *Options) { o.Info.Generation = c.defaults })
			s.ok(t, c.path, c.body)
			r := s.engine.last(t)
			want := c.want
			if want < 0 {
				want = int32(256 - len(r.Prompt))
			}
			if r.Params.MaxTokens != want {
				t.Errorf("max tokens %d, want %d", r.Params.MaxTokens, want)
			}
		})
	}
}

func TestTruncation(t *testing.T) {
	s := newServer(t)
	long := repeat("1", 100) + "," + repeat("2", 300)
	for fields, want := range map[string]struct {
		length int
		first  int32
	}{
		`"truncate_prompt_tokens":3`:                             {3, 2},
		`"truncate_prompt_tokens":3,"truncation_side":"right"`:   {3, 1},
		`"truncate_prompt_tokens":-1,"max_tokens":56`:            {200, 2},
		`"truncate_prompt_tokens":-1`:                            {255, 2},
		`"truncate_prompt_tokens":200,"truncation_side":"left"`:  {200, 2},
		`"truncate_prompt_tokens":150,"truncation_side":"right"`: {150, 1},
	} {
		s.ok(t, completionsPath, `{"prompt":[`+long+`],`+fields+`}`)
		got := s.engine.last(t).Prompt
		if len(got) != want.length || got[0] != want.first {
			t.Errorf("%s kept %d tokens from %d, want %+v", fields, len(got), got[0], want)
		}
	}
}

// TestBadWords compares with vLLM's rule: both spellings where the space makes another single
// token.
func TestBadWords(t *testing.T) {
	s := newServer(t)
	tok := s.Model.Tokenizer
	s.ok(t, completionsPath, `{"prompt":"x","bad_words":["a","  func"]}`)
	var want [][]int32
	for _, w := range []string{"a", "func"} {
		p, spaced := tok.Encode(w, false), tok.Encode(" "+w, false)
		want = append(want, p)
		if len(p) == len(spaced) && p[0] != spaced[0] {
			want = append(want, spaced)
		}
	}
	if got := s.engine.last(t).Params.BadWords; !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if len(want) < 3 {
		t.Errorf("the vocabulary does not exercise the rule: %v", want)
	}
}

// TestRequestFields holds the fields beside Params.
func TestRequestFields(t *testing.T) {
	s := newServer(t, func(o *Options) { o.Config.Schedule.Policy = "priority" })
	s.ok(t, completionsPath, `{"prompt":"x","stop":["a","b"],"include_stop_str_in_output":true,"skip_special_tokens":false,
		"cache_salt":"salt","priority":-3,"request_id":"mine"}`)
	r := s.engine.last(t)
	if !slices.Equal(r.Stop, []string{"a", "b"}) || !r.IncludeStop || !r.KeepSpecial || r.Raw ||
		r.Salt != "salt" || r.Priority != -3 {
		t.Errorf("request %+v", r)
	}
	s.ok(t, completionsPath, `{"prompt":"x","stop":"\n\u00e9","skip_special_tokens":null}`)
	if r := s.engine.last(t); !slices.Equal(r.Stop, []string{"\né"}) || r.IncludeStop ||
		r.KeepSpecial {
		t.Errorf("request %+v", r)
	}
	s = newServer(t, func(o *Options) { o.Info.Generation.SkipSpecial = ptr(false) })
	for fields, keep := range map[string]bool{"": true, `,"skip_special_tokens":null`: true,
		`,"skip_special_tokens":true`: false} {
		s.ok(t, completionsPath, `{"prompt":"x"`+fields+`}`)
		if r := s.engine.last(t); r.KeepSpecial != keep {
			t.Errorf("special tokens kept with %q: %v, want %v", fields, r.KeepSpecial, keep)
		}
	}
}

// TestPrompts holds the four forms of a prompt.
func TestPrompts(t *testing.T) {
	s := newServer(t)
	enc := func(text string) []int32 { return s.Model.Tokenizer.Encode(text, true) }
	for body, want := range map[string][][]int32{
		`"func main"`:         {enc("func main")},
		`["func","\u00e9\n"]`: {enc("func"), enc("é\n")},
		`[5, 6 ,7]`:           {{5, 6, 7}},
		`[[5],[6, 7]]`:        {{5}, {6, 7}},
		`"<|im_start|>user"`:  {enc("<|im_start|>user")},
	} {
		before := len(s.engine.requests)
		s.ok(t, completionsPath, `{"prompt":`+body+`}`)
		var got [][]int32
		for _, r := range s.engine.requests[before:] {
			got = append(got, r.Prompt)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s became %v, want %v", body, got, want)
		}
	}
}

func TestModelCheck(t *testing.T) {
	good := func() Options { return newServer(t).opt }
	for name, change := range map[string]func(*Options){
		"no engine":        func(o *Options) { o.Engine = nil },
		"no name":          func(o *Options) { o.Info.Names = nil },
		"no length":        func(o *Options) { o.Info.MaxModelLen = 1 },
		"no vocabulary":    func(o *Options) { o.Info.VocabSize = 0 },
		"EOS outside":      func(o *Options) { o.Info.EOS = 9999 },
		"stop outside":     func(o *Options) { o.Info.StopTokens = []int32{-1} },
		"bad temperature":  func(o *Options) { o.Info.Generation.Temperature = ptr(-1.0) },
		"bad top_k":        func(o *Options) { o.Info.Generation.TopK = ptr(-9) },
		"bad max_new":      func(o *Options) { o.Info.Generation.MaxTokens = ptr(0) },
		"bad max logprobs": func(o *Options) { o.Config.Model.MaxLogprobs = -2 },
	} {
		o := good()
		change(&o)
		if _, err := New(o); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
}
