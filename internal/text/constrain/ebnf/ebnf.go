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

// maxDepth bounds the nesting of groups, and so the recursion.
const maxDepth = 1000

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
	p := parser{src: text, g: g, special: special}
	var list []rules.Rule
	root := 0
	for p.blank(); p.at < len(p.src) && p.err == nil; {
		r := rules.Rule{At: p.at}
		r.Name = p.name()
		if p.blank(); r.Name == "" || !p.take("::=") {
			p.fail("a rule, name ::= …, is expected")
			break
		}
		if r.Body = p.alternatives(); r.Name == "root" {
			root = r.At
		}
		list = append(list, r)
	}
	src := rules.Source(text)
	if p.err != nil {
		return cfg.None, "", p.err
	}
	s, err := rules.Emit(g, src, list, "root", regex.Empty)
	return s, src.Place(root), err
}

type parser struct {
	src     string
	at      int
	depth   int
	g       *cfg.Grammar
	special func(string) (int32, bool)
	err     error
}

func (p *parser) fail(format string, args ...any) {
	if p.err == nil {
		p.err = rules.Source(p.src).Fail(cfg.GrammarSyntax, p.at, format, args...)
	}
	p.at = len(p.src)
}

// blank goes over white space and comments.
func (p *parser) blank() {
	for p.at < len(p.src) {
		switch c := p.src[p.at]; {
		case c == ' ' || c == '\t' || c == '\n' || c == '\r':
			p.at++
		case c == '#':
			if i := strings.IndexByte(p.src[p.at:], '\n'); i >= 0 {
				p.at += i
			} else {
				p.at = len(p.src)
			}
		default:
			return
		}
	}
}

func (p *parser) take(s string) bool {
	if strings.HasPrefix(p.src[p.at:], s) {
		p.at += len(s)
		return true
	}
	return false
}

func isName(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' ||
		c == '_' || c == '.'
}

// name reads a name; one that begins like a number or with a dot is none.
func (p *parser) name() string {
	from := p.at
	if p.at < len(p.src) && p.src[p.at] == '.' {
		return ""
	}
	for p.at < len(p.src) && isName(p.src[p.at]) {
		p.at++
	}
	return p.src[from:p.at]
}

// starts says whether a rule starts here.
func (p *parser) starts() bool {
	from := p.at
	defer func() { p.at = from }()
	if p.name() == "" {
		return false
	}
	p.blank()
	return strings.HasPrefix(p.src[p.at:], "::=")
}

func (p *parser) alternatives() *rules.Expr {
	x := &rules.Expr{Kind: rules.Alt, At: p.at}
	if p.depth++; p.depth > maxDepth {
		p.fail("more than %d nested groups", maxDepth)
	}
	for {
		x.Subs = append(x.Subs, p.sequence())
		if p.blank(); !p.take("|") {
			break
		}
	}
	p.depth--
	if len(x.Subs) == 1 {
		return x.Subs[0]
	}
	return x
}

func (p *parser) sequence() *rules.Expr {
	x := &rules.Expr{Kind: rules.Seq, At: p.at}
	for p.err == nil {
		if p.blank(); p.at >= len(p.src) || strings.IndexByte("|)", p.src[p.at]) >= 0 ||
			p.starts() {
			break
		}
		item := p.item()
		if p.err != nil {
			break
		}
		x.Subs = append(x.Subs, p.repeated(item))
	}
	return x
}

func (p *parser) item() *rules.Expr {
	at := p.at
	pattern := func(ex regex.Ex, size int) *rules.Expr {
		return &rules.Expr{Kind: rules.Pattern, At: at, Ex: ex, Size: size}
	}
	b := p.g.B
	switch c := p.src[p.at]; {
	case c == '"' || c == '\'':
		s := p.quoted(c)
		return pattern(b.Lit(s), len(s))
	case c == '[':
		return pattern(p.class(), 1)
	case c == '.':
		p.at++
		return pattern(b.AnyRune(), 1)
	case c == '(':
		p.at++
		if p.take("=") {
			p.at = at
			p.err = rules.Source(p.src).Fail(cfg.GrammarUnsupported, at,
				"look-ahead is not supported")
			return nil
		}
		x := p.alternatives()
		if p.blank(); p.err == nil && !p.take(")") {
			p.fail("missing )")
		}
		return &rules.Expr{Kind: rules.Seq, At: at, Subs: []*rules.Expr{x}}
	case c == '<' || c == '!':
		return p.token()
	case isName(c):
		return &rules.Expr{Kind: rules.Ref, At: at, Name: p.name()}
	}
	r, _ := utf8.DecodeRuneInString(p.src[p.at:])
	p.fail("%q is not expected", r)
	return nil
}

