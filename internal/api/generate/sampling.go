package generate

import (
	"math"
	"strconv"
	"strings"

	"github.com/eagleray/eagleray/internal/api/wire"
	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/engine/schedule"
	"github.com/eagleray/eagleray/internal/rank/kvtransfer"
	"github.com/eagleray/eagleray/internal/text/constrain"
)

// Sampling holds the fields that completions and chat share, checked one by one. Of those in
// Overrides it leaves BadWords, the log-probabilities and Seed to params.go.
type Sampling struct {
	sample.Overrides
	Model string

	N                                     int
	maxTokensField                        string
	seed                                  *int64
	stop                                  []string
	stopField                             string
	includeStop, keepSpecial              bool
	badWords                              []string
	TopLogprobs, TopPromptLogprobs        int32
	Stream, IncludeUsage, ContinuousUsage bool
	streamInterval                        int
	truncate                              *int64
	TruncateRight, AddSpecial             bool
	AsTokenIDs, ReturnTokenIDs, Echo      bool
	// Metrics adds the times of the answer to it.
	Metrics bool
	// LogprobsByID gives log-probabilities the form of prompt_logprobs; CapMaxTokens has max_tokens
	// be as many as the context has room for, not refused, where it is more.
	LogprobsByID, CapMaxTokens bool
	// Polled says that what there is of the answer can be asked for before its end.
	Polled               bool
	Priority             int
	Timeout              *float64
	CacheSalt, requestID string
	// constraint is what the answer keeps to, constraintField the field that says so, "" for tools.
	constraint constrain.Spec
	// responseFormat says that the field is the one for the form of what is said to the user.
	responseFormat bool
	repetition     schedule.Repetition
	// handOver says that the keys and values of the prompt are for another server, ticket where
	// they come from; nil for nowhere.
	handOver bool
	ticket   *kvtransfer.Ticket
	// Beams is nil unless it is to be beam search.
	Beams                    *beams
	constraintField          string
	compactJSON, anyKeyOrder bool
	// wrapped says that the constraint is a structural tag that was made of what the field says.
	wrapped bool
}

// Patience is how long the client waits.
func (s *Sampling) Patience() *float64 { return s.Timeout }

// Decode reads the shared fields. The caller reads its own before or after, then calls f.rest.
func (s *Sampling) Decode(f *wire.Fields, m *Model) {
	if name := f.OptString("model"); name != nil {
		s.Model = *name
	}
	s.N = int(f.Ranged("n", 1, 1, int64(f.Lim.N)))
	s.MinTokens = int(f.Integer("min_tokens", 0))
	s.Temperature = f.OptFloat("temperature")
	s.TopP = f.OptFloat("top_p")
	s.TopK = asInt(f.OptInt("top_k"))
	s.MinP = f.OptFloat("min_p")
	s.RepetitionPenalty = f.OptFloat("repetition_penalty")
	s.PresencePenalty = f.OptFloat("presence_penalty")
	s.FrequencyPenalty = f.OptFloat("frequency_penalty")
	s.seed = f.OptInt("seed")
	s.decodeStop(f, m)
	s.decodeBias(f, m)
	s.AllowedTokens = f.Tokens("allowed_token_ids", m.VocabSize, m.VocabSize)
	if s.AllowedTokens != nil && len(s.AllowedTokens) == 0 {
		f.Fail(wire.BadRequest("allowed_token_ids", "`allowed_token_ids` must not be empty"))
	}
	s.badWords = f.Strings("bad_words", f.Array("bad_words"), f.Lim.BadWords, f.Lim.StopBytes)
	s.decodeStream(f)
	s.streamInterval = max(m.Answers.StreamInterval,
		int(f.Ranged("stream_interval", 1, 1, math.MaxInt32)))
	_, asked := f.Members["return_metrics"]
	s.Metrics = f.OptBool("return_metrics", m.Answers.PerRequestMetrics)
	// In a stream they come with the usage.
	s.IncludeUsage = s.Stream && (s.IncludeUsage || m.Answers.ForceIncludeUsage ||
		asked && s.Metrics)
	// As in vLLM, usage in every chunk goes with usage at the end.
	s.ContinuousUsage = s.ContinuousUsage && s.IncludeUsage
	s.TopPromptLogprobs = LogprobCount(f, "prompt_logprobs", m)
	if s.Stream && s.TopPromptLogprobs != sample.NoLogprobs && s.TopPromptLogprobs != 0 {
		f.Fail(wire.BadRequest("prompt_logprobs",
			"`prompt_logprobs` are not available when `stream=True`."))
	}
	s.DecodeTruncation(f)
	s.AsTokenIDs = f.OptBool("return_tokens_as_token_ids", m.Answers.TokensAsTokenIDs)
	s.ReturnTokenIDs = f.OptBool("return_token_ids", false)
	s.Timeout = f.OptFloat("timeout")
	s.Priority = int(f.Ranged("priority", 0, math.MinInt32, math.MaxInt32))
	s.DecodeNames(f)
	s.compactJSON, s.anyKeyOrder = m.Answers.CompactJSON, m.Answers.AnyKeyOrder
	s.decodeConstraint(f)
	s.decodeRepetition(f)
	s.decodeBeams(f)
	s.decodeUnsupported(f)
	f.Fail(s.checkRanges())
}

