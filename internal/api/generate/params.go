package generate

import (
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"unicode"

	"github.com/eagleray/eagleray/internal/api/call"
	"github.com/eagleray/eagleray/internal/api/wire"
	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/text/constrain"
)

// Defaults of max_tokens: OpenAI's for completions; the room that is left for chat.
const (
	defaultCompletionTokens = 16
	defaultChatTokens       = 0
)

// params resolves the sampling parameters of every sequence of a request but for Seed, which
// depends on the sequence, and MaxTokens, which fit cuts to the room beside the prompt. maxTokens
// is the default of the API.
func (s *Service) params(r *Sampling, maxTokens int) (sample.Params, *wire.Error) {
	o := r.Overrides
	o.Logprobs, o.PromptLogprobs = &r.TopLogprobs, &r.TopPromptLogprobs
	var bad *wire.Error
	if o.BadWords, bad = s.badWords(r.badWords); bad != nil {
		return sample.Params{}, bad
	}
	// Each prompt's room may be less than max_tokens: fit compares min_tokens with what is left.
	o.MinTokens = 0
	if r.constraint.Kind != constrain.None {
		o.IgnoreEOS = false // an answer that is complete can only end
	}
	if maxTokens > 0 && o.MaxTokens == nil {
		o.MaxTokens = &maxTokens // whatever the generation config has, as in vLLM
	}
	p, err := s.Model.Resolve(&o, 0)
	var wrong *sample.ParamError
	if errors.As(err, &wrong) {
		return p, wire.BadRequest(wrong.Field, "%s", wrong.Message)
	}
	if r.Beams == nil { // these are weighed by the model's log-probabilities
		mode := s.Model.flags.LogprobsMode
		p.Processed = mode == config.ProcessedLogprobs || mode == config.ProcessedLogits
		p.AsLogits = mode == config.RawLogits || mode == config.ProcessedLogits
	}
	if p.Temperature == 0 && r.N > 1 && r.Beams == nil {
		return p, wire.BadRequest("n", "n must be 1 when using greedy sampling, got %d.", r.N)
	}
	return p, checkChoice(r, &p)
}

// checkChoice refuses parameters that leave nothing to choose: every allowed token banned as a bad
// word, or every one an end that min_tokens holds back.
func checkChoice(r *Sampling, p *sample.Params) *wire.Error {
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
		return wire.BadRequest("bad_words", "`bad_words` ban every token of `allowed_token_ids`")
	}
	if r.MinTokens == 0 {
		return nil
	}
	notEnd := func(id int32) bool {
		_, stop := slices.BinarySearch(p.StopTokens, id)
		return free(id) && id != p.EOS && !stop && !slices.Contains(p.Withheld, id)
	}
	if !slices.ContainsFunc(p.AllowedTokens, notEnd) {
		return wire.BadRequest("min_tokens", "`min_tokens` holds back every token of "+
			"`allowed_token_ids`: they all end the output")
	}
	return nil
}

// badWords turns each word into token sequences, without and with a space before it, as vLLM does:
// the second one only where the space makes another token rather than one more.
func (s *Service) badWords(words []string) ([][]int32, *wire.Error) {
	if len(words) == 0 {
		return nil, nil
	}
	tok := s.Model.Tokenizer
	if tok == nil {
		return nil, wire.BadRequest("bad_words",
			"`bad_words` needs a tokenizer and the server runs without one")
	}
	var list [][]int32
	for _, w := range words {
		w = strings.TrimLeftFunc(w, unicode.IsSpace)
		plain := tok.Encode(w, false)
		if len(plain) == 0 {
			return nil, wire.BadRequest("bad_words",
				"bad_words entries must tokenize to at least one token.")
		}
		list = append(list, plain)
		spaced := tok.Encode(" "+w, false)
		if len(spaced) == len(plain) && spaced[0] != plain[0] {
			list = append(list, spaced)
		}
		if len(list) > s.lim.BadWords {
			return nil, wire.BadRequest("bad_words",
				"too many bad words after tokenization, more than %d", s.lim.BadWords)
		}
	}
	return list, nil
}

// fit gives a prompt what the request says of all, its max_tokens bounded by the room beside it.
// field names the prompt for errors.
func (s *Service) fit(p *Prompt, r *Sampling, params sample.Params, field string) *wire.Error {
	promptLen := len(p.Prompt)
	if bad := s.checkRoom(r, promptLen, field); bad != nil {
		return bad
	}
	s.Model.Fit(&params, promptLen)
	if r.MinTokens > int(params.MaxTokens) {
		return wire.BadRequest("min_tokens", "min_tokens must be less than or equal "+
			"to max_tokens=%d, got %d.",
			params.MaxTokens, r.MinTokens)
	}
	params.MinTokens = int32(r.MinTokens)
	p.Params, p.Salt, p.Priority = params, r.CacheSalt, r.Priority
	p.Repetition, p.Constraint = r.repetition, r.constraint
	p.Constraint.Compact, p.Constraint.AnyOrder = r.compactJSON, r.anyKeyOrder
	p.Stop, p.IncludeStop, p.KeepSpecial = r.stop, r.includeStop, r.keepSpecial
	p.Raw = s.Model.Tokenizer == nil
	return nil
}

// checkRoom refuses a prompt beside which there is no room for max_tokens, or for one token.
func (s *Service) checkRoom(r *Sampling, promptLen int, field string) *wire.Error {
	length := s.Model.MaxModelLen
	room := length - promptLen
	asked := r.MaxTokens
	if asked == nil && room < 1 {
		return wire.TooLong(field, "This model's maximum context length is %d tokens, "+
			"but the prompt has %d tokens and there must be room for one more. "+
			"Please reduce the length of the input prompt.", length, promptLen)
	}
	if asked != nil && *asked > room && !(r.CapMaxTokens && room >= 1) {
		if room >= 1 {
			field = r.maxTokensField
		}
		return wire.TooLong(field, "This model's maximum context length is %d tokens. "+
			"However, you requested %d output tokens and your prompt contains %d input tokens, "+
			"for a total of %d tokens. Please reduce the length of the input prompt "+
			"or the number of requested output tokens.",
			length, *asked, promptLen, *asked+promptLen)
	}
	return nil
}

// seedFor gives sequence i of a request its seed: the request's plus i, as vLLM does. A request
// without one gets a random seed, or the next of the sequence that --seed starts.
func (s *Service) seedFor(from *call.Origin, r *Sampling, i int) uint64 {
	switch {
	case r.seed != nil && *r.seed != -1:
		return uint64(*r.seed) + uint64(i)
	case from != nil:
		return from.Uint64()
	case s.Model.flags.Seed != 0:
		return s.NextSeed()
	}
	return rand.Uint64()
}

// NextSeed is the next of the sequence that --seed starts.
func (s *Service) NextSeed() uint64 {
	return rand.NewPCG(s.Model.flags.Seed, s.seeds.Add(1)).Uint64()
}

// Begin settles what does not depend on the prompts: the model, and a priority, which is refused
// where the engine does not schedule by them.
func (s *Service) Begin(r *Sampling) (bad *wire.Error) {
	if r.Model, bad = s.CheckModel(r.Model); bad != nil {
		return bad
	}
	if r.Priority != 0 && !s.opt.Priorities {
		return wire.BadRequest("priority",
			"`priority` of %d needs a server with priority scheduling (--scheduling-policy "+
				"priority)", r.Priority)
	}
	return nil
}
