// Package lark is the front end of grammars in the notation of Lark, as llguidance reads it: rules
// in small letters over terminals in capitals, with %ignore between terminals. Texts are read
// greedily: a terminal takes the longest text that one of those allowed can take.
package lark

import (
	"errors"
	"strings"
	"unicode/utf8"

	"github.com/eagleray/eagleray/internal/text/constrain/cfg"
	"github.com/eagleray/eagleray/internal/text/constrain/regex"
	"github.com/eagleray/eagleray/internal/text/constrain/rules"
)

// Host has what the text of a grammar refers to.
type Host struct {
	// Special is the id of the special token with a text.
	Special func(text string) (id int32, ok bool)
	// Schema is the symbol for the valid texts of a JSON Schema.
	Schema func(text string) (cfg.Sym, error)
}

// Compile adds the symbols of a grammar to g, which is to be Greedy, and returns that of its rule
// start with the place of the rule as "line:column". An error is a *cfg.Error.
//
// There are "…" with the flag i, /…/ with the flags i and s, "a".."z", names, groups, […] for what
// may be missing, | * + ? ~n ~m..n {n} {m,n}, & and ~x between terminals, <text> and <[id]> for
// special tokens, <[*]> for any, <[^id]> for any but, %json {…}, %ignore, %import common.NAME with
// -> for another name, aliases (-> name, without effect) and // comments. A rule or a terminal may
// have the attribute [lazy]: it then ends as soon as it can. Templates, priorities, %declare,
// %override, %extend and other attributes are refused by name.
func Compile(text string, g *cfg.Grammar, h Host) (cfg.Sym, string, error) {
	p := parser{Cursor: rules.Cursor{Src: text}, g: g, h: h}
	p.statements()
	if p.Err != nil {
		return cfg.None, "", p.Err
	}
	src := rules.Source(text)
	p.common()
	if p.Err != nil {
		return cfg.None, "", p.Err
	}
	ignored, err := p.ignoredText(src)
	if err != nil {
		return cfg.None, "", err
	}
	at := 0
	for _, r := range p.list {
		if r.Name == "start" {
			at = r.At
		}
	}
	s, err := rules.Emit(g, src, p.list, "start", ignored)
	return s, src.Place(at), err
}

type parser struct {
	rules.Cursor
	g       *cfg.Grammar
	h       Host
	list    []rules.Rule
	ignores []*rules.Expr
	imports map[string]string // by the name here
}

// blank goes over white space and comments; lines too, if the text goes on over them.
func (p *parser) blank(lines bool) {
	for p.At < len(p.Src) {
		switch c := p.Src[p.At]; {
		case c == ' ' || c == '\t' || c == '\r' || c == '\\' && p.Peek("\\\n"):
			p.At++
		case c == '\n' && lines:
			p.At++
		case c == '\n' && p.At > 0 && p.Src[p.At-1] == '\\':
			p.At++
		case c == '#' || p.Peek("//"):
			p.Line()
		default:
			return
		}
	}
}

func isName(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_'
}

func (p *parser) name() string {
	from := p.At
	for p.At < len(p.Src) && (isName(p.Src[p.At]) || p.Src[p.At] == '-' && p.At > from &&
		!p.Peek("->")) {
		p.At++
	}
	return p.Src[from:p.At]
}

// isTerminal says whether a name is of a terminal: its first letter is a capital.
func isTerminal(name string) bool {
	name = strings.TrimLeft(name, "_")
	return name != "" && name[0] >= 'A' && name[0] <= 'Z'
}

