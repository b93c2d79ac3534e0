package tag

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/eagleray/eagleray/internal/text/constrain/cfg"
	"github.com/eagleray/eagleray/internal/text/constrain/regex"
)

// style is a way of writing an object with its texts as they are, without quotes: each member
// between tags.
type style struct {
	// text and other surround the value of a member that is a text, or not; they have KEY for the
	// key. tail follows both.
	text, other string
	end, tail   string
	// marks are what no text may have in it: it would end there.
	marks []string
}

// styles are xgrammar's names for them.
var styles = map[string]*style{
	"qwen_xml": {text: "<parameter=KEY>\n", other: "<parameter=KEY>\n", end: "\n</parameter>",
		tail:  "\n",
		marks: []string{"</parameter>", "\n<parameter=", "\n</function>"}},
	"glm_xml": {text: "<arg_key>KEY</arg_key>\n<arg_value>",
		other: "<arg_key>KEY</arg_key>\n<arg_value>",
		end:   "</arg_value>", tail: "\n", marks: []string{"</arg_value>", "</tool_call>"}},
	"deepseek_xml": {text: "<｜DSML｜parameter name=\"KEY\" string=\"true\">",
		other: "<｜DSML｜parameter name=\"KEY\" string=\"false\">", end: "</｜DSML｜parameter>",
		tail:  "\n",
		marks: []string{"</｜DSML｜parameter>"}},
	"minimax_xml": {text: `<parameter name="KEY">`, other: `<parameter name="KEY">`,
		end: "</parameter>", tail: "\n", marks: []string{"</parameter>"}},
}

// object is a schema of an object, as far as styles can say it.
type object struct {
	Type       string          `json:"type"`
	Properties json.RawMessage `json:"properties"`
	Required   []string        `json:"required"`
	Defs       json.RawMessage `json:"$defs"`
	Old        json.RawMessage `json:"definitions"`

	defs map[string]json.RawMessage // by reference, once one is asked for
}

// definition is the schema that a reference names, nil for none.
func (o *object) definition(ref string) json.RawMessage {
	if o.defs == nil {
		o.defs = map[string]json.RawMessage{}
		for prefix, defs := range map[string]json.RawMessage{"#/$defs/": o.Defs,
			"#/definitions/": o.Old} {
			_ = eachMember(defs, func(key string, to json.RawMessage) error {
				o.defs[prefix+key] = to
				return nil
			})
		}
	}
	return o.defs[ref]
}

// value is a schema of a member.
type value struct {
	Ref       string            `json:"$ref"`
	Type      json.RawMessage   `json:"type"`
	Enum      []json.RawMessage `json:"enum"`
	Const     json.RawMessage   `json:"const"`
	AnyOf     []json.RawMessage `json:"anyOf"`
	OneOf     []json.RawMessage `json:"oneOf"`
	MinLength *int              `json:"minLength"`
	MaxLength *int              `json:"maxLength"`
	Pattern   *string           `json:"pattern"`
}

// kinds are the values that a schema of a member admits: texts, which a style writes as they are,
// and others, which it writes as JSON.
type kinds struct {
	texts  []*value
	others []json.RawMessage
	// types are those of others.
	types map[string]bool
}

// annotations are keywords that say nothing of what is valid.
var annotations = []string{"title", "description", "default", "examples", "$comment", "deprecated",
	"$schema", "$defs", "definitions", "strict"}

