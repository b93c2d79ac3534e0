// Package ebnf is the front end of grammars in GBNF, the notation of llama.cpp, and of the EBNF
// that xgrammar has: name ::= alternatives. The texts are those that the rule root derives, over
// characters, with no lexer between.
package ebnf

import (
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/eagleray/eagleray/internal/text/constrain/cfg"
	"github.com/eagleray/eagleray/internal/text/constrain/regex"
	"github.com/eagleray/eagleray/internal/text/constrain/rules"
)

// Compile adds the symbols of a grammar to g, which becomes Scannerless, and returns that of its
// root with the place of the root as "line:column". special is the id of the special token with a
// text. An error is a *cfg.Error.
//
// A rule goes on to the next name before ::=, over any number of lines. There are "…" and '…' with
// the escapes \n \r \t \\ \" \' \[ \] \xHH \uHHHH \UHHHHHHHH; […] and [^…]; . for any character;
// groups; * + ? {m} {m,} {m,n} {,n}; # for comments; <text> and <[id]> for a special token, and
// !<text>, !<[id]> for any other one or any character.
func Compile(
	text string, g *cfg.Grammar, special func(string) (int32, bool),
) (cfg.Sym, string, error) {
	g.Mode = cfg.Scannerless
	p := parser{Cursor: rules.Cursor{Src: text}, g: g, special: special}
	var list []rules.Rule
	root := 0
	for p.blank(); p.At < len(p.Src) && p.Err == nil; {
		r := rules.Rule{At: p.At}
		r.Name = p.name()
		if p.blank(); r.Name == "" || !p.Take("::=") {
			p.Fail("a rule, name ::= …, is expected")
			break
		}
		if r.Body = p.alternatives(); r.Name == "root" {
			root = r.At
		}
		list = append(list, r)
	}
	src := rules.Source(text)
	if p.Err != nil {
		return cfg.None, "", p.Err
	}
	s, err := rules.Emit(g, src, list, "root", regex.Empty)
	return s, src.Place(root), err
}

type parser struct {
	rules.Cursor
	g       *cfg.Grammar
	special func(string) (int32, bool)
}

// blank goes over white space and comments.
func (p *parser) blank() {
	for p.At < len(p.Src) {
		switch c := p.Src[p.At]; {
		case c == ' ' || c == '\t' || c == '\n' || c == '\r':
			p.At++
		case c == '#':
			p.Line()
		default:
			return
		}
	}
}

func isName(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' ||
		c == '_' || c == '.'
}

// name reads a name; one that begins like a number or with a dot is none.
func (p *parser) name() string {
	from := p.At
	if p.At < len(p.Src) && p.Src[p.At] == '.' {
		return ""
	}
	for p.At < len(p.Src) && isName(p.Src[p.At]) {
		p.At++
	}
	return p.Src[from:p.At]
}

// starts says whether a rule starts here.
func (p *parser) starts() bool {
	from := p.At
	defer func() { p.At = from }()
	if p.name() == "" {
		return false
	}
	p.blank()
	return strings.HasPrefix(p.Src[p.At:], "::=")
}

func (p *parser) alternatives() *rules.Expr {
	at, subs := p.At, []*rules.Expr(nil)
	p.Nest("groups")
	for {
		subs = append(subs, p.sequence())
		if p.blank(); !p.Take("|") {
			break
		}
	}
	p.Depth--
	return rules.Of(rules.Alt, at, subs)
}

func (p *parser) sequence() *rules.Expr {
	x := &rules.Expr{Kind: rules.Seq, At: p.At}
	for p.Err == nil {
		if p.blank(); p.At >= len(p.Src) || strings.IndexByte("|)", p.Src[p.At]) >= 0 ||
			p.starts() {
			break
		}
		item := p.item()
		if p.Err != nil {
			break
		}
		x.Subs = append(x.Subs, p.repeated(item))
	}
	return x
}

func (p *parser) item() *rules.Expr {
	at := p.At
	pattern := func(ex regex.Ex, size int) *rules.Expr {
		return &rules.Expr{Kind: rules.Pattern, At: at, Ex: ex, Size: size}
	}
	b := p.g.B
	switch c := p.Src[p.At]; {
	case c == '"' || c == '\'':
		s := p.quoted(c)
		return pattern(b.Lit(s), len(s))
	case c == '[':
		return pattern(p.class(), 1)
	case c == '.':
		p.At++
		return pattern(b.AnyRune(), 1)
	case c == '(':
		p.At++
		if p.Take("=") {
			p.At = at
			p.Refuse("look-ahead")
			return nil
		}
		x := p.alternatives()
		if p.blank(); p.Err == nil && !p.Take(")") {
			p.Fail("missing )")
		}
		return &rules.Expr{Kind: rules.Seq, At: at, Subs: []*rules.Expr{x}}
	case c == '<' || c == '!':
		return p.token()
	case isName(c):
		return &rules.Expr{Kind: rules.Ref, At: at, Name: p.name()}
	}
	r, _ := utf8.DecodeRuneInString(p.Src[p.At:])
	p.Fail("%q is not expected", r)
	return nil
}

