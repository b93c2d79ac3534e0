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
		s, err := c.h.Schema(text, f.Closed)
		return s, ofSource(f.Source, here, err)
	}
	if s := typed.StyleNamed(style); s != nil {
		sym, err := c.styled(s, text)
		return sym, ofSource(f.Source, here, err)
	}
	return cfg.None, invalid(at+"/style", "the style %q is not supported", style)
}

// styled is the symbol of the objects of a schema in a style: the members in the schema's order,
// and no others.
func (c *compiler) styled(s *typed.Style, text string) (cfg.Sym, error) {
	o, err := c.h.Members(text)
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
		syms = append(syms, c.g.Seq(begin(s.Text), c.terminated(x, s), c.text(s.Tail)))
	}
	if others {
		end := s.End + s.Tail
		if s.Bare {
			end = s.Tail
		}
		syms = append(syms, c.g.Seq(begin(s.Other), m.Other, c.text(end)))
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

// terminated is the symbol of a text with the end of the style. Both are one lexeme, since the text
// would take the end for its own, but where the end begins with a special token.
func (c *compiler) terminated(x regex.Ex, s *typed.Style) cfg.Sym {
	b := c.g.B
	var marks []regex.Ex
	for _, m := range s.Marks {
		marks = append(marks, b.Lit(m))
	}
	early := b.Cat(b.AnyText(), b.Or(marks...), b.Plus(b.AnyRune()))
	whole := c.g.Lexeme(b.Minus(b.Cat(x, b.Lit(s.End)), early))
	pieces := c.pieces(s.End)
	if !pieces[0].special {
		return whole
	}
	inside := b.Minus(x, b.Cat(b.AnyText(), b.Or(marks...), b.AnyText()))
	return c.g.Alt(whole, c.g.Seq(c.g.Lexeme(inside), c.g.Tokens(pieces[0].id),
		c.join(pieces[1:])))
}
