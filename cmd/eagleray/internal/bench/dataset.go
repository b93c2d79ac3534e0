// Package bench measures a running server or an engine as vLLM's benchmarks do: the same options,
// the same definitions of the figures, the same printed table.
package bench

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"

	"github.com/eagleray/eagleray/internal/text/tokenizer"
)

// Sample is one request of a dataset.
type Sample struct {
	// Model is the name that is sent, "" for that of the target.
	Model string
	// Text is the prompt; when it is empty Tokens are sent as token ids.
	Text   string
	Tokens []int32
	// PromptLen is the prompt's length in tokens as far as the client knows it, OutputLen the
	// length asked for.
	PromptLen, OutputLen int
}

// Datasets are the names Load knows, the default first.
var Datasets = []string{"random", "prefix_repetition", "sharegpt", "custom"}

// DatasetOptions choose and shape a dataset.
type DatasetOptions struct {
	// Name is one of Datasets, Path the file of sharegpt and custom.
	Name, Path string
	// Prompts is the number of samples.
	Prompts int
	Seed    uint64
	// Random, PrefixRepetition, ShareGPT and Custom are what each dataset needs.
	Random           RandomOptions
	PrefixRepetition PrefixRepetitionOptions
	// ShareGPTOutputLen replaces the lengths of the recorded answers when it is above zero.
	ShareGPTOutputLen int
	// CustomOutputLen is the length of outputs of a custom dataset; -1 takes each line's
	// output_tokens.
	CustomOutputLen int
	// DisableShuffle keeps the order of sharegpt, custom and prefix_repetition.
	DisableShuffle bool
	// NoOversample takes a file's prompts once, however few they are.
	NoOversample bool
	// Tokenizer makes synthetic prompts text. When it is nil they are token ids below Vocab.
	Tokenizer *tokenizer.Tokenizer
	Vocab     int
	// Progress, when not nil, is called with how many synthetic prompts are made.
	Progress func(done, total int)
}

// RandomOptions are lengths in tokens. InputLen and OutputLen are varied by up to RangeRatio of
// themselves; a common beginning of PrefixLen tokens comes on top.
type RandomOptions struct {
	InputLen, OutputLen, PrefixLen int
	RangeRatio                     float64
}

// PrefixRepetitionOptions are lengths in tokens and the number of different beginnings.
type PrefixRepetitionOptions struct {
	PrefixLen, SuffixLen, Prefixes, OutputLen int
}

// Load builds the samples. Equal options give equal samples.
func Load(o DatasetOptions) ([]Sample, error) {
	if o.Prompts < 1 {
		return nil, fmt.Errorf("%d prompts are too few", o.Prompts)
	}
	rng := rand.New(rand.NewPCG(o.Seed, 0x6561676c65726179))
	switch o.Name {
	case "random":
		return randomSamples(o, rng)
	case "prefix_repetition":
		return prefixRepetition(o, rng)
	case "sharegpt":
		return shareGPT(o, rng)
	case "custom":
		return custom(o, rng)
	}
	return nil, fmt.Errorf("dataset %q is not one of %s", o.Name, strings.Join(Datasets, ", "))
}

// synthetic makes prompts of random tokens.
type synthetic struct {
	rng      *rand.Rand
	tok      *tokenizer.Tokenizer
	ids      []int32 // all that are not special
	made     int
	prompts  int
	progress func(done, total int)
}

func newSynthetic(o DatasetOptions, rng *rand.Rand) (*synthetic, error) {
	s := &synthetic{rng: rng, tok: o.Tokenizer, prompts: o.Prompts, progress: o.Progress}
	if o.Tokenizer == nil {
		if o.Vocab < 1 {
			return nil, fmt.Errorf("random prompts need a tokenizer, or the size of a vocabulary")
		}
		for id := range o.Vocab {
			s.ids = append(s.ids, int32(id))
		}
		return s, nil
	}
	for id := range int32(o.Tokenizer.VocabSize()) {
		if _, ok := o.Tokenizer.Token(id); ok && !o.Tokenizer.IsSpecial(id) {
			s.ids = append(s.ids, id)
		}
	}
	if len(s.ids) == 0 {
		return nil, fmt.Errorf("the tokenizer has special tokens only")
	}
	return s, nil
}

