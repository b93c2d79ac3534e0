// Package lexer splits a template into tokens.
package lexer

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/eagleray/eagleray/internal/text/chattemplate/pytext"
	"github.com/eagleray/eagleray/internal/text/chattemplate/values"
)

// Kind is the kind of a token.
type Kind uint8

const (
	EOF Kind = iota
	Data
	VariableBegin
	VariableEnd
	tokBlockBegin
	BlockEnd
	Name
	String
	Integer
	Float
	Operator
)

// Token is a piece of a template.
type Token struct {
	Kind Kind
	Text string
	Line int
	// Column is the byte of the line, from 1, at which it begins.
	Column int
}

// Is tells whether the token is that operator.
func (t Token) Is(op string) bool { return t.Kind == Operator && t.Text == op }

// Named tells whether the token is that name.
func (t Token) Named(n string) bool { return t.Kind == Name && t.Text == n }

// Describe names the token in a message.
func (t Token) Describe() string {
	switch t.Kind {
	case EOF:
		return "end of template"
	case Data:
		return "template text"
	case VariableBegin:
		return "begin of print statement"
	case VariableEnd:
		return "end of print statement"
	case tokBlockBegin:
		return "begin of statement block"
	case BlockEnd:
		return "end of statement block"
	case String:
		return "string"
	default:
		return "'" + t.Text + "'"
	}
}

// lexer splits a template as jinja2's lexer does with trim_blocks and lstrip_blocks set.
type lexer struct {
	src  string
	pos  int
	line int
	// lineBegin is the position of the line's first byte.
	lineBegin int
	tokens    []Token
	// lineStart: the last thing read ended a line, so a tag that follows is the first on its line.
	lineStart bool
}

// Lex splits a template into tokens, the last of which is EOF.
func Lex(source string) ([]Token, error) {
	if !utf8.ValidString(source) {
		source = strings.ToValidUTF8(source, "\uFFFD")
	}
	source = strings.ReplaceAll(source, "\r\n", "\n")
	source = strings.ReplaceAll(source, "\r", "\n")
	source = strings.TrimSuffix(source, "\n")
	l := &lexer{src: source, line: 1, lineStart: true}
	for l.pos < len(l.src) {
		if err := l.root(); err != nil {
			return nil, values.AtColumn(err, l.line, l.column())
		}
	}
	l.emit(EOF, "")
	return l.tokens, nil
}

func (l *lexer) emit(k Kind, text string) {
	l.tokens = append(l.tokens, Token{k, text, l.line, l.column()})
}

// column is the byte of the line that is read next, from 1.
func (l *lexer) column() int { return l.pos - l.lineBegin + 1 }

// advance moves to the absolute position end and counts the lines passed.
func (l *lexer) advance(end int) {
	passed := l.src[l.pos:end]
	l.line += strings.Count(passed, "\n")
	if last := strings.LastIndexByte(passed, '\n'); last >= 0 {
		l.lineBegin = l.pos + last + 1
	}
	if passed != "" {
		l.lineStart = passed[len(passed)-1] == '\n'
	}
	l.pos = end
}

// root reads text up to the next tag, and the tag.
func (l *lexer) root() error {
	begin := l.nextTag()
	if begin < 0 {
		l.emit(Data, l.src[l.pos:])
		l.advance(len(l.src))
		return nil
	}
	kind := l.src[begin+1]
	sign := l.sign(begin + 2)
	raw := 0
	if kind == '%' {
		raw = l.rawBegin(begin)
	}
	if text := l.stripText(l.src[l.pos:begin], sign, kind != '{'); text != "" {
		l.emit(Data, text)
	}
	l.advance(begin)
	if raw > 0 {
		l.advance(raw)
		return l.raw()
	}
	after := begin + 2
	if sign != 0 {
		after++
	}
	switch kind {
	case '#':
		l.advance(after)
		return l.comment()
	case '%':
		l.emit(tokBlockBegin, "")
		l.advance(after)
		return l.tag(true)
	default:
		l.emit(VariableBegin, "")
		l.advance(after)
		return l.tag(false)
	}
}

func (l *lexer) nextTag() int {
	for i := l.pos; i < len(l.src)-1; i++ {
		j := strings.IndexByte(l.src[i:], '{')
		if j < 0 || i+j+1 >= len(l.src) {
			return -1
		}
		i += j
		if c := l.src[i+1]; c == '{' || c == '%' || c == '#' {
			return i
		}
	}
	return -1
}

// sign returns the whitespace control character at i, or 0.
func (l *lexer) sign(i int) byte {
	if i < len(l.src) && (l.src[i] == '-' || l.src[i] == '+') {
		return l.src[i]
	}
	return 0
}

