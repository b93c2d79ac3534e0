// Package tag is the front end of structural tags, in the JSON format of xgrammar: texts with parts
// that follow a schema, a pattern or a grammar, such as the calls of tools. It makes the symbols of
// a cfg.Grammar.
//
// A text that is written in a tag, such as begin, and that is or holds the text of a special token
// stands for the token too: models write <tool_call> as one token, and may spell it.
package tag

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/eagleray/eagleray/internal/text/constrain/cfg"
	"github.com/eagleray/eagleray/internal/text/constrain/schema"
)

// Host compiles what is inside of tags.
type Host struct {
	// Special is the id of the special token with a text, and IsSpecial is whether an id is one.
	Special   func(text string) (id int32, ok bool)
	IsSpecial func(id int32) bool
	// Texts are the texts of the special tokens.
	Texts []string
	// Schema is the symbol for the valid texts of a JSON Schema.
	Schema func(text string, o schema.Options) (cfg.Sym, error)
	// Members are those of the objects of a JSON Schema.
	Members func(text string, o schema.Options) (schema.Object, error)
	// Pattern is that for the texts of a regular expression, Grammar for those of a grammar.
	Pattern, Grammar func(text string) (cfg.Sym, error)
}

// maxDepth bounds how deep formats are nested, maxFormats how many there are.
const (
	maxDepth   = 64
	maxFormats = 20_000
)

// Compile adds the symbols of a structural tag to a greedy grammar and returns the one for its
// texts. Errors are *cfg.Error, with the JSON pointer to the format at fault.
func Compile(text string, g *cfg.Grammar, h Host) (cfg.Sym, error) {
	c := &compiler{g: g, h: h}
	for _, s := range h.Texts {
		if s != "" {
			c.specials[s[0]] = append(c.specials[s[0]], s)
		}
	}
	for _, list := range c.specials {
		slices.SortStableFunc(list, func(a, b string) int { return len(b) - len(a) })
	}
	var top struct {
		Type       string          `json:"type"`
		Format     json.RawMessage `json:"format"`
		Structures json.RawMessage `json:"structures"`
		Tags       json.RawMessage `json:"tags"`
		Triggers   json.RawMessage `json:"triggers"`
	}
	if err := json.Unmarshal([]byte(text), &top); err != nil {
		return cfg.None, invalid("", "not the JSON of a structural tag: %v", err)
	}
	switch {
	case top.Type != "" && top.Type != "structural_tag":
		return cfg.None, invalid("/type", "the type of a structural tag is structural_tag, not %q",
			top.Type)
	case top.Format != nil:
		return c.compile(top.Format, nil, "/format", 0)
	case top.Triggers != nil && (top.Structures != nil || top.Tags != nil):
		list, at := top.Structures, "/structures"
		if list == nil {
			list, at = top.Tags, "/tags"
		}
		return c.legacy(list, top.Triggers, at)
	}
	return cfg.None, invalid("", "a structural tag has a format, or structures and triggers")
}

func invalid(at, format string, args ...any) error {
	return &cfg.Error{Code: cfg.TagInvalid, Pointer: at, Reason: fmt.Sprintf(format, args...)}
}

// within adds where it is to the pointer of an error.
func within(at string, err error) error {
	var e *cfg.Error
	if !errors.As(err, &e) {
		return err
	}
	moved := *e
	moved.Pointer = at + e.Pointer
	return &moved
}

// ofSource is within for a schema that has a name: the pointer is into that schema.
func ofSource(name, at string, err error) error {
	var e *cfg.Error
	if name == "" || !errors.As(err, &e) {
		return within(at, err)
	}
	named := *e
	named.Source = name
	return &named
}

// compiler makes the symbols of one structural tag.
type compiler struct {
	g     *cfg.Grammar
	h     Host
	count int
	// specials are the texts of the special tokens by first byte, the longest first.
	specials [256][]string
}

