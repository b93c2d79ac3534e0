package generate

import (
	"context"
	"fmt"
	"unicode/utf8"

	"github.com/eagleray/eagleray/internal/api/wire"
	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/text/tokenizer"
)

// Prompt is a request of the engine, but for the seed of each choice.
type Prompt struct {
	engine.Request
	// Text is what echo shows.
	Text string
}

// Tokenize turns a client's prompt, of a field, into token ids and truncates them. The length is
// checked later, with max_tokens, by fit. It stops when ctx ends.
func (s *Service) Tokenize(ctx context.Context, r *Sampling, field string, raw RawPrompt) (Prompt,
	*wire.Error) {
	if raw.Second != nil {
		return s.tokenizePair(ctx, r, field, raw.Text, *raw.Second)
	}
	p, whole := Prompt{}, false
	if raw.IsText {
		if bad := s.checkText(r, field, raw.Text); bad != nil {
			return p, bad
		}
		e, bad := s.encode(ctx, r, raw.Text+raw.After)
		if bad == nil && e.Short && raw.After != "" && r.TruncateRight {
			e, bad = s.encodeBefore(ctx, r, raw.Text, raw.After)
		}
		if bad != nil {
			return p, bad
		}
		p.Prompt, whole = e.IDs, !e.Short
	} else {
		var bad *wire.Error
		if p.Prompt, bad = s.truncate(r, raw.IDs); bad != nil {
			return p, bad
		}
	}
	if len(p.Prompt) == 0 {
		return p, noTokens(field)
	}
	if r.Echo { // else it is not kept for as long as the request lasts
		if p.Text = raw.Text; !whole && s.Model.Tokenizer != nil {
			p.Text = s.Model.Tokenizer.Decode(p.Prompt, false)
		}
	}
	return p, nil
}

func noTokens(field string) *wire.Error {
	return wire.BadRequest(field, "the prompt has no tokens")
}

// encode makes one prompt of a text or of two, cut as the request says.
func (s *Service) encode(ctx context.Context, r *Sampling, texts ...string) (e tokenizer.Encoding,
	bad *wire.Error) {
	cut, bad := s.cut(r)
	if bad != nil {
		return e, bad
	}
	e, err := s.Model.Tokenizer.EncodeTexts(ctx.Err, texts, r.AddSpecial, cut)
	if err != nil {
		return e, wire.Cancelled()
	}
	return e, nil
}

// encodeBefore is encode of a text that is cut to leave room for what follows it.
func (s *Service) encodeBefore(ctx context.Context, r *Sampling, text, after string) (
	e tokenizer.Encoding, bad *wire.Error) {
	cut, bad := s.cut(r)
	if bad != nil {
		return e, bad
	}
	last, err := s.Model.Tokenizer.EncodeTexts(ctx.Err, []string{after}, false, nil)
	if err == nil && cut.Most <= len(last.IDs) {
		return e, wire.BadRequest("truncate_prompt_tokens", "truncate_prompt_tokens=%d leaves no "+
			"room for a text beside the %d tokens that follow it", cut.Most, len(last.IDs))
	}
	if err == nil {
		cut.Most -= len(last.IDs)
		e, err = s.Model.Tokenizer.EncodeTexts(ctx.Err, []string{text}, r.AddSpecial, cut)
	}
	if err != nil {
		return e, wire.Cancelled()
	}
	e.IDs = append(e.IDs, last.IDs...)
	return e, nil
}

// checkText refuses a text before the work of tokenising it when it cannot fit: no token is longer
// than maxTokenBytes, and normalisation shrinks a text less than fourfold.
func (s *Service) checkText(r *Sampling, field, text string) *wire.Error {
	if s.Model.Tokenizer == nil {
		return wire.BadRequest(field, "the server runs without a tokenizer: give `prompt` as "+
			"token ids to /v1/completions")
	}
	most := s.MostBytes()
	if r.truncate != nil {
		if most = max(most, LeastTokenized); len(text) > most {
			return wire.BadRequest(field,
				"the prompt of %d bytes is longer than what is tokenized in order to be "+
					"truncated (at most %d bytes)", len(text), most)
		}
		return nil
	}
	if len(text) > most {
		return wire.TooLong(field,
			"This model's maximum context length is %d tokens. The prompt of %d bytes cannot fit "+
				"in it (at most %d bytes).", s.Model.MaxModelLen, len(text), most)
	}
	return nil
}