// stripText removes the white space before a tag: all of it for '-', what indents the tag for
// lstrip_blocks.
func (l *lexer) stripText(text string, sign byte, lstrip bool) string {
	if sign == '-' {
		return strings.TrimRightFunc(text, pytext.IsSpace)
	}
	if sign == '+' || !lstrip {
		return text
	}
	indent := strings.LastIndexByte(text, '\n') + 1
	if indent == 0 && !l.lineStart {
		return text
	}
	if strings.TrimLeftFunc(text[indent:], pytext.IsSpace) == "" {
		return text[:indent]
	}
	return text
}

func (l *lexer) skipSpace(i int) int {
	return len(l.src) - len(strings.TrimLeftFunc(l.src[i:], pytext.IsSpace))
}

// rawBegin returns the end of the raw tag that begins at i, or 0 if there is none.
func (l *lexer) rawBegin(i int) int {
	i += 2
	if l.sign(i) != 0 {
		i++
	}
	i = l.skipSpace(i)
	if !strings.HasPrefix(l.src[i:], "raw") {
		return 0
	}
	i = l.skipSpace(i + 3)
	if strings.HasPrefix(l.src[i:], "-%}") {
		return l.skipSpace(i + 3)
	}
	if strings.HasPrefix(l.src[i:], "%}") {
		return i + 2
	}
	return 0
}

func (l *lexer) raw() error {
	start := l.line
	for i := l.pos; ; i++ {
		j := strings.Index(l.src[i:], "{%")
		if j < 0 {
			return values.ErrorAt(start, "missing end of raw directive")
		}
		i += j
		sign := l.sign(i + 2)
		k := i + 2
		if sign != 0 {
			k++
		}
		k = l.skipSpace(k)
		if !strings.HasPrefix(l.src[k:], "endraw") {
			continue
		}
		end := l.blockEnd(l.skipSpace(k + 6))
		if end == 0 {
			continue
		}
		if text := l.stripText(l.src[l.pos:i], sign, true); text != "" {
			l.emit(Data, text)
		}
		l.advance(end)
		return nil
	}
}

// blockEnd returns where the block end that begins at i ends, with the newline trim_blocks removes,
// or 0.
func (l *lexer) blockEnd(i int) int {
	rest := l.src[i:]
	switch {
	case strings.HasPrefix(rest, "+%}"):
		return i + 3
	case strings.HasPrefix(rest, "-%}"):
		return l.skipSpace(i + 3)
	case strings.HasPrefix(rest, "%}\n"):
		return i + 3
	case strings.HasPrefix(rest, "%}"):
		return i + 2
	}
	return 0
}

func (l *lexer) comment() error {
	j := strings.Index(l.src[l.pos:], "#}")
	if j < 0 {
		return values.ErrorAt(l.line, "missing end of comment tag")
	}
	end := l.pos + j + 2
	var sign byte
	if j > 0 {
		sign = l.sign(end - 3)
	}
	switch {
	case sign == '-':
		end = l.skipSpace(end)
	case sign != '+' && end < len(l.src) && l.src[end] == '\n':
		end++
	}
	l.advance(end)
	return nil
}

// tag reads the tokens of a {{ }} or {% %} up to its end.
func (l *lexer) tag(block bool) error {
	var open []byte
	for l.pos < len(l.src) {
		if len(open) == 0 {
			if end := l.tagEnd(block); end > 0 {
				if block {
					l.emit(BlockEnd, "")
				} else {
					l.emit(VariableEnd, "")
				}
				l.advance(end)
				return nil
			}
		}
		r, size := utf8.DecodeRuneInString(l.src[l.pos:])
		switch {
		case pytext.IsSpace(r):
			l.advance(l.pos + size)
		case r >= '0' && r <= '9':
			l.number()
		case isNameRune(r):
			if err := l.name(); err != nil {
				return err
			}
		case r == '\'' || r == '"':
			if err := l.string(byte(r)); err != nil {
				return err
			}
		default:
			op, err := l.operator(&open)
			if err != nil {
				return err
			}
			l.emit(Operator, op)
			l.pos += len(op)
		}
	}
	return nil
}

func (l *lexer) tagEnd(block bool) int {
	if block {
		return l.blockEnd(l.pos)
	}
	if strings.HasPrefix(l.src[l.pos:], "-}}") {
		return l.skipSpace(l.pos + 3)
	}
	if strings.HasPrefix(l.src[l.pos:], "}}") {
		return l.pos + 2
	}
	return 0
}