// repeated reads the counts after an item.
func (p *parser) repeated(x *rules.Expr) *rules.Expr {
	for p.err == nil {
		p.blank()
		lo, hi := 0, regex.Inf
		switch {
		case p.take("*"):
		case p.take("+"):
			lo = 1
		case p.take("?"):
			hi = 1
		case p.take("{"):
			p.blank()
			var some, bounded bool
			lo, some = p.number()
			if p.blank(); p.take(",") {
				p.blank()
				if hi, bounded = p.number(); !bounded {
					hi = regex.Inf
				}
			} else {
				hi = lo
			}
			if p.blank(); !some && !bounded || !p.take("}") {
				p.fail("a count, {m}, {m,}, {,n} or {m,n}, is expected")
			} else if hi >= 0 && hi < lo {
				p.fail("a count of at least %d and at most %d", lo, hi)
			}
		default:
			return x
		}
		x = &rules.Expr{Kind: rules.Rep, At: x.At, Subs: []*rules.Expr{x}, Min: lo, Max: hi}
		if p.depth++; p.depth > maxDepth {
			p.fail("more than %d nested counts", maxDepth)
		}
		defer func() { p.depth-- }()
	}
	return x
}

func (p *parser) number() (n int, ok bool) {
	for p.at < len(p.src) && p.src[p.at] >= '0' && p.src[p.at] <= '9' {
		n, ok = min(n*10+int(p.src[p.at]-'0'), 1<<31-1), true
		p.at++
	}
	return n, ok
}

func (p *parser) quoted(quote byte) string {
	var s strings.Builder
	for p.at++; p.at < len(p.src) && p.src[p.at] != quote; {
		if p.src[p.at] == '\n' {
			break
		}
		s.WriteRune(p.char())
	}
	if p.at >= len(p.src) || p.src[p.at] != quote {
		p.fail("missing %c", quote)
		return ""
	}
	p.at++
	return s.String()
}

// char reads a character of a literal or a class.
func (p *parser) char() rune {
	r, n := utf8.DecodeRuneInString(p.src[p.at:])
	p.at += n
	if r != '\\' || p.at >= len(p.src) {
		return r
	}
	c := p.src[p.at]
	p.at++
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
			p.at--
			p.fail(`unknown escape \%c`, c)
		}
		return rune(c)
	}
	if p.at+digits <= len(p.src) {
		v, err := strconv.ParseUint(p.src[p.at:p.at+digits], 16, 32)
		if r := rune(v); err == nil && v <= utf8.MaxRune && utf8.ValidRune(r) {
			p.at += digits
			return r
		}
	}
	p.fail(`\%c without %d digits of a character`, c, digits)
	return 0
}

func (p *parser) class() regex.Ex {
	p.at++
	negated := p.take("^")
	var set []rune
	for {
		if p.at >= len(p.src) || p.src[p.at] == '\n' {
			p.fail("missing ]")
			return regex.Empty
		}
		if p.take("]") {
			break
		}
		lo := p.char()
		hi := lo
		if p.at+1 < len(p.src) && p.src[p.at] == '-' && p.src[p.at+1] != ']' {
			p.at++
			if hi = p.char(); hi < lo && p.err == nil {
				p.fail("a range from %q to %q", lo, hi)
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
	at := p.at
	not := p.take("!")
	if !p.take("<") {
		p.fail("%q is not expected", p.src[at])
		return nil
	}
	end := strings.IndexByte(p.src[p.at:], '>')
	if end < 0 {
		p.fail("missing >")
		return nil
	}
	inner := p.src[p.at : p.at+end]
	p.at += end + 1
	var id int32
	if number, ok := strings.CutPrefix(inner, "["); ok {
		v, err := strconv.ParseInt(strings.TrimSuffix(number, "]"), 10, 32)
		if err != nil || v < 0 {
			p.at = at
			p.fail("<[…]> without the id of a token")
			return nil
		}
		id = int32(v)
	} else if id, ok = p.special("<" + inner + ">"); !ok {
		p.at = at
		p.fail("there is no token <%s>", inner)
		return nil
	}
	if !not {
		return &rules.Expr{Kind: rules.Symbol, At: at, Sym: p.g.Tokens(id)}
	}
	return &rules.Expr{Kind: rules.Symbol, At: at,
		Sym: p.g.Alt(p.g.TokensExcept(id), p.g.Lexeme(p.g.B.AnyRune()))}
}
