package openai

import (
	"math"
	"strconv"
	"strings"

	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/engine/schedule"
	"github.com/eagleray/eagleray/internal/rank/kvtransfer"
	"github.com/eagleray/eagleray/internal/text/constrain"
)

// sampling holds the fields that completions and chat share, checked one by one. Of those in
// Overrides it leaves BadWords, the log-probabilities and Seed to params.go.
type sampling struct {
	sample.Overrides
	model string

	n                                     int
	maxTokensField                        string
	seed                                  *int64
	stop                                  []string
	includeStop, keepSpecial              bool
	badWords                              []string
	logprobs, promptLogprobs              int32
	stream, includeUsage, continuousUsage bool
	truncate                              *int64
	truncateRight, addSpecial             bool
	asTokenIDs, returnTokenIDs, echo      bool
	// logprobsByID gives log-probabilities the form of prompt_logprobs; capMaxTokens has max_tokens be
	// as many as the context has room for, not refused, where it is more.
	logprobsByID, capMaxTokens bool
	// polled says that what there is of the answer can be asked for before its end.
	polled               bool
	priority             int
	timeout              *float64
	cacheSalt, requestID string
	// constraint is what the answer keeps to, constraintField the field that says so, "" for tools.
	constraint constrain.Spec
	repetition schedule.Repetition
	// handOver says that the keys and values of the prompt are for another server, ticket where they
	// come from; nil for nowhere.
	handOver bool
	ticket   *kvtransfer.Ticket
	// beams is nil unless it is to be beam search.
	beams                    *beams
	constraintField          string
	compactJSON, anyKeyOrder bool
	// wrapped says that the constraint is a structural tag that was made of what the field says;
	// toolOfTag are then the numbers of the tools that its tags are of.
	wrapped   bool
	toolOfTag []int
}

// patience is how long the client waits.
func (s *sampling) patience() *float64 { return s.timeout }

// decode reads the shared fields. The caller reads its own before or after, then calls f.rest.
func (s *sampling) decode(f *fields, m *model) {
	if name := f.optString("model"); name != nil {
		s.model = *name
	}
	s.n = int(f.ranged("n", 1, 1, int64(f.lim.N)))
	s.MinTokens = int(f.integer("min_tokens", 0))
	s.Temperature = f.optFloat("temperature")
	s.TopP = f.optFloat("top_p")
	s.TopK = asInt(f.optInt("top_k"))
	s.MinP = f.optFloat("min_p")
	s.RepetitionPenalty = f.optFloat("repetition_penalty")
	s.PresencePenalty = f.optFloat("presence_penalty")
	s.FrequencyPenalty = f.optFloat("frequency_penalty")
	s.seed = f.optInt("seed")
	s.decodeStop(f, m)
	s.decodeBias(f, m)
	s.AllowedTokens = f.tokens("allowed_token_ids", m.VocabSize, m.VocabSize)
	if s.AllowedTokens != nil && len(s.AllowedTokens) == 0 {
		f.fail(badRequest("allowed_token_ids", "`allowed_token_ids` must not be empty"))
	}
	s.badWords = f.strings("bad_words", f.array("bad_words"), f.lim.BadWords, f.lim.StopBytes)
	s.decodeStream(f)
	s.includeUsage = s.stream && (s.includeUsage || m.answers.ForceIncludeUsage)
	// As in vLLM, usage in every chunk goes with usage at the end.
	s.continuousUsage = s.continuousUsage && s.includeUsage
	s.promptLogprobs = logprobCount(f, "prompt_logprobs", m)
	if s.stream && s.promptLogprobs != sample.NoLogprobs && s.promptLogprobs != 0 {
		f.fail(badRequest("prompt_logprobs",
			"`prompt_logprobs` are not available when `stream=True`."))
	}
	s.decodeTruncation(f)
	s.asTokenIDs = f.optBool("return_tokens_as_token_ids", m.answers.TokensAsTokenIDs)
	s.returnTokenIDs = f.optBool("return_token_ids", false)
	s.timeout = f.optFloat("timeout")
	s.priority = int(f.ranged("priority", 0, math.MinInt32, math.MaxInt32))
	s.decodeNames(f)
	s.compactJSON, s.anyKeyOrder = m.answers.CompactJSON, m.answers.AnyKeyOrder
	s.decodeConstraint(f)
	s.decodeRepetition(f)
	s.decodeBeams(f)
	s.decodeUnsupported(f)
	f.fail(s.checkRanges())
}