func isNameRune(r rune) bool {
	if r < utf8.RuneSelf {
		return r == '_' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
	}
	return unicode.IsLetter(r) || unicode.IsDigit(r) || unicode.Is(unicode.Mn, r) ||
		unicode.Is(unicode.Mc, r) || unicode.Is(unicode.Nl, r)
}

func (l *lexer) name() error {
	rest := l.src[l.pos:]
	first, _ := utf8.DecodeRuneInString(rest)
	if unicode.IsDigit(first) || unicode.IsMark(first) {
		return values.ErrorAt(l.line, "invalid character in identifier")
	}
	n := strings.IndexFunc(rest, func(r rune) bool { return !isNameRune(r) })
	if n < 0 {
		n = len(rest)
	}
	l.emit(Name, rest[:n])
	l.pos += n
	return nil
}

func (l *lexer) string(quote byte) error {
	for i := l.pos + 1; i < len(l.src); i++ {
		switch l.src[i] {
		case '\\':
			i++
		case quote:
			text, err := unescape(l.src[l.pos+1:i], l.line)
			if err != nil {
				return err
			}
			l.emit(String, text)
			l.advance(i + 1)
			return nil
		}
	}
	return values.ErrorAt(l.line, "string is not closed")
}

var operators = [...]string{"//", "**", "==", "!=", ">=", "<=",
	"+", "-", "/", "*", "%", "~", "[", "]", "(", ")", "{", "}",
	">", "<", "=", ".", ":", "|", ",", ";"}

func (l *lexer) operator(open *[]byte) (string, error) {
	rest := l.src[l.pos:]
	for _, op := range operators {
		if !strings.HasPrefix(rest, op) {
			continue
		}
		switch op {
		case "(":
			*open = append(*open, ')')
		case "[":
			*open = append(*open, ']')
		case "{":
			*open = append(*open, '}')
		case ")", "]", "}":
			n := len(*open)
			if n == 0 {
				return "", values.ErrorAt(l.line, "unexpected '%s'", op)
			}
			if want := (*open)[n-1]; want != op[0] {
				return "", values.ErrorAt(l.line, "unexpected '%s', expected '%c'", op, want)
			}
			*open = (*open)[:n-1]
		}
		return op, nil
	}
	r, _ := utf8.DecodeRuneInString(rest)
	return "", values.ErrorAt(l.line, "unexpected char %q", r)
}

// digits returns the end of a run of digits, single underscores between them allowed, that begins
// at i.
func (l *lexer) digits(i int, ok func(byte) bool) int {
	for i < len(l.src) {
		if ok(l.src[i]) {
			i++
			continue
		}
		if l.src[i] == '_' && i+1 < len(l.src) && ok(l.src[i+1]) {
			i += 2
			continue
		}
		break
	}
	return i
}

// number reads an integer or a float; it begins at a digit.
func (l *lexer) number() {
	end := l.digits(l.pos, pytext.IsDecimal)
	afterDot := l.pos > 0 && l.src[l.pos-1] == '.'
	if !afterDot {
		i, float := end, false
		if i+1 < len(l.src) && l.src[i] == '.' && pytext.IsDecimal(l.src[i+1]) {
			i, float = l.digits(i+1, pytext.IsDecimal), true
		}
		if i < len(l.src) && (l.src[i] == 'e' || l.src[i] == 'E') {
			j := i + 1
			if j < len(l.src) && (l.src[j] == '+' || l.src[j] == '-') {
				j++
			}
			if j < len(l.src) && pytext.IsDecimal(l.src[j]) {
				i, float = l.digits(j, pytext.IsDecimal), true
			}
		}
		if float {
			l.emit(Float, strings.ReplaceAll(l.src[l.pos:i], "_", ""))
			l.pos = i
			return
		}
	}
	if l.src[l.pos] == '0' {
		end = l.zeroNumber()
	}
	l.emit(Integer, strings.ReplaceAll(l.src[l.pos:end], "_", ""))
	l.pos = end
}

// zeroNumber returns the end of an integer that begins with 0: 0x, 0o, 0b, or zeros only.
func (l *lexer) zeroNumber() int {
	if l.pos+1 < len(l.src) {
		var ok func(byte) bool
		switch l.src[l.pos+1] | 0x20 {
		case 'x':
			ok = func(c byte) bool {
				return pytext.IsDecimal(c) || c|0x20 >= 'a' && c|0x20 <= 'f'
			}
		case 'o':
			ok = func(c byte) bool { return c >= '0' && c <= '7' }
		case 'b':
			ok = func(c byte) bool { return c == '0' || c == '1' }
		}
		if ok != nil {
			if end := l.digits(l.pos+2, ok); end > l.pos+2 {
				return end
			}
		}
	}
	return l.digits(l.pos+1, func(c byte) bool { return c == '0' })
}