// tokens draws n tokens. With a tokenizer they are, as near as a few tries come, the encoding of
// their own text: random tokens often join into others.
func (s *synthetic) tokens(n int) []int32 {
	t := s.draw(nil, n)
	if s.tok == nil {
		return t
	}
	const tries = 10
	for range tries {
		again := s.tok.Encode(s.tok.Decode(t, false), false)
		if len(again) == n {
			return again
		}
		t = s.draw(again[:min(len(again), n)], n)
	}
	return t
}

func (s *synthetic) draw(t []int32, n int) []int32 {
	for len(t) < n {
		t = append(t, s.ids[s.rng.IntN(len(s.ids))])
	}
	return t
}

func (s *synthetic) sample(tokens []int32, output int) Sample {
	x := Sample{Tokens: tokens, PromptLen: len(tokens), OutputLen: output}
	if s.tok != nil {
		x.Text = s.tok.Decode(tokens, false)
		x.PromptLen = len(s.tok.Encode(x.Text, true))
	}
	if s.made++; s.progress != nil {
		s.progress(s.made, s.prompts)
	}
	return x
}

// randomSamples are independent random prompts behind one common beginning.
func randomSamples(o DatasetOptions, rng *rand.Rand) ([]Sample, error) {
	x := o.Random
	if !(x.RangeRatio >= 0 && x.RangeRatio < 1) {
		return nil, fmt.Errorf("range ratio %g is not within [0, 1)", x.RangeRatio)
	}
	if x.InputLen < 0 || x.PrefixLen < 0 || x.OutputLen < 1 ||
		x.PrefixLen+int(float64(x.InputLen)*(1-x.RangeRatio)) < 1 {
		return nil, fmt.Errorf("random lengths %d in, %d before it, %d out are not all possible",
			x.InputLen, x.PrefixLen, x.OutputLen)
	}
	s, err := newSynthetic(o, rng)
	if err != nil {
		return nil, err
	}
	vary := func(n int) int {
		lo, hi := math.Floor(float64(n)*(1-x.RangeRatio)), math.Ceil(float64(n)*(1+x.RangeRatio))
		return int(lo) + rng.IntN(int(hi)-int(lo)+1)
	}
	prefix := s.tokens(x.PrefixLen)
	samples := make([]Sample, o.Prompts)
	for i := range samples {
		samples[i] = s.sample(slices.Concat(prefix, s.tokens(vary(x.InputLen))),
			max(1, vary(x.OutputLen)))
	}
	return samples, nil
}

// prefixRepetition gives each of some common beginnings the same number of prompts; as in vLLM
// those left over by the division are not sent.
func prefixRepetition(o DatasetOptions, rng *rand.Rand) ([]Sample, error) {
	x := o.PrefixRepetition
	if x.PrefixLen < 0 || x.SuffixLen < 0 || x.PrefixLen+x.SuffixLen < 1 || x.OutputLen < 1 ||
		x.Prefixes < 1 {
		return nil, fmt.Errorf("%d prefixes of %d tokens, suffixes of %d and outputs of "+
			"%d are not all possible",
			x.Prefixes, x.PrefixLen, x.SuffixLen, x.OutputLen)
	}
	if o.Prompts < x.Prefixes {
		return nil, fmt.Errorf("%d prompts are fewer than the %d prefixes", o.Prompts, x.Prefixes)
	}
	s, err := newSynthetic(o, rng)
	if err != nil {
		return nil, err
	}
	var samples []Sample
	for range x.Prefixes {
		prefix := s.tokens(x.PrefixLen)
		for range o.Prompts / x.Prefixes {
			samples = append(samples, s.sample(slices.Concat(prefix, s.tokens(x.SuffixLen)),
				x.OutputLen))
		}
	}
	o.shuffle(rng, samples)
	return samples, nil
}

func (o *DatasetOptions) shuffle(rng *rand.Rand, samples []Sample) {
	if !o.DisableShuffle {
		rng.Shuffle(len(samples), func(i, j int) {
			samples[i], samples[j] = samples[j], samples[i]
		})
	}
}