func (p *parser) statements() {
	p.imports = map[string]string{}
	for p.blank(true); p.At < len(p.Src) && p.Err == nil; p.blank(true) {
		if p.Peek("%") {
			p.directive()
			continue
		}
		p.Take("?")
		p.Take("!")
		r := rules.Rule{At: p.At}
		r.Name = p.name()
		r.Terminal = isTerminal(r.Name)
		switch {
		case r.Name == "":
			p.Fail("a rule, name: …, is expected")
		case p.Peek("{"):
			p.Refuse("a template")
		case p.Peek("."):
			p.Refuse("a priority")
		}
		lazy := p.attributes()
		if p.blank(false); p.Err == nil && !p.Take(":") {
			p.Fail("missing : after %s", r.Name)
		}
		r.Body = p.alternatives()
		if p.blank(false); p.Err == nil && p.At < len(p.Src) && p.Src[p.At] != '\n' {
			p.Fail("the end of the line is expected")
		}
		if lazy {
			r.Body, r.Terminal = &rules.Expr{Kind: rules.Lazy, At: r.At,
				Subs: []*rules.Expr{r.Body}}, true
		}
		p.list = append(p.list, r)
	}
}

// attributes reads the […] after the name of a rule.
func (p *parser) attributes() (lazy bool) {
	if p.blank(false); !p.Take("[") {
		return false
	}
	for p.Err == nil {
		p.blank(true)
		switch name := p.name(); name {
		case "lazy":
			lazy = true
		case "capture":
			if p.blank(true); p.Take("=") {
				p.blank(true)
				if p.Peek(`"`) {
					p.quoted()
				} else {
					p.name()
				}
			}
		default:
			p.Refuse("the attribute " + name)
		}
		if p.blank(true); p.Take("]") {
			return lazy
		}
		if p.Err == nil && !p.Take(",") {
			p.Fail("missing ]")
		}
	}
	return lazy
}

func (p *parser) directive() {
	at := p.At
	p.At++
	switch word := p.name(); word {
	case "ignore":
		p.blank(false)
		p.ignores = append(p.ignores, p.alternatives())
	case "import":
		p.blank(false)
		if module := p.name(); p.Err == nil && module != "common" {
			p.Refuse("an import from another module than common")
		}
		p.imported()
	default:
		p.At = at
		p.Refuse("the directive %" + word)
	}
}

// imported reads what follows the name of a module: .NAME, or a list of names in parentheses.
func (p *parser) imported() {
	one := p.Take(".")
	if p.blank(false); !one && !p.Take("(") {
		p.Fail("the name of a terminal is expected")
	}
	for p.Err == nil {
		p.blank(false)
		name := p.name()
		as := name
		if p.blank(false); p.Take("->") {
			p.blank(false)
			as = p.name()
		}
		if name == "" || as == "" {
			p.Fail("the name of a terminal is expected")
		}
		p.imports[as] = name
		if p.blank(false); one || p.Take(")") {
			return
		}
		if !p.Take(",") {
			p.Fail("missing )")
		}
	}
}

func (p *parser) alternatives() *rules.Expr {
	at, subs := p.At, []*rules.Expr(nil)
	p.Nest("groups")
	for p.Err == nil {
		subs = append(subs, p.conjunction())
		if p.blank(false); p.Take("->") {
			p.blank(false)
			p.name()
		}
		if !p.goesOn("|") {
			break
		}
	}
	p.Depth--
	return rules.Of(rules.Alt, at, subs)
}

// goesOn takes a sign that may stand at the beginning of another line.
func (p *parser) goesOn(sign string) bool {
	from := p.At
	p.blank(true)
	if p.Take(sign) {
		return true
	}
	if p.Depth <= 1 {
		p.At = from
	}
	return false
}

func (p *parser) conjunction() *rules.Expr {
	at, subs := p.At, []*rules.Expr(nil)
	for p.Err == nil {
		subs = append(subs, p.sequence())
		if p.blank(p.Depth > 1); !p.Take("&") {
			break
		}
	}
	return rules.Of(rules.And, at, subs)
}

