package openai

import (
	"github.com/eagleray/eagleray/internal/api/generate"
	"github.com/eagleray/eagleray/internal/api/wire"
	"github.com/eagleray/eagleray/internal/compute/sample"
)

func decodeCompletion(f *wire.Fields, m *generate.Model) (*generate.Completion, *wire.Error) {
	r := &generate.Completion{Prompts: DecodePrompt(f, m, "prompt")}
	decodeFields(r, f, m)
	return r, f.Err
}

// decodeFields reads all fields but the prompt.
func decodeFields(r *generate.Completion, f *wire.Fields, m *generate.Model) {
	r.DecodeTransfer(f)
	named := r.DecodeLogprobTokens(f, m)
	r.Sampling.Decode(f, m)
	r.Echo = f.OptBool("echo", false)
	r.LogprobsByID = f.OptBool("logprobs_by_id", false)
	r.CapMaxTokens = f.OptBool("cap_max_tokens", false)
	r.AddSpecial = f.Boolean("add_special_tokens", true)
	r.DecodeMaxTokens(f, "max_tokens")
	if r.Echo && r.MaxTokens != nil && *r.MaxTokens == 0 {
		r.ScoreOnly = true
		r.MaxTokens = new(1)
	}
	f.Fail(r.CheckMaxTokens())
	f.Unsupported("suffix", `""`)
	f.Unsupported("thinking_token_budget", "-1")

	if named && !r.Echo { // the count says nothing
		r.SetLogprobTokens(f, m, "logprobs", f.OptInt("logprobs") != nil)
	} else {
		r.TopLogprobs = generate.LogprobCount(f, "logprobs", m)
		if r.Echo && r.TopPromptLogprobs == sample.NoLogprobs {
			r.TopPromptLogprobs = r.TopLogprobs
		}
		if named {
			r.SetLogprobTokens(f, m, "logprobs", r.TopLogprobs != sample.NoLogprobs)
		}
	}
	r.CheckBeams(f, m, false, false)
	f.Fail(r.CheckTransfer(len(r.Prompts)))
	if n := len(r.Prompts) * r.N; n > f.Lim.Sequences {
		f.Fail(wire.BadRequest("n", "`n` times the number of prompts is %d, more than %d", n,
			f.Lim.Sequences))
	}
}

// DecodePrompt reads a text, a list of texts, a list of token ids, or a list of lists of token ids.
func DecodePrompt(f *wire.Fields, m *generate.Model, field string) []generate.RawPrompt {
	raw := f.Value(field)
	if raw == nil && field == "prompt" && f.Members["messages"] != nil {
		f.Fail(wire.BadRequest("messages", "`messages` are for POST %s; this route, %s, "+
			"takes `prompt`", ChatPath, CompletionPath))
		return nil
	}
	if raw == nil {
		f.Fail(noPrompt(field))
		return nil
	}
	switch raw[0] {
	case '"':
		if field == "prompt" && string(raw) == `""` {
			f.Fail(noPrompt(field))
		}
		return []generate.RawPrompt{{Text: wire.Unquote(raw), IsText: true}}
	case '[':
	default:
		f.Fail(wire.BadRequest(field, "`%s` must be a string, a list of strings, a list of "+
			"token ids or a list of such lists, got %s", field, wire.Describe(raw)))
		return nil
	}

	var prompts []generate.RawPrompt
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
			prompts = append(prompts, generate.RawPrompt{Text: wire.Unquote(raw), IsText: true})
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
			prompts = append(prompts, generate.RawPrompt{IDs: one})
			return err
		default:
			return wire.BadRequest(field, "`%s[%d]` must be a string, a token id or a list of "+
				"token ids, got %s", field, i, wire.Describe(raw))
		}
		return nil
	}))
	if ids != nil {
		prompts = []generate.RawPrompt{{IDs: ids}}
	}
	return nonEmpty(f, field, prompts)
}

// nonEmpty refuses no prompts, and those of no ids: what a text has, the tokenizer says, which may
// put special tokens around it.
func nonEmpty(f *wire.Fields, field string, prompts []generate.RawPrompt) []generate.RawPrompt {
	if len(prompts) == 0 {
		f.Fail(noPrompt(field))
	}
	for i, p := range prompts {
		if !p.IsText && len(p.IDs) == 0 {
			f.Fail(wire.BadRequest(field, "%s %d is empty", field, i))
		}
	}
	return prompts
}

func noPrompt(field string) *wire.Error {
	if field == "prompt" {
		return wire.BadRequest(field,
			"Either prompt or prompt_embeds must be provided and non-empty.")
	}
	return wire.BadRequest(field, "`%s` must not be empty", field)
}
