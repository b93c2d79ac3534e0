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

// maxDepth bounds the nesting of groups, and so the recursion.
const maxDepth = 1000

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
	p := parser{src: text, g: g, h: h}
	p.statements()
	if p.err != nil {
		return cfg.None, "", p.err
	}
	src := rules.Source(text)
	p.common()
	if p.err != nil {
		return cfg.None, "", p.err
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
	src     string
	at      int
	depth   int
	g       *cfg.Grammar
	h       Host
	list    []rules.Rule
	ignores []*rules.Expr
	imports map[string]string // by the name here
	err     error
}

func (p *parser) error(code, format string, args ...any) {
	if p.err == nil {
		p.err = rules.Source(p.src).Fail(code, p.at, format, args...)
	}
	p.at = len(p.src)
}

func (p *parser) fail(format string, args ...any) { p.error(cfg.GrammarSyntax, format, args...) }

func (p *parser) refuse(what string) {
	p.error(cfg.GrammarUnsupported, "%s is not supported", what)
}

func (p *parser) peek(s string) bool { return strings.HasPrefix(p.src[p.at:], s) }

func (p *parser) take(s string) bool {
	if p.peek(s) {
		p.at += len(s)
		return true
	}
	return false
}

// blank goes over white space and comments; lines too, if the text goes on over them.
func (p *parser) blank(lines bool) {
	for p.at < len(p.src) {
		switch c := p.src[p.at]; {
		case c == ' ' || c == '\t' || c == '\r' || c == '\\' && p.peek("\\\n"):
			p.at++
		case c == '\n' && lines:
			p.at++
		case c == '\n' && p.at > 0 && p.src[p.at-1] == '\\':
			p.at++
		case c == '#' || p.peek("//"):
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

func isName(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_'
}

func (p *parser) name() string {
	from := p.at
	for p.at < len(p.src) && (isName(p.src[p.at]) || p.src[p.at] == '-' && p.at > from &&
		!p.peek("->")) {
		p.at++
	}
	return p.src[from:p.at]
}

// isTerminal says whether a name is of a terminal: its first letter is a capital.
func isTerminal(name string) bool {
	name = strings.TrimLeft(name, "_")
	return name != "" && name[0] >= 'A' && name[0] <= 'Z'
}

func (p *parser) statements() {
	p.imports = map[string]string{}
	for p.blank(true); p.at < len(p.src) && p.err == nil; p.blank(true) {
		if p.peek("%") {
			p.directive()
			continue
		}
		p.take("?")
		p.take("!")
		r := rules.Rule{At: p.at}
		r.Name = p.name()
		r.Terminal = isTerminal(r.Name)
		switch {
		case r.Name == "":
			p.fail("a rule, name: …, is expected")
		case p.peek("{"):
			p.refuse("a template")
		case p.peek("."):
			p.refuse("a priority")
		}
		lazy := p.attributes()
		if p.blank(false); p.err == nil && !p.take(":") {
			p.fail("missing : after %s", r.Name)
		}
		r.Body = p.alternatives()
		if p.blank(false); p.err == nil && p.at < len(p.src) && p.src[p.at] != '\n' {
			p.fail("the end of the line is expected")
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
	if p.blank(false); !p.take("[") {
		return false
	}
	for p.err == nil {
		p.blank(true)
		switch name := p.name(); name {
		case "lazy":
			lazy = true
		case "capture":
			if p.blank(true); p.take("=") {
				p.blank(true)
				if p.peek(`"`) {
					p.quoted()
				} else {
					p.name()
				}
			}
		default:
			p.refuse("the attribute " + name)
		}
		if p.blank(true); p.take("]") {
			return lazy
		}
		if p.err == nil && !p.take(",") {
			p.fail("missing ]")
		}
	}
	return lazy
}

func (p *parser) directive() {
	at := p.at
	p.at++
	switch word := p.name(); word {
	case "ignore":
		p.blank(false)
		p.ignores = append(p.ignores, p.alternatives())
	case "import":
		p.blank(false)
		if module := p.name(); p.err == nil && module != "common" {
			p.refuse("an import from another module than common")
		}
		p.imported()
	default:
		p.at = at
		p.refuse("the directive %" + word)
	}
}

// imported reads what follows the name of a module: .NAME, or a list of names in parentheses.
func (p *parser) imported() {
	one := p.take(".")
	if p.blank(false); !one && !p.take("(") {
		p.fail("the name of a terminal is expected")
	}
	for p.err == nil {
		p.blank(false)
		name := p.name()
		as := name
		if p.blank(false); p.take("->") {
			p.blank(false)
			as = p.name()
		}
		if name == "" || as == "" {
			p.fail("the name of a terminal is expected")
		}
		p.imports[as] = name
		if p.blank(false); one || p.take(")") {
			return
		}
		if !p.take(",") {
			p.fail("missing )")
		}
	}
}

func (p *parser) alternatives() *rules.Expr {
	x := &rules.Expr{Kind: rules.Alt, At: p.at}
	if p.depth++; p.depth > maxDepth {
		p.fail("more than %d nested groups", maxDepth)
	}
	for p.err == nil {
		x.Subs = append(x.Subs, p.conjunction())
		if p.blank(false); p.take("->") {
			p.blank(false)
			p.name()
		}
		if !p.goesOn("|") {
			break
		}
	}
	p.depth--
	if len(x.Subs) == 1 {
		return x.Subs[0]
	}
	return x
}

// goesOn takes a sign that may stand at the beginning of another line.
func (p *parser) goesOn(sign string) bool {
	from := p.at
	p.blank(true)
	if p.take(sign) {
		return true
	}
	if p.depth <= 1 {
		p.at = from
	}
	return false
}

func (p *parser) conjunction() *rules.Expr {
	x := &rules.Expr{Kind: rules.And, At: p.at}
	for p.err == nil {
		x.Subs = append(x.Subs, p.sequence())
		if p.blank(p.depth > 1); !p.take("&") {
			break
		}
	}
	if len(x.Subs) == 1 {
		return x.Subs[0]
	}
	return x
}

func (p *parser) sequence() *rules.Expr {
	x := &rules.Expr{Kind: rules.Seq, At: p.at}
	for p.err == nil {
		p.blank(p.depth > 1)
		if p.at >= len(p.src) || strings.IndexByte("|)]&\n", p.src[p.at]) >= 0 || p.peek("->") {
			break
		}
		negated := p.take("~")
		if p.blank(p.depth > 1); p.at >= len(p.src) {
			p.fail("nothing follows ~")
			break
		}
		item := p.item()
		if p.err != nil {
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
	at := p.at
	pattern := func(ex regex.Ex, size int) *rules.Expr {
		return &rules.Expr{Kind: rules.Pattern, At: at, Ex: ex, Size: size}
	}
	switch c := p.src[p.at]; {
	case c == '"':
		s := p.quoted()
		if p.take("..") {
			return pattern(p.span(s), 1)
		}
		if p.take("i") {
			return pattern(p.pattern(regex.Quote(s), regex.Syntax{IgnoreCase: true}), len(s))
		}
		return pattern(p.g.B.Lit(s), len(s))
	case c == '/':
		return pattern(p.slashes(), 1)
	case c == '(' || c == '[':
		p.at++
		x := p.alternatives()
		p.blank(true)
		closing := map[byte]string{'(': ")", '[': "]"}[c]
		if p.err == nil && !p.take(closing) {
			p.fail("missing %s", closing)
		}
		if c == '[' {
			return &rules.Expr{Kind: rules.Rep, At: at, Subs: []*rules.Expr{x}, Max: 1}
		}
		return &rules.Expr{Kind: rules.Seq, At: at, Subs: []*rules.Expr{x}}
	case c == '<':
		return p.token()
	case c == '%':
		p.at++
		if word := p.name(); word != "json" {
			p.at = at
			p.refuse("%" + word)
			return nil
		}
		return p.json()
	case isName(c):
		x := &rules.Expr{Kind: rules.Ref, At: at, Name: p.name()}
		if p.peek("{") && !p.counts() {
			p.refuse("a template")
		}
		return x
	}
	r, _ := utf8.DecodeRuneInString(p.src[p.at:])
	p.fail("%q is not expected", r)
	return nil
}

// counts says whether a brace is that of a count.
func (p *parser) counts() bool {
	for _, c := range []byte(p.src[p.at+1:]) {
		if c != ' ' {
			return c >= '0' && c <= '9' || c == ','
		}
	}
	return false
}

func (p *parser) repeated(x *rules.Expr) *rules.Expr {
	for p.err == nil {
		from := p.at
		p.blank(false)
		lo, hi := 0, regex.Inf
		var some, bounded bool
		switch {
		case p.take("*"):
		case p.take("+"):
			lo = 1
		case p.take("?"):
			hi = 1
		case p.take("{"):
			p.blank(false)
			lo, some = p.number()
			hi = lo
			if p.blank(false); p.take(",") {
				p.blank(false)
				if hi, bounded = p.number(); !bounded {
					hi = regex.Inf
				}
			}
			if p.blank(false); !some && !bounded || !p.take("}") {
				p.fail("a count, {m}, {m,}, {,n} or {m,n}, is expected")
			}
		case p.peek("~") && p.at+1 < len(p.src) &&
			strings.IndexByte(" 0123456789", p.src[p.at+1]) >= 0:
			p.at++
			p.blank(false)
			if lo, some = p.number(); !some {
				p.fail("a count is expected")
			}
			hi = lo
			if p.blank(false); p.take("..") {
				p.blank(false)
				if hi, some = p.number(); !some {
					p.fail("a count is expected")
				}
			}
		default:
			p.at = from
			return x
		}
		if hi >= 0 && hi < lo {
			p.fail("a count of at least %d and at most %d", lo, hi)
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

// pattern is the expression of a pattern at hand.
func (p *parser) pattern(text string, s regex.Syntax) regex.Ex {
	s.Python = true
	x, err := p.g.B.Pattern(text, s)
	var e *regex.SyntaxError
	switch {
	case err == nil:
	case errors.As(err, &e) && e.Unsupported:
		p.error(cfg.GrammarUnsupported, "%s", e.Reason)
	default:
		p.fail("%s", err)
	}
	return x
}
