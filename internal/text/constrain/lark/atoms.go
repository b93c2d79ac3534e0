package lark

import (
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/eagleray/eagleray/internal/text/constrain/cfg"
	"github.com/eagleray/eagleray/internal/text/constrain/regex"
	"github.com/eagleray/eagleray/internal/text/constrain/rules"
)

// quoted reads "…", with the escapes of Python and JSON.
func (p *parser) quoted() string {
	from := p.at
	for p.at++; p.at < len(p.src) && p.src[p.at] != '"' && p.src[p.at] != '\n'; p.at++ {
		if p.src[p.at] == '\\' {
			p.at++
		}
	}
	if p.at >= len(p.src) || p.src[p.at] != '"' {
		p.fail(`missing "`)
		return ""
	}
	p.at++
	s, err := strconv.Unquote(p.src[from:p.at])
	if err != nil && json.Unmarshal([]byte(p.src[from:p.at]), &s) != nil || !utf8.ValidString(s) {
		p.at = from
		p.fail("a text with an unknown escape")
	}
	return s
}

// span reads the end of "a".."z".
func (p *parser) span(from string) regex.Ex {
	to := ""
	if p.peek(`"`) {
		to = p.quoted()
	}
	lo, n := utf8.DecodeRuneInString(from)
	hi, m := utf8.DecodeRuneInString(to)
	if p.err == nil && (n == 0 || n != len(from) || m == 0 || m != len(to) || lo > hi) {
		p.fail("a range is of two characters")
	}
	return p.g.B.Runes(lo, hi)
}

// slashes reads /…/ and its flags.
func (p *parser) slashes() regex.Ex {
	from := p.at
	inClass := false
	for p.at++; p.at < len(p.src) && p.src[p.at] != '\n'; p.at++ {
		switch c := p.src[p.at]; {
		case c == '\\':
			p.at++
		case c == '[':
			inClass = true
		case c == ']':
			inClass = false
		}
		if p.at < len(p.src) && p.src[p.at] == '/' && !inClass && p.src[p.at-1] != '\\' {
			break
		}
	}
	if p.at >= len(p.src) || p.src[p.at] != '/' {
		p.at = from
		p.fail("missing / at the end of a pattern")
		return regex.Empty
	}
	text := p.src[from+1 : p.at]
	p.at++
	var s regex.Syntax
	for p.at < len(p.src) && p.src[p.at] >= 'a' && p.src[p.at] <= 'z' {
		switch p.src[p.at] {
		case 'i':
			s.IgnoreCase = true
		case 's':
			s.DotAll = true
		case 'u':
		default:
			p.refuse("the flag " + p.src[p.at:p.at+1] + " of a pattern")
			return regex.Empty
		}
		p.at++
	}
	back := p.at
	p.at = from
	x := p.pattern(text, s)
	if p.err == nil {
		p.at = back
	}
	return x
}

// token reads <text> and <[ids]>.
func (p *parser) token() *rules.Expr {
	at := p.at
	end := strings.IndexByte(p.src[at:], '>')
	if end < 0 {
		p.fail("missing >")
		return nil
	}
	inner := p.src[at+1 : at+end]
	p.at += end + 1
	symbol := func(s cfg.Sym) *rules.Expr { return &rules.Expr{Kind: rules.Symbol, At: at, Sym: s} }
	list, bracketed := strings.CutPrefix(inner, "[")
	if !bracketed {
		id, ok := p.h.Special("<" + inner + ">")
		if !ok {
			p.at = at
			p.fail("there is no token <%s>", inner)
			return nil
		}
		return symbol(p.g.Tokens(id))
	}
	list = strings.TrimSuffix(list, "]")
	if list == "*" {
		return symbol(p.g.TokensExcept())
	}
	list, except := strings.CutPrefix(list, "^")
	var ids []int32
	for part := range strings.SplitSeq(list, ",") {
		lo, hi, isRange := strings.Cut(part, "-")
		if !isRange {
			hi = lo
		}
		a, err := strconv.ParseInt(strings.TrimSpace(lo), 10, 32)
		b, err2 := strconv.ParseInt(strings.TrimSpace(hi), 10, 32)
		if err != nil || err2 != nil || a < 0 || b < a || b-a > 1<<20 {
			p.at = at
			p.fail("<[…]> without the ids of tokens")
			return nil
		}
		for ; a <= b; a++ {
			ids = append(ids, int32(a))
		}
	}
	if except {
		return symbol(p.g.TokensExcept(ids...))
	}
	return symbol(p.g.Tokens(ids...))
}

