package openai

import (
	"context"
	"math"

	"github.com/eagleray/eagleray/internal/api/call"
	"github.com/eagleray/eagleray/internal/api/wire"
	"github.com/eagleray/eagleray/internal/compute/sample"
)

// completionRequest is the body of POST /v1/completions.
type completionRequest struct {
	sampling
	prompts []rawPrompt
	// scoreOnly is echo with max_tokens 0: the prompt is scored and nothing is shown of the output.
	scoreOnly bool
}

// rawPrompt is one prompt as the client gave it: a text or token ids.
type rawPrompt struct {
	text string
	ids  []int32
	// isText tells an empty text from empty ids.
	isText bool
	// second is the other text of a pair.
	second *string
}

func decodeCompletion(f *wire.Fields, m *model) (*completionRequest, *wire.Error) {
	r := &completionRequest{prompts: decodePrompt(f, m, "prompt")}
	r.decode(f, m)
	return r, f.Err
}

// decode reads all fields but the prompt.
func (r *completionRequest) decode(f *wire.Fields, m *model) {
	r.decodeTransfer(f)
	r.sampling.decode(f, m)
	r.echo = f.OptBool("echo", false)
	r.logprobsByID = f.OptBool("logprobs_by_id", false)
	r.capMaxTokens = f.OptBool("cap_max_tokens", false)
	r.addSpecial = f.Boolean("add_special_tokens", true)
	r.decodeMaxTokens(f, "max_tokens")
	if r.echo && r.MaxTokens != nil && *r.MaxTokens == 0 {
		r.scoreOnly = true
		r.MaxTokens = new(1)
	}
	f.Fail(r.checkMaxTokens())
	f.Unsupported("suffix", `""`)
	f.Unsupported("thinking_token_budget", "-1")

	r.logprobs = logprobCount(f, "logprobs", m)
	if r.echo && r.promptLogprobs == sample.NoLogprobs {
		r.promptLogprobs = r.logprobs
	}
	r.checkBeams(f, m, false, false)
	f.Fail(r.checkTransfer(len(r.prompts)))
	if n := len(r.prompts) * r.n; n > f.Lim.Sequences {
		f.Fail(wire.BadRequest("n", "`n` times the number of prompts is %d, more than %d", n,
			f.Lim.Sequences))
	}
}

// decodeMaxTokens reads the limit of the output from the first of the named fields that is set.
func (s *sampling) decodeMaxTokens(f *wire.Fields, names ...string) {
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

func (s *sampling) checkMaxTokens() *wire.Error {
	if v := s.MaxTokens; v != nil && *v < 1 {
		return wire.BadRequest(s.maxTokensField, "%s must be at least 1, got %d.", s.maxTokensField, *v)
	}
	return nil
}

// decodePrompt reads a text, a list of texts, a list of token ids, or a list of lists of token ids.
func decodePrompt(f *wire.Fields, m *model, field string) []rawPrompt {
	raw := f.Value(field)
	if raw == nil && field == "prompt" && f.Members["messages"] != nil {
		f.Fail(wire.BadRequest("messages", "`messages` are for POST %s; this route, %s, "+
			"takes `prompt`", chatPath, completionPath))
		return nil
	}
	if raw == nil {
		f.Fail(noPrompt(field))
		return nil
	}
	switch raw[0] {
	case '"':
		return nonEmpty(f, field, []rawPrompt{{text: wire.Unquote(raw), isText: true}})
	case '[':
	default:
		f.Fail(wire.BadRequest(field, "`%s` must be a string, a list of strings, a list of "+
			"token ids or a list of such lists, got %s", field, wire.Describe(raw)))
		return nil
	}

	var prompts []rawPrompt
	var ids []int32
	var kind string
	f.Fail(wire.EachElement(raw, func(i int, raw []byte) *wire.Error {
		if kind == "" {
			kind = wire.Describe(raw)
		}
		if wire.Describe(raw) != kind {
			return wire.BadRequest(field, "`%s` mixes %s and %s", field, kind, wire.Describe(raw))
		}
		if kind != "a number" && i == f.Lim.Prompts {
			return wire.BadRequest(field, "`%s` has more than %d prompts", field, f.Lim.Prompts)
		}
		switch kind {
		case "a string":
			prompts = append(prompts, rawPrompt{text: wire.Unquote(raw), isText: true})
		case "a number":
			id, err := wire.ParseToken(field, raw, m.VocabSize)
			ids = append(ids, id)
			return err
		case "an array":
			var one []int32
			err := wire.EachElement(raw, func(_ int, raw []byte) *wire.Error {
				id, err := wire.ParseToken(field, raw, m.VocabSize)
				one = append(one, id)
				return err
			})
			prompts = append(prompts, rawPrompt{ids: one})
			return err
		default:
			return wire.BadRequest(field, "`%s[%d]` must be a string, a token id or a list of "+
				"token ids, got %s", field, i, wire.Describe(raw))
		}
		return nil
	}))
	if ids != nil {
		prompts = []rawPrompt{{ids: ids}}
	}
	return nonEmpty(f, field, prompts)
}

// nonEmpty refuses empty prompts.
func nonEmpty(f *wire.Fields, field string, prompts []rawPrompt) []rawPrompt {
	if len(prompts) == 0 {
		f.Fail(noPrompt(field))
	}
	for i, p := range prompts {
		if p.text == "" && len(p.ids) == 0 {
			f.Fail(wire.BadRequest(field, "%s %d is empty", field, i))
		}
	}
	return prompts
}

func noPrompt(field string) *wire.Error {
	if field == "prompt" {
		return wire.BadRequest(field, "Either prompt or prompt_embeds must be provided and non-empty.")
	}
	return wire.BadRequest(field, "`%s` must not be empty", field)
}

func (s *Service) startCompletion(ctx context.Context, r *call.Call, req *completionRequest) (*generation, error) {
	var bad *wire.Error
	if req.model, bad = s.checkModel(req.model); bad != nil {
		return nil, bad
	}
	if bad = s.checkPriority(&req.sampling); bad != nil {
		return nil, bad
	}
	base, bad := s.params(&req.sampling, defaultCompletionTokens)
	if bad != nil {
		return nil, bad
	}
	prompts := make([]prompt, len(req.prompts))
	for i, raw := range req.prompts {
		if err := call.Ended(ctx); err != nil {
			return nil, err
		}
		if prompts[i], bad = s.tokenize(ctx, &req.sampling, raw); bad != nil {
			return nil, bad
		}
		if bad = s.fit(&prompts[i], &req.sampling, base, "prompt"); bad != nil {
			return nil, bad
		}
	}
	req.prompts = nil
	return s.start(ctx, r, "cmpl-", &req.sampling, prompts)
}

// shownLogprobs is how many of the most likely tokens an answer shows.
func shownLogprobs(count int32, vocab int) int {
	if count == sample.AllLogprobs {
		return vocab
	}
	return int(count)
}