func (s *sampling) decodeStop(f *fields, m *model) {
	raw := f.value("stop")
	switch {
	case raw == nil:
	case raw[0] == '"':
		s.stop = f.strings("stop", append(append([]byte{'['}, raw...), ']'), 1, f.lim.StopBytes)
	case raw[0] == '[':
		s.stop = f.strings("stop", raw, f.lim.Stops, f.lim.StopBytes)
	default:
		f.fail(badRequest("stop", "`stop` must be a string or a list of strings, got %s",
			describe(raw)))
	}
	if len(s.stop) > 0 && m.Tokenizer == nil {
		f.fail(badRequest("stop", "`stop` needs a tokenizer and the server runs without one"))
	}
	s.includeStop = f.boolean("include_stop_str_in_output", false)
	s.StopTokens = f.tokens("stop_token_ids", f.lim.StopTokens, m.VocabSize)
	s.IgnoreEOS = f.boolean("ignore_eos", false)
	s.keepSpecial = !f.boolean("skip_special_tokens", true)
}

// decodeBias reads logit_bias.
func (s *sampling) decodeBias(f *fields, m *model) {
	raw := f.object("logit_bias")
	if raw == nil {
		return
	}
	seen := make(map[int32]struct{})
	f.fail(eachMember(raw, func(key string, raw []byte) *apiError {
		if len(s.LogitBias) == f.lim.LogitBias {
			return badRequest("logit_bias", "`logit_bias` has more than %d entries",
				f.lim.LogitBias)
		}
		id, err := strconv.ParseInt(strings.TrimSpace(key), 10, 64)
		if err != nil {
			return badRequest("logit_bias", "`logit_bias` has a key that is not a token id: %q",
				clip(key))
		}
		if id < 0 || id >= int64(m.VocabSize) {
			return badRequest("logit_bias",
				"token id %d in `logit_bias` is out of vocabulary: "+
					"ids are 0 to %d", id, m.VocabSize-1)
		}
		if _, ok := seen[int32(id)]; ok { // "1" and "01"
			return badRequest("logit_bias", "`logit_bias` names token id %d twice", id)
		}
		seen[int32(id)] = struct{}{}
		v, bad := parseFloat("logit_bias", raw)
		if bad != nil {
			return bad
		}
		s.LogitBias = append(s.LogitBias, sample.Bias{ID: int32(id), Value: float32(v)})
		return nil
	}))
}

func (s *sampling) decodeStream(f *fields) {
	s.stream = f.optBool("stream", false)
	raw := f.object("stream_options")
	if raw == nil {
		return
	}
	if !s.stream {
		f.fail(badRequest("stream_options",
			"Stream options can only be defined when `stream=True`."))
	}
	f.fail(eachMember(raw, func(key string, raw []byte) *apiError {
		var dst *bool
		switch key {
		case "include_usage":
			dst = &s.includeUsage
		case "continuous_usage_stats":
			dst = &s.continuousUsage
		default:
			return nil
		}
		if isNull(raw) {
			return nil
		}
		v, ok := laxBool(raw)
		if !ok {
			return badRequest("stream_options", "`stream_options.%s` must be a boolean, got %s",
				key, describe(raw))
		}
		*dst = v
		return nil
	}))
}