func (s *Sampling) decodeStop(f *wire.Fields, m *Model) {
	raw := f.Value("stop")
	switch {
	case raw == nil:
	case raw[0] == '"':
		s.SetStop(f, "stop", append(append([]byte{'['}, raw...), ']'))
	case raw[0] == '[':
		s.SetStop(f, "stop", raw)
	default:
		f.Fail(wire.BadRequest("stop", "`stop` must be a string or a list of strings, got %s",
			wire.Describe(raw)))
	}
	if len(s.stop) > 0 && m.Tokenizer == nil {
		f.Fail(wire.BadRequest(s.stopField,
			"`%s` needs a tokenizer and the server runs without one", s.stopField))
	}
	s.includeStop = f.Boolean("include_stop_str_in_output", false)
	s.StopTokens = f.Tokens("stop_token_ids", f.Lim.StopTokens, m.VocabSize)
	s.IgnoreEOS = f.Boolean("ignore_eos", false)
	skip := m.Generation.SkipSpecial
	s.keepSpecial = !f.OptBool("skip_special_tokens", skip == nil || *skip)
}

// SetStop reads a list of texts that end the answer; nil is none.
func (s *Sampling) SetStop(f *wire.Fields, field string, list []byte) {
	s.stop, s.stopField = f.Strings(field, list, f.Lim.Stops, f.Lim.StopBytes), field
}

// decodeBias reads logit_bias.
func (s *Sampling) decodeBias(f *wire.Fields, m *Model) {
	raw := f.Object("logit_bias")
	if raw == nil {
		return
	}
	seen := make(map[int32]struct{})
	f.Fail(wire.EachMember(raw, func(key string, raw []byte) *wire.Error {
		if len(s.LogitBias) == f.Lim.LogitBias {
			return wire.BadRequest("logit_bias", "`logit_bias` has more than %d entries",
				f.Lim.LogitBias)
		}
		id, err := strconv.ParseInt(strings.TrimSpace(key), 10, 64)
		if err != nil {
			return wire.BadRequest("logit_bias",
				"`logit_bias` has a key that is not a token id: %q", wire.Clip(key))
		}
		if id < 0 || id >= int64(m.VocabSize) {
			return wire.BadRequest("logit_bias",
				"token id %d in `logit_bias` is out of vocabulary: "+
					"ids are 0 to %d", id, m.VocabSize-1)
		}
		if _, ok := seen[int32(id)]; ok { // "1" and "01"
			return wire.BadRequest("logit_bias", "`logit_bias` names token id %d twice", id)
		}
		seen[int32(id)] = struct{}{}
		v, bad := wire.ParseFloat("logit_bias", raw)
		if bad != nil {
			return bad
		}
		s.LogitBias = append(s.LogitBias, sample.Bias{ID: int32(id), Value: float32(v)})
		return nil
	}))
}

func (s *Sampling) decodeStream(f *wire.Fields) {
	s.Stream = f.OptBool("stream", false)
	raw := f.Object("stream_options")
	if raw == nil {
		return
	}
	if !s.Stream {
		f.Fail(wire.BadRequest("stream_options",
			"Stream options can only be defined when `stream=True`."))
	}
	f.Fail(wire.EachMember(raw, func(key string, raw []byte) *wire.Error {
		var dst *bool
		switch key {
		case "include_usage":
			dst = &s.IncludeUsage
		case "continuous_usage_stats":
			dst = &s.ContinuousUsage
		default:
			return nil
		}
		if wire.IsNull(raw) {
			return nil
		}
		v, ok := wire.CoerceBool(raw)
		if !ok {
			return wire.BadRequest("stream_options",
				"`stream_options.%s` must be a boolean, got %s", key, wire.Describe(raw))
		}
		*dst = v
		return nil
	}))
}

