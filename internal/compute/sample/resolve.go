package sample

import "slices"

// Settings are the sampling parameters that both a model's generation config and a request may set;
// nil is not set.
type Settings struct {
	Temperature       *float64
	TopP              *float64
	MinP              *float64
	RepetitionPenalty *float64
	PresencePenalty   *float64
	FrequencyPenalty  *float64
	// TopK is the number of tokens kept; 0 and -1 keep all.
	TopK *int
	// MaxTokens bounds the output; a generation config calls it max_new_tokens.
	MaxTokens *int
	// SkipSpecial leaves special tokens out of the text, as where it is not set.
	SkipSpecial *bool
}

// Over returns the settings of s, and those of base where s sets none.
func (s Settings) Over(base Settings) Settings {
	return Settings{
		Temperature:       either(s.Temperature, base.Temperature),
		TopP:              either(s.TopP, base.TopP),
		MinP:              either(s.MinP, base.MinP),
		RepetitionPenalty: either(s.RepetitionPenalty, base.RepetitionPenalty),
		PresencePenalty:   either(s.PresencePenalty, base.PresencePenalty),
		FrequencyPenalty:  either(s.FrequencyPenalty, base.FrequencyPenalty),
		TopK:              either(s.TopK, base.TopK),
		MaxTokens:         either(s.MaxTokens, base.MaxTokens),
		SkipSpecial:       either(s.SkipSpecial, base.SkipSpecial),
	}
}

func either[T any](a, b *T) *T {
	if a != nil {
		return a
	}
	return b
}

// Defaults are what a model gives every request.
type Defaults struct {
	// Generation is what the generation config sets.
	Generation Settings
	// MostTokens bounds the output of every request, 0 for no bound of the server.
	MostTokens int
	// EOS is the end-of-sequence token, -1 for none; StopTokens are further ones of the generation
	// config.
	EOS        int32
	StopTokens []int32
	// VocabSize is the number of token ids, MaxModelLen the most tokens of prompt and output
	// together.
	VocabSize, MaxModelLen int
}

// Ends are the tokens that end an output, if nothing else is said.
func (d *Defaults) Ends() []int32 { return append([]int32{d.EOS}, d.StopTokens...) }

// Overrides are what a request sets. The zero value sets nothing.
type Overrides struct {
	Settings
	// Logprobs and PromptLogprobs are as in Params; nil is NoLogprobs.
	Logprobs, PromptLogprobs *int32
	LogprobTokens            []int32
	// Seed is as in Params: the caller draws one for a request that has none.
	Seed      uint64
	MinTokens int
	// IgnoreEOS goes on after EOS and after the model's own StopTokens.
	IgnoreEOS bool
	// StopTokens end the output beside the model's.
	StopTokens    []int32
	LogitBias     []Bias
	AllowedTokens []int32
	BadWords      [][]int32
}

const (
	// minTemperature is what vLLM raises smaller positive temperatures to (_MAX_TEMP): below it
	// logits overflow.
	minTemperature = 0.01
	// maxBias is the range of logit_bias in the OpenAI API; vLLM clips to it.
	maxBias = 100
)

// Resolve returns the parameters of a request: what it sets, else what the generation config sets,
// else OpenAI's default, which for MaxTokens is the API's maxTokens, or all the room there is when
// that is 0. Values out of range are refused with a *ParamError; ids are not checked against the
// vocabulary (see Params.Validate). No output is longer than MostTokens.
//
// What is allowed but not meant literally is settled as vLLM does: a temperature between 0 and 0.01
// becomes 0.01, a greedy choice has no top_p, top_k and min_p, a top_k that keeps the whole
// vocabulary is off, a bias is clipped to [-100, 100], and stop tokens are sorted and named once.
// Nothing of o and d is changed; the result shares LogprobTokens, AllowedTokens and
// BadWords with o, and Withheld with d.
func (d *Defaults) Resolve(o *Overrides, maxTokens int) (Params, error) {
	s := o.Settings.Over(d.Generation)
	if maxTokens == 0 {
		maxTokens = d.MaxModelLen
	}
	p := Params{
		Temperature:       value(s.Temperature, 1),
		TopP:              value(s.TopP, 1),
		TopK:              whole(s.TopK, 0),
		MinP:              value(s.MinP, 0),
		RepetitionPenalty: value(s.RepetitionPenalty, 1),
		PresencePenalty:   value(s.PresencePenalty, 0),
		FrequencyPenalty:  value(s.FrequencyPenalty, 0),
		Seed:              o.Seed,
		Logprobs:          logprobs(o.Logprobs),
		LogprobTokens:     o.LogprobTokens,
		PromptLogprobs:    logprobs(o.PromptLogprobs),
		MaxTokens:         whole(s.MaxTokens, maxTokens),
		MinTokens:         whole(&o.MinTokens, 0),
		EOS:               d.EOS,
		IgnoreEOS:         o.IgnoreEOS,
		StopTokens:        d.stopTokens(o),
		LogitBias:         clipped(o.LogitBias),
		AllowedTokens:     o.AllowedTokens,
		BadWords:          o.BadWords,
	}
	if o.IgnoreEOS {
		p.Withheld = d.StopTokens
	}
	if d.MostTokens > 0 {
		p.MaxTokens = min(p.MaxTokens, whole(&d.MostTokens, 0))
	}
	if len(p.LogprobTokens) > 0 && p.Logprobs == NoLogprobs {
		p.Logprobs = 0
	}
	if err := p.checkRanges(d.VocabSize); err != nil {
		return p, err
	}
	if p.Temperature > 0 && p.Temperature < minTemperature {
		p.Temperature = minTemperature
	}
	if p.Temperature < GreedyTemperature {
		p.TopP, p.TopK, p.MinP = 1, 0, 0
	}
	if p.TopK < 0 || int(p.TopK) >= d.VocabSize {
		p.TopK = 0
	}
	return p, nil
}

// Fit bounds MaxTokens by the room that the prompt leaves in the context.
func (d *Defaults) Fit(p *Params, promptLen int) {
	p.MaxTokens = int32(min(int(p.MaxTokens), d.MaxModelLen-promptLen))
}

func (d *Defaults) stopTokens(o *Overrides) []int32 {
	all := slices.Clone(o.StopTokens)
	if !o.IgnoreEOS {
		all = append(all, d.StopTokens...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func clipped(list []Bias) []Bias {
	list = slices.Clone(list)
	for i := range list {
		list[i].Value = min(max(list[i].Value, -maxBias), maxBias)
	}
	return list
}

func value(v *float64, otherwise float32) float32 {
	if v == nil {
		return otherwise
	}
	return float32(*v)
}

// whole returns v within what an int32 holds.
func whole(v *int, otherwise int) int32 {
	if v != nil {
		otherwise = *v
	}
	return int32(min(max(otherwise, -1<<31), 1<<31-1))
}

func logprobs(n *int32) int32 {
	if n == nil {
		return NoLogprobs
	}
	return *n
}
