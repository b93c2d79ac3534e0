package tag

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/eagleray/eagleray/internal/text/constrain/cfg"
	"github.com/eagleray/eagleray/internal/text/constrain/regex"
)

// ending is what ends a format: one of some texts, or of some special tokens.
type ending struct {
	texts []string
	ids   []int32
}

// ending reads the end of a tag: a text, a list of texts, or a format of type token; nil is none.
func (c *compiler) ending(raw json.RawMessage, at string) (*ending, error) {
	if raw == nil {
		return nil, invalid(at, "a tag has an end")
	}
	if text, ok := asText(raw); ok {
		if text == "" {
			return nil, nil
		}
		return &ending{texts: []string{text}}, nil
	}
	var list []string
	if json.Unmarshal(raw, &list) == nil && len(list) > 0 {
		if slices.Contains(list, "") {
			return nil, invalid(at, "one of several ends is empty")
		}
		return &ending{texts: list}, nil
	}
	ids, err := c.tokenFormat(raw, at)
	return &ending{ids: ids}, err
}

// ended is the symbol of an end by itself.
func (c *compiler) ended(end *ending) cfg.Sym {
	if end == nil {
		return c.g.Seq()
	}
	var syms []cfg.Sym
	for _, t := range end.texts {
		syms = append(syms, c.text(t))
	}
	if len(end.ids) > 0 {
		syms = append(syms, c.g.Tokens(end.ids...))
	}
	return c.g.Alt(syms...)
}

// piece is a part of a text: a special token, or bytes.
type piece struct {
	text    string
	id      int32
	special bool
}

// pieces divides a text at the special tokens in it, the longest first.
func (c *compiler) pieces(text string) []piece {
	var list []piece
	from := 0
	for i := 0; i < len(text); {
		longest := ""
		for _, s := range c.specials[text[i]] {
			if strings.HasPrefix(text[i:], s) {
				longest = s
				break
			}
		}
		if longest == "" {
			i++
			continue
		}
		if i > from {
			list = append(list, piece{text: text[from:i]})
		}
		id, ok := c.h.Special(longest)
		list = append(list, piece{text: longest, id: id, special: ok})
		i += len(longest)
		from = i
	}
	if from < len(text) {
		list = append(list, piece{text: text[from:]})
	}
	return list
}

// text is the symbol of a text, special tokens in it as such, or spelled.
func (c *compiler) text(text string) cfg.Sym { return c.join(c.pieces(text)) }

func (c *compiler) join(list []piece) cfg.Sym {
	var syms []cfg.Sym
	for _, p := range list {
		s := c.g.Lit(p.text)
		if p.special {
			s = c.g.Alt(c.g.Tokens(p.id), s)
		}
		syms = append(syms, s)
	}
	return c.g.Seq(syms...)
}

// tokenFormat reads a format of type token.
func (c *compiler) tokenFormat(raw json.RawMessage, at string) ([]int32, error) {
	var f struct {
		Type  string          `json:"type"`
		Token json.RawMessage `json:"token"`
	}
	if json.Unmarshal(raw, &f) != nil || f.Type != "token" {
		return nil, invalid(at, "neither a text nor a format of type token")
	}
	return c.tokens([]json.RawMessage{f.Token}, at+"/token")
}

// tokens reads special tokens, each its id or its text.
func (c *compiler) tokens(list []json.RawMessage, at string) ([]int32, error) {
	var ids []int32
	for i, raw := range list {
		here := at
		if len(list) > 1 {
			here = fmt.Sprintf("%s/%d", at, i)
		}
		var id int32
		text, ok := asText(raw)
		switch {
		case ok:
			if id, ok = c.h.Special(text); !ok {
				return nil, invalid(here, "%q is no special token of the model", text)
			}
		case json.Unmarshal(raw, &id) != nil:
			return nil, invalid(here, "a token is its text or its id")
		case !c.h.IsSpecial(id):
			return nil, invalid(here, "%d is no special token of the model", id)
		}
		ids = append(ids, id)
	}
	return ids, nil
}

// look counts the work of comparing a text with n others.
func (c *compiler) look(n int) error {
	const perUnit = 64
	if b := c.g.B; !b.Spend(n / perUnit) {
		return &cfg.Error{Code: cfg.GrammarTooComplex,
			Reason: fmt.Sprintf("more than %d operations", b.Given())}
	}
	return nil
}

// mark is what is looked for in free text, and what follows it.
type mark struct {
	// text, or id where that is not negative.
	text string
	id   int32
	then cfg.Sym
}

// region is free text up to the first of some marks, or to what ends it.
type region struct {
	marks []mark
	// end is what ends it; nil is the end of the answer.
	end *ending
	// excludes are texts, and withoutTokens special tokens, that it does not have: neither spelled
	// nor as a token.
	excludes      []string
	withoutTokens []int32
}

// region is the symbol for free text and its end. The text before a mark and the mark are one
// lexeme, since free text would take the mark for its own.
func (c *compiler) region(r region) cfg.Sym {
	self := c.g.Nonterminal("text")
	c.fill(self, r)
	return self
}

// fill gives a nonterminal the rules of a region.
func (c *compiler) fill(self cfg.Sym, r region) {
	b := c.g.B
	marks := r.marks
	if r.end != nil {
		for _, t := range r.end.texts {
			marks = append(marks, c.marks(t, func(rest cfg.Sym) cfg.Sym { return rest })...)
		}
		for _, id := range r.end.ids {
			marks = append(marks, mark{id: id, then: c.g.Seq()})
		}
	}
	var found []regex.Ex
	known := slices.Clone(r.withoutTokens)
	for _, m := range marks {
		if m.id >= 0 {
			known = append(known, m.id)
			continue
		}
		found = append(found, b.Lit(m.text))
	}
	barred := slices.Clone(found)
	for _, t := range r.excludes {
		if t == "" {
			continue
		}
		barred = append(barred, b.Lit(t))
		if id, ok := c.h.Special(t); ok {
			known = append(known, id)
		}
	}
	any1 := b.AnyText()
	free := any1
	early := regex.Empty
	if len(barred) > 0 {
		has := b.Cat(any1, b.Or(barred...), any1)
		free = b.Minus(any1, has)
		early = b.Cat(any1, b.Or(barred...), b.Plus(b.AnyRune()))
	}
	text := c.g.Lexeme(free)
	for i, m := range marks {
		if m.id >= 0 {
			c.g.Rule(self, text, c.g.Tokens(m.id), m.then)
			continue
		}
		x := b.Minus(b.Cat(any1, b.Lit(m.text)), early)
		if c.look(len(marks)) != nil {
			return
		}
		for j, longer := range marks {
			if i != j && longer.id < 0 && len(longer.text) > len(m.text) &&
				strings.HasSuffix(longer.text, m.text) {
				x = b.Minus(x, b.Cat(any1, b.Lit(longer.text)))
			}
		}
		c.g.Rule(self, c.g.Lexeme(x), m.then)
	}
	c.g.Rule(self, text, c.g.TokensExcept(known...), self)
	if r.end == nil {
		c.g.Rule(self, text)
	}
}

// marks are those of a text: the text spelled, and the first special token in it with what follows
// there; then makes what follows the mark of the rest of the text.
func (c *compiler) marks(text string, then func(rest cfg.Sym) cfg.Sym) []mark {
	list := []mark{{text: text, id: -1, then: then(c.g.Seq())}}
	pieces := c.pieces(text)
	for i, p := range pieces {
		if p.special {
			return append(list, mark{id: p.id, then: then(c.join(pieces[i+1:]))})
		}
	}
	return list
}