func (p *parser) sequence() *rules.Expr {
	x := &rules.Expr{Kind: rules.Seq, At: p.At}
	for p.Err == nil {
		p.blank(p.Depth > 1)
		if p.At >= len(p.Src) || strings.IndexByte("|)]&\n", p.Src[p.At]) >= 0 || p.Peek("->") {
			break
		}
		negated := p.Take("~")
		if p.blank(p.Depth > 1); p.At >= len(p.Src) {
			p.Fail("nothing follows ~")
			break
		}
		item := p.item()
		if p.Err != nil {
			break
		}
		item = p.repeated(item)
		if negated {
			item = &rules.Expr{Kind: rules.Not, At: item.At, Subs: []*rules.Expr{item}}
		}
		x.Subs = append(x.Subs, item)
	}
	return x
}

func (p *parser) item() *rules.Expr {
	at := p.At
	pattern := func(ex regex.Ex, size int) *rules.Expr {
		return &rules.Expr{Kind: rules.Pattern, At: at, Ex: ex, Size: size}
	}
	switch c := p.Src[p.At]; {
	case c == '"':
		s := p.quoted()
		if p.Take("..") {
			return pattern(p.span(s), 1)
		}
		if p.Take("i") {
			return pattern(p.pattern(regex.Quote(s), regex.Syntax{IgnoreCase: true}), len(s))
		}
		return pattern(p.g.B.Lit(s), len(s))
	case c == '/':
		return pattern(p.slashes(), 1)
	case c == '(' || c == '[':
		p.At++
		x := p.alternatives()
		p.blank(true)
		closing := map[byte]string{'(': ")", '[': "]"}[c]
		if p.Err == nil && !p.Take(closing) {
			p.Fail("missing %s", closing)
		}
		if c == '[' {
			return &rules.Expr{Kind: rules.Rep, At: at, Subs: []*rules.Expr{x}, Max: 1}
		}
		return &rules.Expr{Kind: rules.Seq, At: at, Subs: []*rules.Expr{x}}
	case c == '<':
		return p.token()
	case c == '%':
		p.At++
		if word := p.name(); word != "json" {
			p.At = at
			p.Refuse("%" + word)
			return nil
		}
		return p.json()
	case isName(c):
		x := &rules.Expr{Kind: rules.Ref, At: at, Name: p.name()}
		if p.Peek("{") && !p.counts() {
			p.Refuse("a template")
		}
		return x
	}
	r, _ := utf8.DecodeRuneInString(p.Src[p.At:])
	p.Fail("%q is not expected", r)
	return nil
}

// counts says whether a brace is that of a count.
func (p *parser) counts() bool {
	for _, c := range []byte(p.Src[p.At+1:]) {
		if c != ' ' {
			return c >= '0' && c <= '9' || c == ','
		}
	}
	return false
}

func (p *parser) repeated(x *rules.Expr) *rules.Expr {
	depth := p.Depth
	for p.Err == nil {
		from := p.At
		p.blank(false)
		lo, hi := 0, regex.Inf
		switch {
		case p.Take("*"):
		case p.Take("+"):
			lo = 1
		case p.Take("?"):
			hi = 1
		case p.Take("{"):
			lo, hi = p.Count(func() { p.blank(false) })
		case p.Peek("~") && p.At+1 < len(p.Src) &&
			strings.IndexByte(" 0123456789", p.Src[p.At+1]) >= 0:
			p.At++
			lo = p.times()
			hi = lo
			if p.blank(false); p.Take("..") {
				hi = p.times()
			}
		default:
			p.At, p.Depth = from, depth
			return x
		}
		x = p.Repeat(x, lo, hi)
	}
	return x
}

func (p *parser) times() int {
	p.blank(false)
	n, some := p.Number()
	if !some {
		p.Fail("a count is expected")
	}
	return n
}

// pattern is the expression of a pattern at hand.
func (p *parser) pattern(text string, s regex.Syntax) regex.Ex {
	s.Python = true
	x, err := p.g.B.Pattern(text, s)
	var e *regex.SyntaxError
	switch {
	case err == nil:
	case errors.As(err, &e) && e.Unsupported:
		p.Error(cfg.GrammarUnsupported, "%s", e.Reason)
	default:
		p.Fail("%s", err)
	}
	return x
}