// format is any format: what its type does not have is empty.
type format struct {
	Type     string            `json:"type"`
	Value    *string           `json:"value"`
	Schema   json.RawMessage   `json:"json_schema"`
	Style    string            `json:"style"`
	Closed   bool              `json:"closed"`
	Source   string            `json:"source"` // of Schema, for errors
	Grammar  *string           `json:"grammar"`
	Pattern  *string           `json:"pattern"`
	Excludes []string          `json:"excludes"`
	Elements []json.RawMessage `json:"elements"`
	Content  json.RawMessage   `json:"content"`
	Min      *int              `json:"min"`
	Max      *int              `json:"max"`

	Begin json.RawMessage `json:"begin"`
	End   json.RawMessage `json:"end"`

	Triggers       []string          `json:"triggers"`
	Tags           []json.RawMessage `json:"tags"`
	Separator      string            `json:"separator"`
	AtLeastOne     bool              `json:"at_least_one"`
	StopAfterFirst bool              `json:"stop_after_first"`

	Token         json.RawMessage   `json:"token"`
	ExcludeTokens []json.RawMessage `json:"exclude_tokens"`
	TriggerTokens []json.RawMessage `json:"trigger_tokens"`
}

func (c *compiler) read(raw json.RawMessage, at string, depth int) (*format, error) {
	if c.count++; c.count > maxFormats || depth > maxDepth {
		return nil, &cfg.Error{Code: cfg.GrammarTooComplex, Pointer: at,
			Reason: fmt.Sprintf("more than %d formats, or %d within one another", maxFormats,
				maxDepth)}
	}
	f := new(format)
	if err := json.Unmarshal(raw, f); err != nil {
		return nil, invalid(at, "not a format: %v", err)
	}
	return f, nil
}

// compile is the symbol of a format and of what ends it; without an end, it is the end of the
// answer, or of a format that ends by itself.
func (c *compiler) compile(
	raw json.RawMessage, end *ending, at string, depth int,
) (cfg.Sym, error) {
	f, err := c.read(raw, at, depth)
	if err != nil {
		return cfg.None, err
	}
	depth++
	switch f.Type {
	case "any_text":
		return c.region(region{end: end, excludes: f.Excludes}), nil
	case "triggered_tags":
		return c.triggered(f, end, at, depth)
	case "any_tokens":
		ids, err := c.tokens(f.ExcludeTokens, at+"/exclude_tokens")
		if err != nil {
			return cfg.None, err
		}
		return c.region(region{end: end, withoutTokens: ids}), nil
	case "token_triggered_tags":
		return c.tokenTriggered(f, end, at, depth)
	case "sequence":
		return c.sequence(f, end, at, depth)
	case "or":
		return c.either(f, end, at, depth)
	case "optional":
		s, err := c.compile(f.Content, end, at+"/content", depth)
		return c.g.Alt(c.ended(end), s), err
	case "tag":
		return c.tag(f, end, at, depth)
	}
	s, err := c.limited(f, at, depth)
	if err != nil {
		return cfg.None, err
	}
	return c.g.Seq(s, c.ended(end)), nil
}

// limited is the symbol of a format that says by itself where it ends.
func (c *compiler) limited(f *format, at string, depth int) (cfg.Sym, error) {
	switch f.Type {
	case "const_string":
		if f.Value == nil {
			return cfg.None, invalid(at+"/value", "a const_string has a value")
		}
		return c.text(*f.Value), nil
	case "json_schema", "qwen_xml_parameter":
		return c.schema(f, at)
	case "regex":
		if f.Pattern == nil || c.h.Pattern == nil {
			return cfg.None, invalid(at+"/pattern", "a regex has a pattern")
		}
		s, err := c.h.Pattern(*f.Pattern)
		return s, within(at+"/pattern", err)
	case "grammar":
		if f.Grammar == nil {
			return cfg.None, invalid(at+"/grammar", "a grammar has a grammar")
		}
		if c.h.Grammar == nil {
			return cfg.None, invalid(at, "grammars are not supported in structural tags")
		}
		s, err := c.h.Grammar(*f.Grammar)
		return s, within(at+"/grammar", err)
	case "plus", "star", "repeat":
		return c.repeat(f, at, depth)
	case "tags_with_separator":
		return c.separated(f, at, depth)
	case "token":
		ids, err := c.tokens([]json.RawMessage{f.Token}, at+"/token")
		return c.g.Tokens(ids...), err
	case "exclude_token":
		ids, err := c.tokens(f.ExcludeTokens, at+"/exclude_tokens")
		return c.g.Alt(c.g.TokensExcept(ids...), c.g.Lexeme(c.g.B.AnyRune())), err
	case "":
		return cfg.None, invalid(at+"/type", "a format has a type")
	}
	return cfg.None, invalid(at+"/type", "formats of type %q are not supported", f.Type)
}

