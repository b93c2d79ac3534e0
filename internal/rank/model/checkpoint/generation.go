package checkpoint

import (
	"fmt"

	"github.com/eagleray/eagleray/internal/compute/sample"
)

// GenerationConfig is generation_config.json: what the model's authors suggest for sampling. A nil
// pointer is a value the file does not give.
type GenerationConfig struct {
	BOS, EOS []int // none, one or several
	PAD      int   // -1 for none

	DoSample *bool
	sample.Settings
	MinNewTokens *int
}

// ReadGenerationConfig reads generation_config.json. A value outside its range is an error that
// names the field and wraps [ErrMalformed]; fields that this engine has no use for are ignored.
func ReadGenerationConfig(raw []byte) (*GenerationConfig, error) {
	f, err := ReadFields(raw)
	if err != nil {
		return nil, fmt.Errorf("generation_config.json: %w", err)
	}
	g := &GenerationConfig{
		BOS: f.IDs("bos_token_id", nil),
		EOS: f.IDs("eos_token_id", nil),
		PAD: f.ID("pad_token_id", -1),
		Settings: sample.Settings{
			Temperature:       f.within("temperature", 0, 1e6),
			TopP:              f.within("top_p", 0, 1),
			MinP:              f.within("min_p", 0, 1),
			RepetitionPenalty: f.within("repetition_penalty", 1e-6, 1e6),
			PresencePenalty:   f.within("presence_penalty", -2, 2),
			FrequencyPenalty:  f.within("frequency_penalty", -2, 2),
			TopK:              f.count("top_k", -1),
			MaxTokens:         f.count("max_new_tokens", 0),
			SkipSpecial:       f.optFlag("skip_special_tokens"),
		},
		DoSample:     f.optFlag("do_sample"),
		MinNewTokens: f.count("min_new_tokens", 0),
	}
	if f.err != nil {
		return nil, fmt.Errorf("generation_config.json: %w", f.err)
	}
	return g, nil
}

// within reads an optional number between low and high.
func (f *Fields) within(key string, low, high float64) *float64 {
	if !f.Set(key) {
		return nil
	}
	var v float64
	f.decode(key, &v, "a number")
	if v < low || v > high {
		f.Fail(ErrMalformed, key, "is %v, outside %v to %v", v, low, high)
	}
	return &v
}

// optFlag reads an optional boolean.
func (f *Fields) optFlag(key string) *bool {
	if !f.Set(key) {
		return nil
	}
	v := f.Flag(key, false)
	return &v
}

// count reads an optional whole number that is low or more.
func (f *Fields) count(key string, low int) *int {
	if !f.Set(key) {
		return nil
	}
	v := f.Integer(key, 0, low, MaxDim)
	return &v
}