// Beginning is the longest beginning of a text that bisection finds with at most n tokens.
func (s *Service) Beginning(ctx context.Context, field, text string, n int) (string, *wire.Error) {
	whole := int64(n)
	if bad := s.checkText(&Sampling{truncate: &whole}, field, text); bad != nil {
		return "", bad
	}
	fits := func(end int) bool {
		e, err := s.Model.Tokenizer.EncodeTexts(ctx.Err, []string{text[:end]}, false, nil)
		return err == nil && len(e.IDs) <= n
	}
	least, most := 0, len(text)
	if fits(most) {
		least = most
	}
	for most-least > 1 && ctx.Err() == nil {
		if mid := (least + most) / 2; fits(mid) {
			least = mid
		} else {
			most = mid
		}
	}
	for least < len(text) && !utf8.RuneStart(text[least]) {
		least--
	}
	if ctx.Err() != nil {
		return "", wire.Cancelled()
	}
	return text[:least], nil
}

// MostBytes is the length from which on no text fits into the model.
func (s *Service) MostBytes() int { return 4 * s.maxTokenBytes * s.Model.MaxModelLen }

// tokenizePair is tokenize for two texts.
func (s *Service) tokenizePair(ctx context.Context, r *Sampling, field, first, second string) (
	p Prompt, bad *wire.Error) {
	// That of both is bounded like the text of one.
	if bad := s.checkText(r, field, first+second); bad != nil {
		return p, bad
	}
	e, bad := s.encode(ctx, r, first, second)
	if bad != nil {
		return p, bad
	}
	if len(e.IDs) == 0 {
		return p, noTokens(field)
	}
	p.Prompt = e.IDs
	if s.Model.Pooling != nil && s.Model.Pooling.PairTypes {
		p.Second = uint32(e.Second)
	}
	return p, nil
}

// truncate keeps the last (or first) truncate_prompt_tokens of a client's own tokens, or of a
// conversation's.
func (s *Service) truncate(r *Sampling, ids []int32) ([]int32, *wire.Error) {
	cut, bad := s.cut(r)
	if bad != nil || cut == nil || len(ids) <= cut.Most {
		return ids, bad
	}
	return cut.Truncate(ids, cut.Most), nil
}

// cut is what truncate_prompt_tokens says, nil for nothing; -1 keeps what fits beside max_tokens.
func (s *Service) cut(r *Sampling) (*tokenizer.Cut, *wire.Error) {
	if r.truncate == nil {
		return nil, nil
	}
	room := int64(s.Model.MaxModelLen) - 1
	if r.MaxTokens != nil && !r.CapMaxTokens {
		room = int64(s.Model.MaxModelLen - *r.MaxTokens)
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
	return &tokenizer.Cut{Most: int(keep), Right: r.TruncateRight}, nil
}

// CheckModel refuses a model that is not served, nor an adapter; none named means the first.
func (s *Service) CheckModel(name string) (string, *wire.Error) {
	if name == "" {
		return s.Model.Names[0], nil
	}
	if !s.Model.serves(name) && !s.opt.Adapters.Serves(name) {
		return "", noModel(name)
	}
	return name, nil
}

func noModel(name string) *wire.Error {
	return &wire.Error{Status: 404, Param: "model",
		Message: fmt.Sprintf("The model `%s` does not exist.", wire.Clip(name))}
}

// LeastTokenized is the length of a text in bytes that /tokenize takes at least, whatever the model
// could: texts are counted in order to be cut.
const LeastTokenized = 1 << 20