// unlimited says whether a format goes on until what follows it.
func (c *compiler) unlimited(raw json.RawMessage, depth int) bool {
	f, err := c.read(raw, "", depth)
	if err != nil {
		return false
	}
	switch f.Type {
	case "any_text", "any_tokens", "triggered_tags", "token_triggered_tags":
		return true
	case "sequence":
		return len(f.Elements) > 0 && c.unlimited(f.Elements[len(f.Elements)-1], depth+1)
	case "or":
		for _, e := range f.Elements {
			if c.unlimited(e, depth+1) {
				return true
			}
		}
	case "optional":
		return c.unlimited(f.Content, depth+1)
	case "tag":
		e, err := c.ending(f.End, "")
		return err == nil && e == nil && c.unlimited(f.Content, depth+1)
	}
	return false
}

// bounded is the symbol of a format that must end by itself.
func (c *compiler) bounded(raw json.RawMessage, at string, depth int) (cfg.Sym, error) {
	if c.unlimited(raw, depth) {
		return cfg.None, invalid(at,
			"what has no end of its own is the last of a sequence, or in a tag with an end")
	}
	return c.compile(raw, nil, at, depth)
}

func (c *compiler) sequence(f *format, end *ending, at string, depth int) (cfg.Sym, error) {
	if len(f.Elements) == 0 {
		return cfg.None, invalid(at+"/elements", "a sequence has elements")
	}
	syms := make([]cfg.Sym, len(f.Elements))
	for i, e := range f.Elements {
		here := fmt.Sprintf("%s/elements/%d", at, i)
		var err error
		if i == len(syms)-1 {
			syms[i], err = c.compile(e, end, here, depth)
		} else {
			syms[i], err = c.bounded(e, here, depth)
		}
		if err != nil {
			return cfg.None, err
		}
	}
	return c.g.Seq(syms...), nil
}

func (c *compiler) either(f *format, end *ending, at string, depth int) (cfg.Sym, error) {
	if len(f.Elements) == 0 {
		return cfg.None, invalid(at+"/elements", "an or has elements")
	}
	syms := make([]cfg.Sym, len(f.Elements))
	for i, e := range f.Elements {
		var err error
		here := fmt.Sprintf("%s/elements/%d", at, i)
		if syms[i], err = c.compile(e, end, here, depth); err != nil {
			return cfg.None, err
		}
	}
	return c.g.Alt(syms...), nil
}

func (c *compiler) repeat(f *format, at string, depth int) (cfg.Sym, error) {
	lo, hi := 0, cfg.Inf
	switch f.Type {
	case "plus":
		lo = 1
	case "repeat":
		if f.Min != nil {
			lo = *f.Min
		}
		if f.Max != nil {
			hi = *f.Max
		}
		if lo < 0 || hi != cfg.Inf && hi < lo {
			return cfg.None, invalid(at, "a repeat has a min, and a max of at least that, or of -1")
		}
	}
	s, err := c.bounded(f.Content, at+"/content", depth)
	return c.g.Rep(s, cfg.None, lo, hi), err
}