// styled is the symbol of the objects of a schema in a style: the members in the schema's order,
// and no others.
func (c *compiler) styled(s *style, schema json.RawMessage, at string) (cfg.Sym, error) {
	var o object
	if err := json.Unmarshal(schema, &o); err != nil {
		return cfg.None, invalid(at, "not the schema of an object: %v", err)
	}
	if err := onlyKeys(schema, at, "type", "properties", "required",
		"additionalProperties"); err != nil {
		return cfg.None, err
	}
	if o.Type != "object" && o.Type != "" {
		return cfg.None, invalid(at+"/type", "a %s has no members", o.Type)
	}
	var elems []cfg.Elem
	missing := slices.Clone(o.Required)
	err := eachMember(o.Properties, func(key string, raw json.RawMessage) error {
		here := at + "/properties/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(key)
		sym, err := c.styledMember(s, &o, key, raw, here)
		if err != nil {
			return err
		}
		e := cfg.Elem{Sym: sym, Max: 1}
		if i := slices.Index(missing, key); i >= 0 {
			e.Min = 1
			missing = slices.Delete(missing, i, i+1)
		}
		elems = append(elems, e)
		return nil
	})
	if err != nil {
		return cfg.None, err
	}
	if len(missing) > 0 {
		return cfg.None, unsupported(at+"/required", "%q is required and no property", missing[0])
	}
	return c.g.List(cfg.List{Elems: elems, Max: cfg.Inf}), nil
}

func unsupported(at, format string, args ...any) error {
	return &cfg.Error{Code: cfg.GrammarUnsupported, Pointer: at,
		Reason: fmt.Sprintf(format, args...)}
}

// onlyKeys refuses a schema with other keywords than these and annotations.
func onlyKeys(schema json.RawMessage, at string, keys ...string) error {
	return eachMember(schema, func(key string, _ json.RawMessage) error {
		if slices.Contains(keys, key) || slices.Contains(annotations, key) {
			return nil
		}
		return unsupported(at+"/"+key, "%s is not supported in this style", key)
	})
}

// eachMember calls f with the members of an object in their order.
func eachMember(raw json.RawMessage, f func(key string, value json.RawMessage) error) error {
	d := json.NewDecoder(bytes.NewReader(raw))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil // there is none
	}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return err
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return err
		}
		if err := f(key.(string), value); err != nil {
			return err
		}
	}
	return nil
}

// styledMember is one member.
func (c *compiler) styledMember(s *style, o *object, key string, raw json.RawMessage,
	at string) (cfg.Sym, error) {
	if strings.ContainsAny(key, "<>\"\n") {
		return cfg.None, unsupported(at, "the key %q cannot be written in this style", key)
	}
	k := &kinds{types: map[string]bool{}}
	if err := o.divide(k, raw, at, 0); err != nil {
		return cfg.None, err
	}
	name := func(begin string) cfg.Sym { return c.text(strings.Replace(begin, "KEY", key, 1)) }
	var syms []cfg.Sym
	mixed := s.text == s.other && len(k.texts) > 0 && len(k.others) > 0
	if len(k.texts) > 0 {
		x, err := c.styledTexts(k, at)
		if err == nil && mixed {
			x, err = c.withScalars(x, k, at)
		}
		if err != nil {
			return cfg.None, err
		}
		syms = append(syms, c.g.Seq(name(s.text), c.terminated(x, s), c.text(s.tail)))
	}
	if len(k.others) > 0 && !mixed {
		whole := raw
		if len(k.texts) > 0 {
			var err error
			if whole, err = json.Marshal(map[string]any{"anyOf": k.others}); err != nil {
				return cfg.None, invalid(at, "%v", err)
			}
		}
		sym, err := c.h.Schema(o.document(whole), true)
		if err != nil {
			return cfg.None, within(at, err)
		}
		syms = append(syms, c.g.Seq(name(s.other), sym, c.text(s.end+s.tail)))
	}
	return c.g.Alt(syms...), nil
}

// divide adds what a schema admits to k.
func (o *object) divide(k *kinds, raw json.RawMessage, at string, depth int) error {
	v := new(value)
	if depth > 16 || json.Unmarshal(raw, v) != nil {
		return unsupported(at, "the schema is not supported in this style")
	}
	if strings.HasPrefix(v.Ref, "#/$defs/") || strings.HasPrefix(v.Ref, "#/definitions/") {
		to := o.definition(v.Ref)
		if to == nil {
			return unsupported(at+"/$ref", "there is no %s", v.Ref)
		}
		return o.divide(k, to, at, depth+1)
	}
	if list := slices.Concat(v.AnyOf, v.OneOf); len(list) > 0 {
		if err := onlyKeys(raw, at, "anyOf", "oneOf"); err != nil {
			return err
		}
		for _, alternative := range list {
			if err := o.divide(k, alternative, at, depth+1); err != nil {
				return err
			}
		}
		if len(v.OneOf) > 0 && len(k.texts) > 1 {
			return unsupported(at+"/oneOf", "several of oneOf are texts")
		}
		return nil
	}
	return k.add(v, raw, at)
}

