package openai

import (
	"math/rand/v2"
	"slices"
	"strings"
	"unicode"

	"github.com/eagleray/eagleray/internal/sample"
)

// minTemperature is what vLLM raises smaller temperatures to (_MAX_TEMP): below it logits overflow.
const minTemperature = 0.01

// defaultCompletionTokens is OpenAI's default of max_tokens for completions.
const defaultCompletionTokens = 16

// params resolves the sampling parameters of every sequence of a request but for MaxTokens, which depends on the
// prompt, and Seed, which depends on the sequence. Precedence: request, generation config, OpenAI's default.
func (s *Server) params(r *sampling) (sample.Params, *apiError) {
	m, d := &s.opt.Model, &s.opt.Model.Defaults
	p := sample.Params{
		Temperature:       float32(first(1, r.temperature, d.Temperature)),
		TopP:              float32(first(1, r.topP, d.TopP)),
		MinP:              float32(first(0, r.minP, d.MinP)),
		RepetitionPenalty: float32(first(1, r.repetition, d.RepetitionPenalty)),
		PresencePenalty:   float32(first(0, r.presence)),
		FrequencyPenalty:  float32(first(0, r.frequency)),
		Logprobs:          r.logprobs,
		PromptLogprobs:    r.promptLogprobs,
		EOS:               m.EOS,
		IgnoreEOS:         r.ignoreEOS,
		StopTokens:        r.stopTokens,
		LogitBias:         r.bias,
		AllowedTokens:     r.allowed,
	}
	if p.Temperature > 0 && p.Temperature < minTemperature {
		p.Temperature = minTemperature
	}
	topK := r.topK
	if topK == nil && d.TopK != nil {
		wide := int64(*d.TopK)
		topK = &wide
	}
	if topK != nil && *topK > 0 && *topK < int64(m.VocabSize) {
		p.TopK = int32(*topK)
	}
	if p.Temperature < sample.GreedyTemperature {
		p.TopP, p.TopK, p.MinP = 1, 0, 0
		if r.n > 1 {
			return p, badRequest("n", "n must be 1 when using greedy sampling, got %d.", r.n)
		}
	}
	if !r.ignoreEOS && len(d.StopTokens) > 0 {
		p.StopTokens = slices.Concat(r.stopTokens, d.StopTokens)
	}
	slices.Sort(p.StopTokens)
	p.StopTokens = slices.Compact(p.StopTokens)

	var err *apiError
	if p.BadWords, err = s.badWords(r.badWords); err != nil {
		return p, err
	}
	return p, checkChoice(r, &p)
}

// first returns the first value that is set.
func first(otherwise float64, values ...*float64) float64 {
	for _, v := range values {
		if v != nil {
			return *v
		}
	}
	return otherwise
}

// checkChoice refuses parameters that leave nothing to choose: every allowed token banned as a bad word, or
// every one an end that min_tokens holds back.
func checkChoice(r *sampling, p *sample.Params) *apiError {
	if len(p.AllowedTokens) == 0 {
		return nil
	}
	banned := make(map[int32]bool)
	for _, w := range p.BadWords {
		if len(w) == 1 {
			banned[w[0]] = true
		}
	}
	free := func(id int32) bool { return !banned[id] }
	if !slices.ContainsFunc(p.AllowedTokens, free) {
		return badRequest("bad_words", "`bad_words` ban every token of `allowed_token_ids`")
	}
	if r.minTokens == 0 {
		return nil
	}
	notEnd := func(id int32) bool {
		_, stop := slices.BinarySearch(p.StopTokens, id)
		return free(id) && id != p.EOS && !stop
	}
	if !slices.ContainsFunc(p.AllowedTokens, notEnd) {
		return badRequest("min_tokens", "`min_tokens` holds back every token of `allowed_token_ids`: they all end the output")
	}
	return nil
}

// badWords turns each word into token sequences, without and with a space before it, as vLLM does: the second
// one only where the space makes another token rather than one more.
func (s *Server) badWords(words []string) ([][]int32, *apiError) {
	if len(words) == 0 {
		return nil, nil
	}
	tok := s.opt.Model.Tokenizer
	if tok == nil {
		return nil, badRequest("bad_words", "`bad_words` needs a tokenizer and the server runs without one")
	}
	var list [][]int32
	for _, w := range words {
		w = strings.TrimLeftFunc(w, unicode.IsSpace)
		plain := tok.Encode(w, false)
		if len(plain) == 0 {
			return nil, badRequest("bad_words", "bad_words entries must tokenize to at least one token.")
		}
		list = append(list, plain)
		spaced := tok.Encode(" "+w, false)
		if len(spaced) == len(plain) && spaced[0] != plain[0] {
			list = append(list, spaced)
		}
		if len(list) > s.lim.BadWords {
			return nil, badRequest("bad_words", "too many bad words after tokenization, more than %d", s.lim.BadWords)
		}
	}
	return list, nil
}

// maxTokens resolves max_tokens for one prompt. otherwise is the default of the API, 0 for all the room there
// is. field names the prompt for errors.
func (s *Server) maxTokens(r *sampling, promptLen int, field string, otherwise int64) (int32, *apiError) {
	length := int64(s.opt.Model.MaxModelLen)
	room := length - int64(promptLen)
	asked := r.maxTokens
	if asked == nil && room < 1 {
		return 0, badRequest(field, "This model's maximum context length is %d tokens, but the prompt has %d tokens "+
			"and there must be room for one more. Please reduce the length of the input prompt.", length, promptLen)
	}
	if asked == nil {
		want := otherwise
		if n := s.opt.Model.Defaults.MaxNewTokens; n != nil {
			want = int64(*n)
		}
		if want == 0 || want > room {
			want = room
		}
		asked = &want
	}
	if *asked > room {
		if room >= 1 {
			field = r.maxTokensField
		}
		return 0, badRequest(field, "This model's maximum context length is %d tokens. However, you requested %d output "+
			"tokens and your prompt contains %d input tokens, for a total of %d tokens. Please reduce the length of the "+
			"input prompt or the number of requested output tokens.", length, *asked, promptLen, *asked+int64(promptLen))
	}
	if r.minTokens > *asked {
		return 0, badRequest("min_tokens", "min_tokens must be less than or equal to max_tokens=%d, got %d.", *asked, r.minTokens)
	}
	return int32(*asked), nil
}

// seedFor gives sequence i of a request its seed: the request's plus i, as vLLM does. A request without one gets
// a random seed, or the next of the sequence that Options.Seed starts.
func (s *Server) seedFor(r *sampling, i int) uint64 {
	switch {
	case r.seed != nil && *r.seed != -1:
		return uint64(*r.seed) + uint64(i)
	case s.opt.Seed != nil:
		return rand.NewPCG(*s.opt.Seed, s.seeds.Add(1)).Uint64()
	}
	return rand.Uint64()
}