// DecodeTruncation reads how a prompt that is too long is cut.
func (s *Sampling) DecodeTruncation(f *wire.Fields) {
	if n := f.OptInt("truncate_prompt_tokens"); n != nil {
		s.Truncate(*n, s.TruncateRight)
		if *n < -1 {
			f.Fail(wire.BadRequest("truncate_prompt_tokens",
				"`truncate_prompt_tokens` must be -1 or at least 0, got %d", *n))
		}
	}
	if side := f.OptString("truncation_side"); side != nil {
		s.TruncateRight = *side == "right"
		if *side != "left" && *side != "right" {
			f.Fail(wire.BadRequest("truncation_side",
				"`truncation_side` must be left or right, got %q", wire.Clip(*side)))
		}
	}
}

// Truncate has prompts cut that have more than n tokens, -1 for more than there is room for: on the
// right, else on the left.
func (s *Sampling) Truncate(n int64, right bool) { s.truncate, s.TruncateRight = &n, right }

// DecodeNames reads what names the request for caches, logs and answers.
func (s *Sampling) DecodeNames(f *wire.Fields) {
	f.OptString("user")
	f.OptString("session_id")
	if salt := f.OptString("cache_salt"); salt != nil {
		s.CacheSalt = *salt
		if *salt == "" || len([]rune(*salt)) > 128 || strings.ContainsAny(*salt, "@/\\\x00") {
			f.Fail(wire.BadRequest("cache_salt",
				"`cache_salt` must be 1 to 128 characters without @, /, \\ and NUL"))
		}
	}
	if raw := f.Required("request_id"); raw != nil {
		if raw[0] != '"' {
			f.Fail(wire.BadRequest("request_id", "`request_id` must be a string, got %s",
				wire.Describe(raw)))
		} else if s.requestID = wire.Unquote(raw); !wire.ValidID(s.requestID) {
			f.Fail(wire.BadRequest("request_id",
				"`request_id` must be 1 to 128 visible ASCII characters"))
		}
	}
}

// decodeUnsupported refuses by name what vLLM knows and this server does not do yet, and what vLLM
// has dropped.
func (s *Sampling) decodeUnsupported(f *wire.Fields) {
	f.Unsupported("spaces_between_special_tokens", "true")
	f.Unsupported("watermarking", "false")
	f.Unsupported("logprob_token_ids") // of dialects that have not read it
	f.Unsupported("prompt_embeds", "[]")
	f.Unsupported("kv_transfer_params", "{}")
	f.Unsupported("ec_transfer_params", "{}")
	f.Unsupported("vllm_xargs", "{}")
	f.Unsupported("routed_experts_prompt_start", "0")
	f.Unsupported("return_token_offsets", "false")
	f.Unsupported("return_mm_kwargs", "true", "false")
	f.Unsupported("mm_processor_kwargs", "{}")
	f.Unsupported("media_io_kwargs", "{}")
	f.Unsupported("logits_processors", "[]")
	s.decodeBestOf(f)
}

// decodeBestOf reads best_of: as many candidates as answers are what n asks for.
func (s *Sampling) decodeBestOf(f *wire.Fields) {
	if n := f.OptInt("best_of"); n != nil && *n != int64(s.N) {
		f.Fail(wire.BadRequest("best_of",
			"`best_of` was removed from the API: use n. Only the value of `n`, %d, is accepted, "+
				"got %d", s.N, *n))
	}
}