// add is divide for a schema without alternatives.
func (k *kinds) add(v *value, raw json.RawMessage, at string) error {
	values := v.Enum
	if v.Const != nil {
		values = []json.RawMessage{v.Const}
	}
	var types, others []string
	if t, ok := asText(v.Type); ok {
		types = []string{t}
	} else if v.Type != nil && json.Unmarshal(v.Type, &types) != nil {
		return invalid(at+"/type", "not a type")
	}
	if v.Type == nil && values == nil {
		types = []string{"string", "number", "boolean", "null", "array", "object"}
	}
	texts := len(texts(values)) > 0 || values == nil && slices.Contains(types, "string")
	var rest []json.RawMessage
	for _, e := range values {
		if _, isText := asText(e); !isText {
			rest = append(rest, e)
			others = append(others, typeOf(e))
		}
	}
	if values == nil {
		others = slices.DeleteFunc(slices.Clone(types),
			func(t string) bool { return t == "string" })
	}
	for _, t := range others {
		k.types[t] = true
	}
	if !texts {
		k.others = append(k.others, raw)
		return nil
	}
	if err := onlyKeys(raw, at, "type", "enum", "const", "minLength", "maxLength",
		"pattern"); err != nil {
		return err
	}
	k.texts = append(k.texts, v)
	if len(others) > 0 {
		admitted := map[string]any{"type": others}
		if rest != nil {
			admitted = map[string]any{"enum": rest}
		}
		b, err := json.Marshal(admitted)
		k.others = append(k.others, b)
		return err
	}
	return nil
}

// typeOf is the type of a JSON value.
func typeOf(raw json.RawMessage) string {
	switch raw[0] {
	case '{':
		return "object"
	case '[':
		return "array"
	case 't', 'f':
		return "boolean"
	case 'n':
		return "null"
	}
	return "number"
}

// document is the schema of a member as one of its own, with the definitions it may refer to.
func (o *object) document(member json.RawMessage) string {
	if o.Defs == nil && o.Old == nil {
		return string(member)
	}
	var b strings.Builder
	b.WriteString(`{"allOf":[`)
	b.Write(member)
	b.WriteString(`]`)
	if o.Defs != nil {
		fmt.Fprintf(&b, `,"$defs":%s`, o.Defs)
	}
	if o.Old != nil {
		fmt.Fprintf(&b, `,"definitions":%s`, o.Old)
	}
	b.WriteString("}")
	return b.String()
}

// styledTexts is the expression of the texts of a member, but for those that a reader takes for
// one of the other values.
func (c *compiler) styledTexts(k *kinds, at string) (regex.Ex, error) {
	b := c.g.B
	any1 := regex.Empty
	for _, v := range k.texts {
		x, err := c.styledText(v, at)
		if err != nil {
			return x, err
		}
		any1 = b.Or(any1, x)
	}
	space := b.Star(b.Or(b.Lit(" "), b.Lit("\t"), b.Lit("\r"), b.Lit("\n")))
	looks := func(x regex.Ex) { any1 = b.Minus(any1, b.Cat(space, x, space)) }
	if k.types["null"] {
		looks(b.Lits([]string{"null", "None"}))
	}
	if k.types["boolean"] {
		looks(b.Lits([]string{"true", "false", "True", "False"}))
	}
	if k.types["number"] || k.types["integer"] {
		looks(b.Cat(b.Opt(b.Lit("-")), b.Bytes('0', '9'), b.AnyText()))
	}
	if k.types["object"] {
		looks(b.Cat(b.Lit("{"), b.AnyText()))
	}
	if k.types["array"] {
		looks(b.Cat(b.Lit("["), b.AnyText()))
	}
	return any1, nil
}