// json reads the schema after %json.
func (p *parser) json() *rules.Expr {
	p.blank(true)
	at := p.at
	d := json.NewDecoder(strings.NewReader(p.src[p.at:]))
	var schema json.RawMessage
	if err := d.Decode(&schema); err != nil {
		p.fail("%%json without a schema")
		return nil
	}
	p.at += int(d.InputOffset())
	s, err := p.h.Schema(string(schema))
	var e *cfg.Error
	if errors.As(err, &e) && p.err == nil {
		copied := *e
		at := rules.Source(p.src).Fail("", at, "")
		copied.Line, copied.Column = at.Line, at.Column
		copied.Reason = "in the schema, at " + e.Pointer + ": " + e.Reason
		p.err = &copied
	} else if err != nil && p.err == nil {
		p.err = err
	}
	return &rules.Expr{Kind: rules.Symbol, At: at, Sym: s}
}

// commonTerminals are those of Lark's module common.
var commonTerminals = map[string]string{
	"DIGIT": `[0-9]`, "HEXDIGIT": `[a-fA-F0-9]`, "INT": `[0-9]+`, "SIGNED_INT": `[+-]?[0-9]+`,
	"DECIMAL": `[0-9]+\.[0-9]*|\.[0-9]+`,
	"FLOAT":   `[0-9]+[eE][+-]?[0-9]+|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?`,
	"SIGNED_FLOAT": `[+-]?([0-9]+[eE][+-]?[0-9]+|` +
		`([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?)`,
	"NUMBER": `[0-9]+|[0-9]+[eE][+-]?[0-9]+|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?`,
	"SIGNED_NUMBER": `[+-]?([0-9]+|[0-9]+[eE][+-]?[0-9]+|` +
		`([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?)`,
	"ESCAPED_STRING": `"([^"\\\n]|\\.)*"`, "LCASE_LETTER": `[a-z]`, "UCASE_LETTER": `[A-Z]`,
	"LETTER": `[a-zA-Z]`, "WORD": `[a-zA-Z]+`, "CNAME": `[_a-zA-Z][_a-zA-Z0-9]*`,
	"WS_INLINE": `[ \t]+`, "WS": `[ \t\f\r\n]+`, "CR": `\r`, "LF": `\n`, "NEWLINE": `(\r?\n)+`,
	"SH_COMMENT": `#[^\n]*`, "CPP_COMMENT": `//[^\n]*`, "SQL_COMMENT": `--[^\n]*`,
	"C_COMMENT": `/\*([^*]|\*+[^*/])*\*+/`,
}

// common adds the terminals that are imported.
func (p *parser) common() {
	for as, name := range p.imports {
		text, ok := commonTerminals[name]
		if !ok {
			p.at = max(strings.Index(p.src, name), 0)
			p.error(cfg.GrammarUndefined, "there is no terminal common.%s", name)
			return
		}
		x := p.pattern(text, regex.Syntax{})
		p.list = append(p.list, rules.Rule{Name: as, Terminal: true,
			Body: &rules.Expr{Kind: rules.Pattern, Ex: x, Size: len(text)}})
	}
}

// ignoredText is what %ignore says may stand between terminals.
func (p *parser) ignoredText(src rules.Source) (regex.Ex, error) {
	if len(p.ignores) == 0 {
		return regex.Empty, nil
	}
	x := &rules.Expr{Kind: rules.Alt, At: p.ignores[0].At, Subs: p.ignores}
	return rules.Regular(p.g, src, p.list, x)
}