// checkRanges holds vLLM's ranges (SamplingParams._verify_args).
func (s *Sampling) checkRanges() *wire.Error {
	for _, c := range []struct {
		name  string
		value *float64
		ok    func(v float64) bool
		rule  string
	}{
		{"temperature", s.Temperature, func(v float64) bool { return v >= 0 }, "at least 0"},
		{"top_p", s.TopP, func(v float64) bool { return float32(v) > 0 && v <= 1 }, "in (0, 1]"},
		{"min_p", s.MinP, func(v float64) bool { return v >= 0 && v <= 1 }, "in [0, 1]"},
		{"repetition_penalty", s.RepetitionPenalty, func(v float64) bool {
			return float32(v) > 0
		}, "greater than zero"},
		{"presence_penalty", s.PresencePenalty, func(v float64) bool {
			return v >= -2 && v <= 2
		}, "in [-2, 2]"},
		{"frequency_penalty", s.FrequencyPenalty, func(v float64) bool {
			return v >= -2 && v <= 2
		}, "in [-2, 2]"},
	} {
		if c.value != nil && !c.ok(*c.value) {
			return wire.BadRequest(c.name, "%s must be %s, got %v.", c.name, c.rule, *c.value)
		}
	}
	if s.TopK != nil && *s.TopK < -1 {
		return wire.BadRequest("top_k", "top_k must be 0 (disable), or at least 1, got %d.",
			*s.TopK)
	}
	if s.MinTokens < 0 {
		return wire.BadRequest("min_tokens",
			"min_tokens must be greater than or equal to 0, got %d.", s.MinTokens)
	}
	return nil
}

// asInt narrows an integer of a request to this machine's.
func asInt(v *int64) *int {
	if v == nil {
		return nil
	}
	n := int(*v)
	return &n
}

// maxLogprobTokens is vLLM's bound on logprob_token_ids.
const maxLogprobTokens = 128

// DecodeLogprobTokens reads the tokens whose log-probabilities are asked for, in the place of the
// most likely ones, and says whether there are any.
func (s *Sampling) DecodeLogprobTokens(f *wire.Fields, m *Model) bool {
	const field = "logprob_token_ids"
	s.LogprobTokens = f.Tokens(field, maxLogprobTokens, m.VocabSize)
	if s.LogprobTokens != nil && len(s.LogprobTokens) == 0 {
		f.Fail(wire.BadRequest(field, "`%s` must not be empty", field))
	}
	return s.LogprobTokens != nil
}

// SetLogprobTokens shows the named tokens beside the chosen one; on is the field that has to be set
// with them, and given whether it is.
func (s *Sampling) SetLogprobTokens(f *wire.Fields, m *Model, on string, given bool) {
	if !given {
		f.Fail(wire.BadRequest("logprob_token_ids",
			"when using `logprob_token_ids`, `%s` must be set", on))
	}
	s.TopLogprobs = int32(min(len(s.LogprobTokens)+1, m.VocabSize))
}

// LogprobCount reads a number of log-probabilities: -1 asks for the whole vocabulary.
func LogprobCount(f *wire.Fields, name string, m *Model) int32 {
	v := f.OptInt(name)
	if v == nil {
		return sample.NoLogprobs
	}
	count, bad := CountLogprobs(name, *v, m)
	f.Fail(bad)
	return count
}

// CountLogprobs checks a number of log-probabilities.
func CountLogprobs(name string, v int64, m *Model) (int32, *wire.Error) {
	count := v
	switch {
	case count < -1:
		return sample.NoLogprobs,
			wire.BadRequest(name, "`%s` must be a positive value or -1.", name)
	case count == -1:
		count = int64(m.VocabSize)
	}
	if most := m.MaxLogprobs(); count > int64(most) {
		return sample.NoLogprobs, wire.BadRequest(name,
			"Requested `%s` of %d, which is greater than max allowed: %d", name, count, most)
	}
	if v == -1 || count >= int64(m.VocabSize) {
		return sample.AllLogprobs, nil
	}
	return int32(count), nil
}

// DecodeMaxTokens reads the limit of the output from the first of the named fields that is set.
func (s *Sampling) DecodeMaxTokens(f *wire.Fields, names ...string) {
	s.maxTokensField = names[len(names)-1]
	for _, name := range names {
		if v := f.OptInt(name); v != nil && s.MaxTokens == nil {
			s.MaxTokens, s.maxTokensField = asInt(v), name
		}
	}
	if v := s.MaxTokens; v != nil && *v > math.MaxInt32 {
		f.Fail(wire.BadRequest(s.maxTokensField, "`%s` of %d is beyond any model's context length",
			s.maxTokensField, *v))
	}
}

// CheckMaxTokens refuses an answer of no tokens.
func (s *Sampling) CheckMaxTokens() *wire.Error {
	if v := s.MaxTokens; v != nil && *v < 1 {
		return wire.BadRequest(s.maxTokensField, "%s must be at least 1, got %d.",
			s.maxTokensField, *v)
	}
	return nil
}