// withScalars adds the values that are no texts. They are one lexeme with the texts, which begin
// alike.
func (c *compiler) withScalars(x regex.Ex, k *kinds, at string) (regex.Ex, error) {
	b := c.g.B
	digits := b.Rep(b.Bytes('0', '9'), 1, 64)
	integer := b.Cat(b.Opt(b.Lit("-")), b.Or(b.Lit("0"),
		b.Cat(b.Bytes('1', '9'), b.Rep(b.Bytes('0', '9'), 0, 63))))
	scalars := map[string]regex.Ex{
		"null": b.Lit("null"), "boolean": b.Lits([]string{"true", "false"}), "integer": integer,
		"number": b.Cat(integer, b.Opt(b.Cat(b.Lit("."), digits))),
	}
	for _, raw := range k.others {
		var v value
		var types []string
		if err := json.Unmarshal(raw, &v); err != nil {
			return x, invalid(at, "not a schema: %v", err)
		}
		if err := onlyKeys(raw, at, "type", "enum", "const"); err != nil {
			return x, err
		}
		values := v.Enum
		if v.Const != nil {
			values = []json.RawMessage{v.Const}
		}
		if t, ok := asText(v.Type); ok {
			types = []string{t}
		} else if v.Type != nil && json.Unmarshal(v.Type, &types) != nil {
			return x, invalid(at+"/type", "not a type")
		}
		if values != nil {
			types = nil
		}
		for _, e := range values {
			x = b.Or(x, b.Lit(string(e)))
		}
		for _, t := range types {
			s, ok := scalars[t]
			if !ok {
				return x, unsupported(at, "in this style a value is not a text or an %s", t)
			}
			x = b.Or(x, s)
		}
	}
	return x, nil
}

// styledText is the expression of the texts of a schema.
func (c *compiler) styledText(v *value, at string) (regex.Ex, error) {
	b := c.g.B
	x := b.AnyText()
	if v.Enum != nil {
		x = b.And(x, b.Lits(texts(v.Enum)))
	}
	if v.Const != nil {
		x = b.And(x, b.Lits(texts([]json.RawMessage{v.Const})))
	}
	lo, hi := 0, regex.Inf
	if v.MinLength != nil {
		lo = *v.MinLength
	}
	if v.MaxLength != nil {
		hi = *v.MaxLength
	}
	if lo < 0 || hi != regex.Inf && hi < lo {
		return x, &cfg.Error{Code: cfg.SchemaUnsatisfiable, Pointer: at,
			Reason: "no text is so long"}
	}
	if lo > 0 || hi != regex.Inf {
		x = b.And(x, b.Rep(b.AnyRune(), lo, hi))
	}
	if v.Pattern != nil {
		p, err := b.Pattern(*v.Pattern, regex.Syntax{Search: true})
		if err != nil {
			return x, &cfg.Error{Code: cfg.RegexInvalid, Pointer: at + "/pattern",
				Reason: err.Error()}
		}
		x = b.And(x, p)
	}
	return x, nil
}

func texts(list []json.RawMessage) []string {
	var out []string
	for _, raw := range list {
		if s, ok := asText(raw); ok {
			out = append(out, s)
		}
	}
	return out
}

// terminated is the symbol of a text with the end of the style. Both are one lexeme, since the text
// would take the end for its own, but where the end begins with a special token.
func (c *compiler) terminated(x regex.Ex, s *style) cfg.Sym {
	b := c.g.B
	var marks []regex.Ex
	for _, m := range s.marks {
		marks = append(marks, b.Lit(m))
	}
	early := b.Cat(b.AnyText(), b.Or(marks...), b.Plus(b.AnyRune()))
	whole := c.g.Lexeme(b.Minus(b.Cat(x, b.Lit(s.end)), early))
	pieces := c.pieces(s.end)
	if !pieces[0].special {
		return whole
	}
	inside := b.Minus(x, b.Cat(b.AnyText(), b.Or(marks...), b.AnyText()))
	return c.g.Alt(whole, c.g.Seq(c.g.Lexeme(inside), c.g.Tokens(pieces[0].id),
		c.join(pieces[1:])))
}