// repeated reads the counts after an item.
func (p *parser) repeated(x *rules.Expr) *rules.Expr {
	depth := p.Depth
	for p.Err == nil {
		p.blank()
		lo, hi := 0, regex.Inf
		switch {
		case p.Take("*"):
		case p.Take("+"):
			lo = 1
		case p.Take("?"):
			hi = 1
		case p.Take("{"):
			lo, hi = p.Count(p.blank)
		default:
			p.Depth = depth
			return x
		}
		x = p.Repeat(x, lo, hi)
	}
	return x
}

func (p *parser) quoted(quote byte) string {
	var s strings.Builder
	for p.At++; p.At < len(p.Src) && p.Src[p.At] != quote; {
		if p.Src[p.At] == '\n' {
			break
		}
		s.WriteRune(p.char())
	}
	if p.At >= len(p.Src) || p.Src[p.At] != quote {
		p.Fail("missing %c", quote)
		return ""
	}
	p.At++
	return s.String()
}

// char reads a character of a literal or a class.
func (p *parser) char() rune {
	r, n := utf8.DecodeRuneInString(p.Src[p.At:])
	p.At += n
	if r != '\\' || p.At >= len(p.Src) {
		return r
	}
	c := p.Src[p.At]
	p.At++
	digits := 0
	switch c {
	case 'n':
		return '\n'
	case 'r':
		return '\r'
	case 't':
		return '\t'
	case 'x':
		digits = 2
	case 'u':
		digits = 4
	case 'U':
		digits = 8
	default:
		if c >= 0x80 || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' {
			p.At--
			p.Fail(`unknown escape \%c`, c)
		}
		return rune(c)
	}
	if p.At+digits <= len(p.Src) {
		v, err := strconv.ParseUint(p.Src[p.At:p.At+digits], 16, 32)
		if r := rune(v); err == nil && v <= utf8.MaxRune && utf8.ValidRune(r) {
			p.At += digits
			return r
		}
	}
	p.Fail(`\%c without %d digits of a character`, c, digits)
	return 0
}

func (p *parser) class() regex.Ex {
	p.At++
	negated := p.Take("^")
	var set []rune
	for {
		if p.At >= len(p.Src) || p.Src[p.At] == '\n' {
			p.Fail("missing ]")
			return regex.Empty
		}
		if p.Take("]") {
			break
		}
		lo := p.char()
		hi := lo
		if p.At+1 < len(p.Src) && p.Src[p.At] == '-' && p.Src[p.At+1] != ']' {
			p.At++
			if hi = p.char(); hi < lo && p.Err == nil {
				p.Fail("a range from %q to %q", lo, hi)
			}
		}
		set = append(set, lo, hi)
	}
	if negated {
		set = regex.Negate(set)
	}
	return p.g.B.Runes(set...)
}

// token reads <text>, <[id]>, and either after an exclamation mark.
func (p *parser) token() *rules.Expr {
	at := p.At
	not := p.Take("!")
	if !p.Take("<") {
		p.Fail("%q is not expected", p.Src[at])
		return nil
	}
	end := strings.IndexByte(p.Src[p.At:], '>')
	if end < 0 {
		p.Fail("missing >")
		return nil
	}
	inner := p.Src[p.At : p.At+end]
	p.At += end + 1
	var id int32
	if number, ok := strings.CutPrefix(inner, "["); ok {
		v, err := strconv.ParseInt(strings.TrimSuffix(number, "]"), 10, 32)
		if err != nil || v < 0 {
			p.At = at
			p.Fail("<[…]> without the id of a token")
			return nil
		}
		id = int32(v)
	} else if id, ok = p.special("<" + inner + ">"); !ok {
		p.At = at
		p.Fail("there is no token <%s>", inner)
		return nil
	}
	if !not {
		return &rules.Expr{Kind: rules.Symbol, At: at, Sym: p.g.Tokens(id)}
	}
	return &rules.Expr{Kind: rules.Symbol, At: at,
		Sym: p.g.Alt(p.g.TokensExcept(id), p.g.Lexeme(p.g.B.AnyRune()))}
}
