package regex

import (
	"fmt"
	"slices"
	"unicode/utf8"
)

// Syntax says how Pattern reads a pattern and what the result matches.
type Syntax struct {
	// JSON makes every character stand as in a JSON string, in the plain spelling of JSONRunes:
	// the result matches what is between the quotes.
	JSON bool
	// Search matches texts that have the pattern anywhere in them, as JSON Schema's pattern does;
	// else the pattern is of the whole text.
	Search bool
	// Python takes Python's spellings too: (?P<n>…), \A, \Z, {,n}, []…], (?i) at the beginning.
	Python bool
	// IgnoreCase and DotAll are the flags i and s.
	IgnoreCase, DotAll bool
}

// SyntaxError says what is wrong with a pattern.
type SyntaxError struct {
	Offset      int  // in bytes
	Unsupported bool // the pattern is well-formed, but no automaton of a sensible size decides it
	Reason      string
}

func (e *SyntaxError) Error() string { return fmt.Sprintf("at offset %d: %s", e.Offset, e.Reason) }

// Pattern is the expression of a pattern of ECMA-262 (with the flag u; an escaped punctuation mark
// and a brace that is no count stand for themselves): alternation, groups of all kinds, classes,
// \d \w \s \p{…}, counts, ^ and $, \b and \B, look-ahead and look-behind of any length, anywhere.
// Lazy counts match the same texts as greedy ones. Back references, atomic groups and possessive
// counts are refused by name, and so are assertions that take more than maxStates states. The
// error is a *SyntaxError; when the fuel runs out it is ErrFuel.
func (b *Builder) Pattern(pattern string, s Syntax) (Ex, error) {
	p := parser{src: pattern, Syntax: s, b: b}
	root := p.alternatives()
	if p.err == nil && p.at < len(p.src) {
		p.fail("unmatched )")
	}
	if p.err != nil {
		return Empty, p.err
	}
	c := compiler{b: b, json: s.JSON, one: b.AnyRune()}
	if s.JSON {
		c.one = b.JSONRune()
	}
	c.text = b.Star(c.one)
	x := c.texts(root, span{anchored: !s.Search, open: s.Search})
	if c.err != nil {
		return Empty, c.err
	}
	if b.Exhausted() {
		return Empty, ErrFuel
	}
	return x, nil
}

// ErrFuel says that an expression takes more operations than its Builder may do.
var ErrFuel error = fuelError{}

type fuelError struct{}

func (fuelError) Error() string { return "the pattern is too complex" }

// Kinds of terms.
const (
	tClass = uint8(iota) // one character of ranges
	tCat
	tAlt
	tRep // subs[0], min to max times
	tBegin
	tEnd
	tLook   // subs[0] follows, or does not (negated)
	tBehind // subs[0] is before it, or is not (negated)
	tWord   // of the characters on both sides, one is of ranges; or both or none (negated)
)

// term is a pattern as read.
type term struct {
	kind     uint8
	negated  bool
	min, max int
	at       int
	ranges   []rune
	subs     []*term
	holds    uint16 // bits of the kinds from tBegin on that are in it
}

func (t *term) has(kind uint8) bool { return t.holds>>kind&1 == 1 }

// passes says that t may match without a character.
func (t *term) passes() bool {
	switch t.kind {
	case tClass:
		return false
	case tCat:
		return !slices.ContainsFunc(t.subs, func(s *term) bool { return !s.passes() })
	case tAlt:
		return slices.ContainsFunc(t.subs, (*term).passes)
	case tRep:
		return t.min == 0 || t.subs[0].passes()
	}
	return true
}

func group(kind uint8, subs ...*term) *term {
	t := &term{kind: kind, subs: subs}
	for _, s := range subs {
		t.holds |= s.holds
	}
	if kind >= tBegin {
		t.holds |= 1 << kind
	}
	return t
}

// maxDepth bounds the nesting of groups, and so the recursion.
const maxDepth = 1000

type parser struct {
	Syntax
	src   string
	at    int
	depth int
	b     *Builder
	err   error
}

func (p *parser) fail(format string, args ...any) {
	if p.err == nil {
		p.err = &SyntaxError{Offset: p.at, Reason: fmt.Sprintf(format, args...)}
	}
	p.at = len(p.src)
}

func (p *parser) refuse(what string) {
	if p.err == nil {
		p.err = &SyntaxError{Offset: p.at, Unsupported: true, Reason: what + " is not supported"}
	}
	p.at = len(p.src)
}

func (p *parser) peek(s string) bool {
	return len(p.src)-p.at >= len(s) && p.src[p.at:p.at+len(s)] == s
}

func (p *parser) take(s string) bool {
	if p.peek(s) {
		p.at += len(s)
		return true
	}
	return false
}

func (p *parser) rune() rune {
	r, n := utf8.DecodeRuneInString(p.src[p.at:])
	if r == utf8.RuneError && n <= 1 {
		p.fail("invalid UTF-8")
		return r
	}
	p.at += n
	return r
}

func (p *parser) alternatives() *term {
	if p.depth++; p.depth > maxDepth {
		p.fail("more than %d nested groups", maxDepth)
	}
	defer func() { p.depth-- }()
	alts := []*term{p.sequence()}
	for p.take("|") {
		alts = append(alts, p.sequence())
	}
	if len(alts) == 1 {
		return alts[0]
	}
	return group(tAlt, alts...)
}

func (p *parser) sequence() *term {
	var items []*term
	for p.at < len(p.src) && !p.peek("|") && !p.peek(")") {
		start := p.at
		t, fixed := p.atom()
		if t == nil {
			continue
		}
		t.at = start
		if t = p.quantified(t, fixed); p.err != nil {
			return group(tCat)
		}
		items = append(items, t)
	}
	return group(tCat, items...)
}