// tag is a text that begins and ends as it says.
func (c *compiler) tag(f *format, end *ending, at string, depth int) (cfg.Sym, error) {
	begin, err := c.begin(f.Begin, at+"/begin")
	if err != nil {
		return cfg.None, err
	}
	body, err := c.inside(f, end, at, depth)
	return c.g.Seq(begin, body), err
}

// inside is what follows the beginning of a tag, up to what ends the format that it is in.
func (c *compiler) inside(f *format, end *ending, at string, depth int) (cfg.Sym, error) {
	own, err := c.ending(f.End, at+"/end")
	if err != nil {
		return cfg.None, err
	}
	if f.Content == nil {
		return cfg.None, invalid(at+"/content", "a tag has content")
	}
	if own == nil { // an empty end
		return c.compile(f.Content, end, at+"/content", depth)
	}
	body, err := c.compile(f.Content, own, at+"/content", depth)
	return c.g.Seq(body, c.ended(end)), err
}

// begin is the beginning of a tag: a text, or a format of type token.
func (c *compiler) begin(raw json.RawMessage, at string) (cfg.Sym, error) {
	if text, ok := asText(raw); ok {
		return c.text(text), nil
	}
	ids, err := c.tokenFormat(raw, at)
	return c.g.Tokens(ids...), err
}

// asText is the text that a JSON value is, if it is one.
func asText(raw json.RawMessage) (s string, ok bool) {
	raw = bytes.TrimSpace(raw)
	ok = len(raw) > 0 && raw[0] == '"' && json.Unmarshal(raw, &s) == nil
	return s, ok
}

// separated is tags with a text between every two.
func (c *compiler) separated(f *format, at string, depth int) (cfg.Sym, error) {
	if len(f.Tags) == 0 {
		return cfg.None, invalid(at+"/tags", "there are no tags")
	}
	tags := make([]cfg.Sym, len(f.Tags))
	for i, raw := range f.Tags {
		here := fmt.Sprintf("%s/tags/%d", at, i)
		t, err := c.readTag(raw, here, depth)
		if err != nil {
			return cfg.None, err
		}
		if tags[i], err = c.tag(t, nil, here, depth+1); err != nil {
			return cfg.None, err
		}
	}
	lo, hi := 0, cfg.Inf
	if f.AtLeastOne {
		lo = 1
	}
	if f.StopAfterFirst {
		hi = 1
	}
	sep := cfg.None
	if f.Separator != "" {
		sep = c.text(f.Separator)
	}
	return c.g.Rep(c.g.Alt(tags...), sep, lo, hi), nil
}

// readTag reads a format that is a tag, with or without its type.
func (c *compiler) readTag(raw json.RawMessage, at string, depth int) (*format, error) {
	t, err := c.read(raw, at, depth)
	if err == nil && t.Type != "" && t.Type != "tag" {
		err = invalid(at+"/type", "a tag is of type tag, not %q", t.Type)
	}
	return t, err
}

// legacy is vLLM's older form: {begin, schema, end} and triggers.
func (c *compiler) legacy(structures, triggers json.RawMessage, at string) (cfg.Sym, error) {
	var list []struct {
		Begin  string          `json:"begin"`
		Schema json.RawMessage `json:"schema"`
		End    string          `json:"end"`
	}
	f := &format{}
	if err := json.Unmarshal(structures, &list); err != nil {
		return cfg.None, invalid(at, "not a list of {begin, schema, end}: %v", err)
	}
	if err := json.Unmarshal(triggers, &f.Triggers); err != nil {
		return cfg.None, invalid("/triggers", "not a list of texts: %v", err)
	}
	for _, s := range list {
		schema := s.Schema
		if schema == nil {
			schema = json.RawMessage("{}")
		}
		content := map[string]any{"type": "json_schema", "json_schema": schema}
		raw, err := json.Marshal(map[string]any{"type": "tag", "begin": s.Begin, "content": content,
			"end": s.End})
		if err != nil {
			return cfg.None, invalid(at, "%v", err)
		}
		f.Tags = append(f.Tags, raw)
	}
	return c.triggered(f, nil, strings.TrimSuffix(at, "/tags"), 1)
}