// fill repeats samples of a file, chosen at random, until there are as many as asked for.
func (o *DatasetOptions) fill(rng *rand.Rand, samples []Sample) []Sample {
	for own := len(samples); len(samples) < o.Prompts && !o.NoOversample; {
		samples = append(samples, samples[rng.IntN(own)])
	}
	return samples
}

// Limits of vLLM's sharegpt dataset, in tokens.
const (
	shareGPTLeast  = 4
	shareGPTPrompt = 1024
	shareGPTTotal  = 2048
)

// shareGPT takes the first two turns of each conversation as prompt and output.
func shareGPT(o DatasetOptions, rng *rand.Rand) ([]Sample, error) {
	if o.Tokenizer == nil {
		return nil, fmt.Errorf("the sharegpt dataset needs a tokenizer to know its lengths")
	}
	raw, err := os.ReadFile(o.Path)
	if err != nil {
		return nil, err
	}
	var all []struct {
		Conversations []struct{ Value string }
	}
	if err := json.Unmarshal(raw, &all); err != nil {
		return nil, fmt.Errorf("%s: %w", o.Path, err)
	}
	if !o.DisableShuffle {
		rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	}
	var samples []Sample
	for _, c := range all {
		if len(samples) == o.Prompts {
			break
		}
		if len(c.Conversations) < 2 {
			continue
		}
		in, out := len(o.Tokenizer.Encode(c.Conversations[0].Value, true)), o.ShareGPTOutputLen
		if out <= 0 {
			if out = len(o.Tokenizer.Encode(c.Conversations[1].Value, true)); out < shareGPTLeast {
				continue
			}
		}
		if in < shareGPTLeast || in > shareGPTPrompt || in+out > shareGPTTotal {
			continue
		}
		samples = append(samples, Sample{Text: c.Conversations[0].Value, PromptLen: in,
			OutputLen: out})
	}
	if len(samples) == 0 {
		return nil, fmt.Errorf("%s has no conversation of a usable length", o.Path)
	}
	return o.fill(rng, samples), nil
}

// custom reads JSON lines with a "prompt", and perhaps "output_tokens", each.
func custom(o DatasetOptions, rng *rand.Rand) ([]Sample, error) {
	if o.CustomOutputLen < 1 && o.CustomOutputLen != -1 {
		return nil, fmt.Errorf("custom output length %d is neither positive nor -1",
			o.CustomOutputLen)
	}
	raw, err := os.ReadFile(o.Path)
	if err != nil {
		return nil, err
	}
	var samples []Sample
	lines := bufio.NewScanner(bytes.NewReader(raw))
	lines.Buffer(nil, len(raw)+1)
	for n := 1; lines.Scan(); n++ {
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		s, err := customLine(o, lines.Bytes())
		if err != nil {
			return nil, fmt.Errorf("%s: line %d: %w", o.Path, n, err)
		}
		samples = append(samples, s)
	}
	if len(samples) == 0 {
		return nil, fmt.Errorf("%s has no prompt", o.Path)
	}
	o.shuffle(rng, samples)
	samples = samples[:min(len(samples), o.Prompts)]
	if o.Tokenizer != nil {
		for i := range samples {
			samples[i].PromptLen = len(o.Tokenizer.Encode(samples[i].Text, true))
		}
	}
	return o.fill(rng, samples), nil
}

func customLine(o DatasetOptions, raw []byte) (Sample, error) {
	var line struct {
		Prompt       string
		OutputTokens int `json:"output_tokens"`
	}
	if err := json.Unmarshal(raw, &line); err != nil {
		return Sample{}, err
	}
	if line.Prompt == "" {
		return Sample{}, fmt.Errorf(`no "prompt"`)
	}
	s := Sample{Text: line.Prompt, OutputLen: o.CustomOutputLen}
	if s.OutputLen == -1 {
		s.OutputLen = line.OutputTokens
	}
	if s.OutputLen < 1 {
		return Sample{}, fmt.Errorf(`no "output_tokens", which an output length of -1 needs`)
	}
	return s, nil
}
