package openai

import (
	"context"
	"fmt"

	"github.com/eagleray/eagleray/internal/api/wire"
	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/text/tokenizer"
)

// prompt is a request of the engine, but for the seed of each choice.
type prompt struct {
	engine.Request
	// text is what echo shows.
	text string
}

// tokenize turns a client's prompt into token ids and truncates them. The length is checked later,
// with max_tokens, by fit. It stops when ctx ends.
func (s *API) tokenize(ctx context.Context, r *sampling, raw rawPrompt) (prompt, *wire.Error) {
	if raw.second != nil {
		return s.tokenizePair(ctx, r, raw.text, *raw.second)
	}
	p := prompt{text: raw.text}
	p.Prompt = raw.ids
	if raw.isText {
		if err := s.checkText(r, "prompt", raw.text); err != nil {
			return p, err
		}
		ids, err := s.model.Tokenizer.EncodeUntil(ctx.Err, raw.text, r.addSpecial)
		if err != nil {
			return p, wire.Cancelled()
		}
		p.Prompt = ids
		if !r.echo {
			p.text = "" // not kept for as long as the request lasts
		}
	}
	kept, err := s.truncate(r, p.Prompt)
	if err != nil {
		return p, err
	}
	whole := len(kept) == len(p.Prompt)
	p.Prompt = kept
	if len(p.Prompt) == 0 {
		return p, wire.BadRequest("prompt", "the prompt has no tokens")
	}
	if tok := s.model.Tokenizer; r.echo && tok != nil && !(raw.isText && whole) {
		p.text = tok.Decode(p.Prompt, false)
	}
	return p, nil
}

// checkText refuses a text before the work of tokenising it when it cannot fit: no token is longer
// than maxTokenBytes, and normalisation shrinks a text less than fourfold.
func (s *API) checkText(r *sampling, field, text string) *wire.Error {
	if s.model.Tokenizer == nil {
		return wire.BadRequest(field, "the server runs without a tokenizer: give `prompt` as "+
			"token ids to /v1/completions")
	}
	most := s.mostBytes()
	if r.truncate != nil {
		if most = max(most, leastTokenized); len(text) > most {
			return wire.BadRequest(field, "the prompt of %d bytes is longer than what is tokenized in order "+
				"to be truncated (at most %d bytes)", len(text), most)
		}
		return nil
	}
	if len(text) > most {
		return wire.BadRequest(field, "This model's maximum context length is %d tokens. The prompt "+
			"of %d bytes cannot fit in it "+
			"(at most %d bytes).", s.model.MaxModelLen, len(text), most)
	}
	return nil
}

// mostBytes is the length from which on no text fits into the model.
func (s *API) mostBytes() int { return 4 * s.maxTokenBytes * s.model.MaxModelLen }

// tokenizePair is tokenize for two texts, which are cut as transformers does.
func (s *API) tokenizePair(ctx context.Context, r *sampling, first, second string) (p prompt, bad *wire.Error) {
	// That of both is bounded like the text of one.
	if bad := s.checkText(r, "documents", first+second); bad != nil {
		return p, bad
	}
	cut, bad := s.cut(r)
	if bad != nil {
		return p, bad
	}
	ids, err := s.model.Tokenizer.EncodePairUntil(ctx.Err, first, second, r.addSpecial, cut)
	if err != nil {
		return p, wire.Cancelled()
	}
	if len(ids) == 0 {
		return p, wire.BadRequest("prompt", "the prompt has no tokens")
	}
	p.Prompt = ids
	return p, nil
}

// truncate keeps the last (or first) truncate_prompt_tokens tokens.
func (s *API) truncate(r *sampling, ids []int32) ([]int32, *wire.Error) {
	cut, bad := s.cut(r)
	if bad != nil || cut == nil || len(ids) <= cut.Most {
		return ids, bad
	}
	return cut.Keep(ids, cut.Most), nil
}

// cut is what truncate_prompt_tokens says, nil for nothing; -1 keeps what fits beside max_tokens.
func (s *API) cut(r *sampling) (*tokenizer.Cut, *wire.Error) {
	if r.truncate == nil {
		return nil, nil
	}
	room := int64(s.model.MaxModelLen) - 1
	if r.MaxTokens != nil && !r.capMaxTokens {
		room = int64(s.model.MaxModelLen - *r.MaxTokens)
	}
	keep := *r.truncate
	if keep == -1 {
		keep = max(room, 0)
	}
	if keep > room {
		return nil, wire.BadRequest("truncate_prompt_tokens",
			"truncate_prompt_tokens=%d cannot be greater than max_model_len - "+
				"max_tokens = %d. Please request a smaller truncation size.", keep, room)
	}
	return &tokenizer.Cut{Most: int(keep), Right: r.truncateRight}, nil
}

// checkModel refuses a model that is not served; none named means the first.
func (s *API) checkModel(name string) (string, *wire.Error) {
	if name == "" {
		return s.model.Names[0], nil
	}
	if !s.model.serves(name) {
		return "", &wire.Error{Status: 404, Param: "model",
			Message: fmt.Sprintf("The model `%s` does not exist.", wire.Clip(name))}
	}
	return name, nil
}
