package openai

import (
	"math"

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

func decodeCompletion(f *fields, m *model) (*completionRequest, *apiError) {
	r := &completionRequest{}
	r.decodeTransfer(f)
	r.sampling.decode(f, m)
	r.prompts = decodePrompt(f, m, "prompt")
	r.echo = f.optBool("echo", false)
	r.logprobsByID = f.optBool("logprobs_by_id", false)
	r.capMaxTokens = f.optBool("cap_max_tokens", false)
	r.addSpecial = f.boolean("add_special_tokens", true)
	r.decodeMaxTokens(f, "max_tokens")
	if r.echo && r.MaxTokens != nil && *r.MaxTokens == 0 {
		r.scoreOnly = true
		r.MaxTokens = new(1)
	}
	f.fail(r.checkMaxTokens())
	f.unsupported("suffix", `""`)
	f.unsupported("thinking_token_budget", "-1")

	r.logprobs = logprobCount(f, "logprobs", m)
	if r.echo && r.promptLogprobs == sample.NoLogprobs {
		r.promptLogprobs = r.logprobs
	}
	r.checkBeams(f, m, false, false)
	f.fail(r.checkTransfer(len(r.prompts)))
	if n := len(r.prompts) * r.n; n > f.lim.Sequences {
		f.fail(badRequest("n", "`n` times the number of prompts is %d, more than %d", n,
			f.lim.Sequences))
	}
	return r, f.err
}

// decodeMaxTokens reads the limit of the output from the first of the named fields that is set.
func (s *sampling) decodeMaxTokens(f *fields, names ...string) {
	s.maxTokensField = names[len(names)-1]
	for _, name := range names {
		if v := f.optInt(name); v != nil && s.MaxTokens == nil {
			s.MaxTokens, s.maxTokensField = asInt(v), name
		}
	}
	if v := s.MaxTokens; v != nil && *v > math.MaxInt32 {
		f.fail(badRequest(s.maxTokensField, "`%s` of %d is beyond any model's context length",
			s.maxTokensField, *v))
	}
}

func (s *sampling) checkMaxTokens() *apiError {
	if v := s.MaxTokens; v != nil && *v < 1 {
		return badRequest(s.maxTokensField, "%s must be at least 1, got %d.", s.maxTokensField, *v)
	}
	return nil
}

// decodePrompt reads a text, a list of texts, a list of token ids, or a list of lists of token ids.
func decodePrompt(f *fields, m *model, field string) []rawPrompt {
	raw := f.value(field)
	if raw == nil && field == "prompt" && f.members["messages"] != nil {
		f.fail(badRequest("messages", "`messages` are for POST %s; this route, %s, "+
			"takes `prompt`", chatPath, completionPath))
		return nil
	}
	if raw == nil {
		f.fail(noPrompt(field))
		return nil
	}
	switch raw[0] {
	case '"':
		return nonEmpty(f, field, []rawPrompt{{text: unquote(raw), isText: true}})
	case '[':
	default:
		f.fail(badRequest(field, "`%s` must be a string, a list of strings, a list of "+
			"token ids or a list of such lists, got %s", field, describe(raw)))
		return nil
	}

	var prompts []rawPrompt
	var ids []int32
	var kind string
	f.fail(eachElement(raw, func(i int, raw []byte) *apiError {
		if kind == "" {
			kind = describe(raw)
		}
		if describe(raw) != kind {
			return badRequest(field, "`%s` mixes %s and %s", field, kind, describe(raw))
		}
		if kind != "a number" && i == f.lim.Prompts {
			return badRequest(field, "`%s` has more than %d prompts", field, f.lim.Prompts)
		}
		switch kind {
		case "a string":
			prompts = append(prompts, rawPrompt{text: unquote(raw), isText: true})
		case "a number":
			id, err := parseToken(field, raw, m.VocabSize)
			ids = append(ids, id)
			return err
		case "an array":
			var one []int32
			err := eachElement(raw, func(_ int, raw []byte) *apiError {
				id, err := parseToken(field, raw, m.VocabSize)
				one = append(one, id)
				return err
			})
			prompts = append(prompts, rawPrompt{ids: one})
			return err
		default:
			return badRequest(field, "`%s[%d]` must be a string, a token id or a list of "+
				"token ids, got %s", field, i, describe(raw))
		}
		return nil
	}))
	if ids != nil {
		prompts = []rawPrompt{{ids: ids}}
	}
	return nonEmpty(f, field, prompts)
}

// nonEmpty refuses empty prompts.
func nonEmpty(f *fields, field string, prompts []rawPrompt) []rawPrompt {
	if len(prompts) == 0 {
		f.fail(noPrompt(field))
	}
	for i, p := range prompts {
		if p.text == "" && len(p.ids) == 0 {
			f.fail(badRequest(field, "%s %d is empty", field, i))
		}
	}
	return prompts
}

func noPrompt(field string) *apiError {
	if field == "prompt" {
		return badRequest(field, "Either prompt or prompt_embeds must be provided and non-empty.")
	}
	return badRequest(field, "`%s` must not be empty", field)
}
