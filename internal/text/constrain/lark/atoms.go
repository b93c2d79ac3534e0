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
	from := p.At
	for p.At++; p.At < len(p.Src) && p.Src[p.At] != '"' && p.Src[p.At] != '\n'; p.At++ {
		if p.Src[p.At] == '\\' {
			p.At++
		}
	}
	if p.At >= len(p.Src) || p.Src[p.At] != '"' {
		p.Fail(`missing "`)
		return ""
	}
	p.At++
	s, err := strconv.Unquote(p.Src[from:p.At])
	if err != nil && json.Unmarshal([]byte(p.Src[from:p.At]), &s) != nil || !utf8.ValidString(s) {
		p.At = from
		p.Fail("a text with an unknown escape")
	}
	return s
}

// span reads the end of "a".."z".
func (p *parser) span(from string) regex.Ex {
	to := ""
	if p.Peek(`"`) {
		to = p.quoted()
	}
	lo, n := utf8.DecodeRuneInString(from)
	hi, m := utf8.DecodeRuneInString(to)
	if p.Err == nil && (n == 0 || n != len(from) || m == 0 || m != len(to) || lo > hi) {
		p.Fail("a range is of two characters")
	}
	return p.g.B.Runes(lo, hi)
}

// slashes reads /…/ and its flags.
func (p *parser) slashes() regex.Ex {
	from := p.At
	inClass := false
	for p.At++; p.At < len(p.Src) && p.Src[p.At] != '\n'; p.At++ {
		switch c := p.Src[p.At]; {
		case c == '\\':
			p.At++
		case c == '[':
			inClass = true
		case c == ']':
			inClass = false
		}
		if p.At < len(p.Src) && p.Src[p.At] == '/' && !inClass && p.Src[p.At-1] != '\\' {
			break
		}
	}
	if p.At >= len(p.Src) || p.Src[p.At] != '/' {
		p.At = from
		p.Fail("missing / at the end of a pattern")
		return regex.Empty
	}
	text := p.Src[from+1 : p.At]
	p.At++
	var s regex.Syntax
	for p.At < len(p.Src) && p.Src[p.At] >= 'a' && p.Src[p.At] <= 'z' {
		switch p.Src[p.At] {
		case 'i':
			s.IgnoreCase = true
		case 's':
			s.DotAll = true
		case 'u':
		default:
			p.Refuse("the flag " + p.Src[p.At:p.At+1] + " of a pattern")
			return regex.Empty
		}
		p.At++
	}
	back := p.At
	p.At = from
	x := p.pattern(text, s)
	if p.Err == nil {
		p.At = back
	}
	return x
}

// token reads <text> and <[ids]>.
func (p *parser) token() *rules.Expr {
	at := p.At
	end := strings.IndexByte(p.Src[at:], '>')
	if end < 0 {
		p.Fail("missing >")
		return nil
	}
	inner := p.Src[at+1 : at+end]
	p.At += end + 1
	symbol := func(s cfg.Sym) *rules.Expr { return &rules.Expr{Kind: rules.Symbol, At: at, Sym: s} }
	list, bracketed := strings.CutPrefix(inner, "[")
	if !bracketed {
		id, ok := p.h.Special("<" + inner + ">")
		if !ok {
			p.At = at
			p.Fail("there is no token <%s>", inner)
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
			p.At = at
			p.Fail("<[…]> without the ids of tokens")
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
	at := p.At
	d := json.NewDecoder(strings.NewReader(p.Src[p.At:]))
	var schema json.RawMessage
	if err := d.Decode(&schema); err != nil {
		p.Fail("%%json without a schema")
		return nil
	}
	p.At += int(d.InputOffset())
	s, err := p.h.Schema(string(schema))
	var e *cfg.Error
	if errors.As(err, &e) && p.Err == nil {
		copied := *e
		at := rules.Source(p.Src).Fail("", at, "")
		copied.Line, copied.Column = at.Line, at.Column
		copied.Reason = "in the schema, at " + e.Pointer + ": " + e.Reason
		p.Err = &copied
	} else if err != nil && p.Err == nil {
		p.Err = err
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
			p.At = max(strings.Index(p.Src, name), 0)
			p.Error(cfg.GrammarUndefined, "there is no terminal common.%s", name)
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
