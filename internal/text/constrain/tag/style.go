package tag

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/eagleray/eagleray/internal/text/constrain/cfg"
	"github.com/eagleray/eagleray/internal/text/constrain/regex"
	"github.com/eagleray/eagleray/internal/text/constrain/schema"
	"github.com/eagleray/eagleray/internal/text/typed"
)

// schema is the symbol of the valid texts of a schema, in one of the styles of writing them.
func (c *compiler) schema(f *format, at string) (cfg.Sym, error) {
	text, style := string(f.Schema), f.Style
	here := at + "/json_schema"
	switch {
	case f.Schema == nil:
		return cfg.None, invalid(here, "there is no json_schema")
	case f.Type == "qwen_xml_parameter":
		style = typed.QwenXML.Name
	case style == "" || style == "json":
		if quoted, ok := asText(f.Schema); ok && json.Valid([]byte(quoted)) {
			text = quoted
		}
		s, err := c.h.Schema(text, schema.Options{Closed: f.Closed})
		return s, ofSource(f.Source, here, err)
	}
	if n := typed.NotationNamed(style); n != nil {
		s, err := c.h.Schema(text, c.noted(n, f.Closed))
		return s, ofSource(f.Source, here, err)
	}
	if s := typed.StyleNamed(style); s != nil {
		sym, err := c.styled(s, text)
		return sym, ofSource(f.Source, here, err)
	}
	return cfg.None, invalid(at+"/style", "the style %q is not supported", style)
}

// noted are the options of values in a notation, nil for JSON.
func (c *compiler) noted(n *typed.Notation, closed bool) schema.Options {
	o := schema.Options{Closed: closed, Notation: n}
	if n != nil && n.Quote != "" {
		o.Quoted = func(x regex.Ex) cfg.Sym {
			return c.g.Seq(c.text(n.Quote), c.terminated(x, n.Quote, n.Quote))
		}
	}
	return o
}

// styled is the symbol of the objects of a schema in a style: the members in the schema's order,
// and no others.
func (c *compiler) styled(s *typed.Style, text string) (cfg.Sym, error) {
	o, err := c.h.Members(text, c.noted(s.Values, true))
	if err != nil {
		return cfg.None, err
	}
	elems := make([]cfg.Elem, len(o.Members))
	for i := range o.Members {
		m := &o.Members[i]
		sym, err := c.styledMember(s, m)
		if err != nil {
			return cfg.None, err
		}
		elems[i] = cfg.Elem{Sym: sym, Max: 1}
		if m.Required {
			elems[i].Min = 1
		}
	}
	l := cfg.List{Elems: elems, Min: o.Min, Max: o.Max}
	if s.Sep != "" {
		l.Sep = c.text(s.Sep)
	}
	return c.g.List(l), nil
}

// unsupported is the error for a member that a style cannot write.
func unsupported(m *schema.Member, format string, args ...any) error {
	return &cfg.Error{Code: cfg.GrammarUnsupported,
		Pointer: "/properties/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(m.Name),
		Reason:  fmt.Sprintf(format, args...)}
}

// styledMember is one member.
func (c *compiler) styledMember(s *typed.Style, m *schema.Member) (cfg.Sym, error) {
	if !s.CanHave(m.Name) {
		return cfg.None, unsupported(m, "the key %q cannot be written in this style", m.Name)
	}
	begin := func(then string) cfg.Sym { return c.text(s.Begin + m.Name + then) }
	if s.Values != nil {
		return c.g.Seq(begin(s.Other), m.Other), nil
	}
	texts, others := m.Types&typed.String != 0, m.Types&^typed.String != 0
	var syms []cfg.Sym
	if texts {
		x := c.apart(m)
		if others && !s.Tells() {
			// Both are one lexeme, since they begin alike.
			if m.Types&(typed.Array|typed.Object) != 0 {
				return cfg.None, unsupported(m,
					"in this style a value is not a text or an array or object")
			}
			x, others = c.g.B.Or(x, m.Scalars), false
		}
		syms = append(syms, c.g.Seq(begin(s.Text), c.terminated(x, s.End, s.Marks...),
			c.text(s.Tail)))
	}
	if others {
		syms = append(syms, c.g.Seq(begin(s.Other), m.Other, c.text(s.End+s.Tail)))
	}
	return c.g.Alt(syms...), nil
}

// apart is the expression of the texts of a member, but for those that a reader takes for one of
// the other values.
func (c *compiler) apart(m *schema.Member) regex.Ex {
	b := c.g.B
	x := m.Texts
	space := b.Star(b.Or(b.Lit(" "), b.Lit("\t"), b.Lit("\r"), b.Lit("\n")))
	for _, looks := range []struct {
		like typed.Types
		as   regex.Ex
	}{
		{typed.Null, b.Lits([]string{"null", "None"})},
		{typed.Bool, b.Lits([]string{"true", "false", "True", "False"})},
		{typed.Number, b.Cat(b.Opt(b.Lit("-")), b.Bytes('0', '9'), b.AnyText())},
		{typed.Object, b.Cat(b.Lit("{"), b.AnyText())},
		{typed.Array, b.Cat(b.Lit("["), b.AnyText())},
	} {
		if m.Types&looks.like != 0 {
			x = b.Minus(x, b.Cat(space, looks.as, space))
		}
	}
	return x
}

// terminated is the symbol of a text without some marks, and of its end. Both are one lexeme, since
// the text would take the end for its own, but where the end begins with a special token.
func (c *compiler) terminated(x regex.Ex, end string, without ...string) cfg.Sym {
	b := c.g.B
	var marks []regex.Ex
	for _, m := range without {
		marks = append(marks, b.Lit(m))
	}
	early := b.Cat(b.AnyText(), b.Or(marks...), b.Plus(b.AnyRune()))
	whole := c.g.Lexeme(b.Minus(b.Cat(x, b.Lit(end)), early))
	pieces := c.pieces(end)
	if !pieces[0].special {
		return whole
	}
	inside := b.Minus(x, b.Cat(b.AnyText(), b.Or(marks...), b.AnyText()))
	return c.g.Alt(whole, c.g.Seq(c.g.Lexeme(inside), c.g.Tokens(pieces[0].id),
		c.join(pieces[1:])))
}