// atom reads one term; fixed ones take no count. nil is for what matches nothing and changes
// something else: a comment, a flag.
func (p *parser) atom() (t *term, fixed bool) {
	switch c := p.src[p.at]; c {
	case '(':
		return p.group()
	case '[':
		p.at++
		return p.class(p.brackets()), false
	case '^':
		p.at++
		return &term{kind: tBegin, holds: 1 << tBegin}, true
	case '$':
		p.at++
		return &term{kind: tEnd, holds: 1 << tEnd}, true
	case '.':
		p.at++
		if p.DotAll {
			return p.class([]rune{0, utf8.MaxRune}), false
		}
		return p.class(Negate([]rune{'\n', '\n', '\r', '\r', 0x2028, 0x2029})), false
	case '*', '+', '?':
		p.fail("nothing to repeat before %c", c)
		return nil, true
	case '{':
		if _, _, n := p.count(); n > 0 {
			p.fail("nothing to repeat before {")
			return nil, true
		}
	case '\\':
		return p.escape()
	}
	r := p.rune()
	return p.class(p.folded([]rune{r, r})), false
}

func (p *parser) class(ranges []rune) *term { return &term{kind: tClass, ranges: ranges} }

// count is the length of a {…} at hand, 0 when it is none.
func (p *parser) count() (lo, hi, n int) {
	number := func(i int) (v, j int) {
		for j = i; j < len(p.src) && p.src[j] >= '0' && p.src[j] <= '9'; j++ {
			v = min(v*10+int(p.src[j]-'0'), 1<<31-1)
		}
		return v, j
	}
	lo, i := number(p.at + 1)
	hi = lo
	switch missing := i == p.at+1; {
	case i < len(p.src) && p.src[i] == ',':
		var j int
		if hi, j = number(i + 1); j == i+1 {
			hi = Inf
			if missing {
				return 0, 0, 0
			}
		}
		if missing && !p.Python {
			return 0, 0, 0
		}
		i = j
	case missing:
		return 0, 0, 0
	}
	if i >= len(p.src) || p.src[i] != '}' {
		return 0, 0, 0
	}
	return lo, hi, i + 1 - p.at
}

func (p *parser) quantified(t *term, fixed bool) *term {
	if p.at >= len(p.src) {
		return t
	}
	lo, hi, n := 0, Inf, 1
	switch p.src[p.at] {
	case '*':
	case '+':
		lo = 1
	case '?':
		hi = 1
	case '{':
		if lo, hi, n = p.count(); n == 0 {
			return t
		}
	default:
		return t
	}
	if fixed {
		p.fail("nothing to repeat before %c", p.src[p.at])
		return t
	}
	if hi >= 0 && hi < lo {
		p.fail("a count of at least %d and at most %d", lo, hi)
		return t
	}
	p.at += n
	if p.peek("+") {
		p.refuse("a possessive count")
		return t
	}
	p.take("?")
	r := group(tRep, t)
	r.min, r.max, r.at = lo, hi, t.at
	return r
}

// group reads what begins with a parenthesis.
func (p *parser) group() (t *term, fixed bool) {
	p.at++
	kind, negated, flags := tCat, false, p.Syntax
	switch {
	case !p.take("?"):
	case p.take(":"):
	case p.take("="):
		kind, fixed = tLook, true
	case p.take("!"):
		kind, negated, fixed = tLook, true, true
	case p.take("<="):
		kind, fixed = tBehind, true
	case p.take("<!"):
		kind, negated, fixed = tBehind, true, true
	case p.take("<"):
		p.name('>')
	case p.Python && p.take("P<"):
		p.name('>')
	case p.peek("P="), p.peek("P>"):
		p.refuse("a reference to a group")
	case p.take("#"):
		p.name(')')
		return nil, true
	case p.take(">"):
		p.refuse("an atomic group")
	case p.peek("("):
		p.refuse("a conditional group")
	default:
		if p.flags() {
			return nil, true // for the rest of the pattern
		}
	}
	sub := p.alternatives()
	p.Syntax = flags
	if p.err == nil && !p.take(")") {
		p.fail("missing )")
	}
	if kind == tCat {
		return group(tCat, sub), false
	}
	t = group(kind, sub)
	t.negated = negated
	return t, fixed
}

func (p *parser) name(end byte) {
	for start := p.at; p.at < len(p.src); p.at++ {
		if p.src[p.at] == end {
			if p.at++; p.at == start+1 && end == '>' {
				p.fail("a group without a name")
			}
			return
		}
	}
	p.fail("missing %c", end)
}

// flags reads the flags of (?i) and (?i:…), and says whether it was the first.
func (p *parser) flags() (alone bool) {
	on := true
	for p.at < len(p.src) {
		c := p.src[p.at]
		switch c {
		case 'i':
			p.IgnoreCase = on
		case 's':
			p.DotAll = on
		case 'u':
		case '-':
			on = false
		case ':':
			p.at++
			return false
		case ')':
			p.at++
			return true
		case 'm', 'x', 'a', 'L':
			p.refuse("the flag " + string(rune(c)))
			return false
		default:
			p.fail("unknown kind of group (?%c", c)
			return false
		}
		p.at++
	}
	p.fail("missing )")
	return false
}

// Quote is the pattern of exactly text.
func Quote(text string) string {
	out := make([]byte, 0, len(text)+8)
	for i := range len(text) {
		if c := text[i]; c < 0x80 && !isWord(c) && c > ' ' {
			out = append(out, '\\')
		}
		out = append(out, text[i])
	}
	return string(out)
}