func (s *sampling) decodeTruncation(f *fields) {
	s.truncate = f.optInt("truncate_prompt_tokens")
	if s.truncate != nil && *s.truncate < -1 {
		f.fail(badRequest("truncate_prompt_tokens",
			"`truncate_prompt_tokens` must be -1 or at least 0, got %d", *s.truncate))
	}
	if side := f.optString("truncation_side"); side != nil {
		s.truncateRight = *side == "right"
		if *side != "left" && *side != "right" {
			f.fail(badRequest("truncation_side", "`truncation_side` must be left or right, got %q",
				clip(*side)))
		}
	}
}

// decodeNames reads what names the request for caches, logs and answers.
func (s *sampling) decodeNames(f *fields) {
	f.optString("user")
	f.optString("session_id")
	if salt := f.optString("cache_salt"); salt != nil {
		s.cacheSalt = *salt
		if *salt == "" || len([]rune(*salt)) > 128 || strings.ContainsAny(*salt, "@/\\\x00") {
			f.fail(badRequest("cache_salt",
				"`cache_salt` must be 1 to 128 characters without @, /, \\ and NUL"))
		}
	}
	if raw := f.required("request_id"); raw != nil {
		if raw[0] != '"' {
			f.fail(badRequest("request_id", "`request_id` must be a string, got %s", describe(raw)))
		} else if s.requestID = unquote(raw); !validID(s.requestID) {
			f.fail(badRequest("request_id",
				"`request_id` must be 1 to 128 visible ASCII characters"))
		}
	}
}

// decodeUnsupported refuses by name what vLLM knows and this server does not do yet, and what vLLM
// has dropped.
func (s *sampling) decodeUnsupported(f *fields) {
	f.unsupported("spaces_between_special_tokens", "true")
	f.unsupported("watermarking", "false")
	f.unsupported("logprob_token_ids")
	f.unsupported("stream_interval", "1")
	f.unsupported("prompt_embeds", "[]")
	f.unsupported("kv_transfer_params", "{}")
	f.unsupported("ec_transfer_params", "{}")
	f.unsupported("vllm_xargs", "{}")
	f.unsupported("routed_experts_prompt_start", "0")
	f.unsupported("return_token_offsets", "false")
	f.unsupported("return_mm_kwargs", "true", "false")
	f.unsupported("mm_processor_kwargs", "{}")
	f.unsupported("media_io_kwargs", "{}")
	f.unsupported("logits_processors", "[]")
	s.decodeBestOf(f)
}

// decodeBestOf reads best_of: as many candidates as answers are what n asks for.
func (s *sampling) decodeBestOf(f *fields) {
	if n := f.optInt("best_of"); n != nil && *n != int64(s.n) {
		f.fail(badRequest("best_of", "`best_of` was removed from the API: use n. Only the value of `n`, "+
			"%d, is accepted, got %d", s.n, *n))
	}
}

// checkRanges holds vLLM's ranges (SamplingParams._verify_args).
func (s *sampling) checkRanges() *apiError {
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
			return badRequest(c.name, "%s must be %s, got %v.", c.name, c.rule, *c.value)
		}
	}
	if s.TopK != nil && *s.TopK < -1 {
		return badRequest("top_k", "top_k must be 0 (disable), or at least 1, got %d.", *s.TopK)
	}
	if s.MinTokens < 0 {
		return badRequest("min_tokens", "min_tokens must be greater than or equal to 0, got %d.",
			s.MinTokens)
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

// logprobCount reads a number of log-probabilities: -1 asks for the whole vocabulary.
func logprobCount(f *fields, name string, m *model) int32 {
	v := f.optInt(name)
	if v == nil {
		return sample.NoLogprobs
	}
	count := *v
	switch {
	case count < -1:
		f.fail(badRequest(name, "`%s` must be a positive value or -1.", name))
		return sample.NoLogprobs
	case count == -1:
		count = int64(m.VocabSize)
	}
	if most := m.maxLogprobs(); count > int64(most) {
		f.fail(badRequest(name, "Requested `%s` of %d, which is greater than max allowed: %d", name,
			count, most))
		return sample.NoLogprobs
	}
	if *v == -1 || count >= int64(m.VocabSize) {
		return sample.AllLogprobs
	}
	return int32(count)
}
