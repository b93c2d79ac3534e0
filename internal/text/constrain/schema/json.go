package schema

import (
	"fmt"
	"github.com/eagleray/eagleray/internal/text/constrain/cfg"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// kind says what a JSON value is.
type kind uint8

const (
	kNull kind = iota
	kFalse
	kTrue
	kNumber
	kString
	kArray
	kObject
)

// value is one JSON value of the schema's text. The members of an object keep the order of the
// text; a number keeps its spelling.
type value struct {
	kind kind
	// text is the content of a string, or the spelling of a number.
	text string
	// list holds the elements of an array, or the values of an object's members.
	list []*value
	// names are the keys of an object's members, as list has them.
	names []string
	index map[string]int
	// parent and token say where the value stands: its JSON pointer.
	parent *value
	token  string
}

// get returns the member of an object, nil if there is none.
func (v *value) get(name string) *value {
	if v == nil || v.kind != kObject {
		return nil
	}
	if i, ok := v.index[name]; ok {
		return v.list[i]
	}
	return nil
}

// pointer returns the JSON pointer of the value within the text.
func (v *value) pointer() string {
	var tokens []string
	for ; v != nil && v.parent != nil; v = v.parent {
		tokens = append(tokens, v.token)
	}
	var b strings.Builder
	for i := len(tokens) - 1; i >= 0; i-- {
		b.WriteByte('/')
		b.WriteString(escapeToken(tokens[i]))
	}
	return b.String()
}

// escapeToken spells a key as a token of a JSON pointer.
func escapeToken(s string) string {
	return strings.ReplaceAll(strings.ReplaceAll(s, "~", "~0"), "/", "~1")
}

// isTrue and isFalse say whether the value is there and is that literal.
func (v *value) isTrue() bool  { return v != nil && v.kind == kTrue }
func (v *value) isFalse() bool { return v != nil && v.kind == kFalse }

// reader parses JSON strictly (RFC 8259): one value, no key twice in one object, valid UTF-8, no
// lone surrogates.
type reader struct {
	text   string
	at     int
	depth  int
	left   int
	deep   int
	failed *cfg.Error
}

// parse reads a text of JSON, of so many values. Nesting beyond lim.Depth and more than lim.Values
// values are errors.
func parse(text string, lim Limits) (root *value, values int, err error) {
	r := &reader{text: text, left: lim.Values, deep: lim.Depth}
	v := r.value(nil, "")
	if r.failed == nil {
		r.space()
		if r.at < len(text) {
			r.fail("more text after the schema's end")
		}
	}
	if r.failed != nil {
		return nil, 0, r.failed
	}
	return v, lim.Values - r.left, nil
}

// fail records the first error; the pointer of JSON that cannot be read is its line and column.
func (r *reader) fail(format string, args ...any) *value {
	if r.failed == nil {
		at := min(r.at, len(r.text))
		before := r.text[:at]
		line := 1 + strings.Count(before, "\n")
		col := at - strings.LastIndexByte(before, '\n')
		r.failed = &cfg.Error{Code: cfg.SchemaInvalid, Subject: "JSON", Reason: fmt.Sprintf(
			"line %d, column %d: %s", line, col, fmt.Sprintf(format, args...))}
	}
	return nil
}

func (r *reader) space() {
	for r.at < len(r.text) {
		switch r.text[r.at] {
		case ' ', '\t', '\n', '\r':
			r.at++
		default:
			return
		}
	}
}

// take consumes a byte if it is next after white space.
func (r *reader) take(c byte) bool {
	r.space()
	if r.at < len(r.text) && r.text[r.at] == c {
		r.at++
		return true
	}
	return false
}

func (r *reader) value(parent *value, token string) *value {
	r.space()
	if r.at >= len(r.text) {
		return r.fail("a value is missing")
	}
	if r.left--; r.left < 0 {
		r.fail("the schema has too many values")
		r.failed.Code = cfg.SchemaTooComplex
		return nil
	}
	v := &value{parent: parent, token: token}
	switch c := r.text[r.at]; {
	case c == '{' || c == '[':
		if r.depth++; r.depth > r.deep {
			r.fail("nested deeper than %d levels", r.deep)
			r.failed.Code = cfg.SchemaTooComplex
			return nil
		}
		r.at++
		if c == '{' {
			v.kind = kObject
			r.object(v)
		} else {
			v.kind = kArray
			r.array(v)
		}
		r.depth--
	case c == '"':
		v.kind, v.text = kString, r.str()
	case c == '-' || c >= '0' && c <= '9':
		v.kind, v.text = kNumber, r.number()
	default:
		for word, k := range literals {
			if strings.HasPrefix(r.text[r.at:], word) {
				r.at += len(word)
				v.kind = k
				return v
			}
		}
		return r.fail("no JSON value begins here")
	}
	if r.failed != nil {
		return nil
	}
	return v
}

var literals = map[string]kind{"null": kNull, "true": kTrue, "false": kFalse}

func (r *reader) object(v *value) {
	v.index = map[string]int{}
	if r.take('}') {
		return
	}
	for r.failed == nil {
		r.space()
		if r.at >= len(r.text) || r.text[r.at] != '"' {
			r.fail("a key is missing")
			return
		}
		name := r.str()
		if r.failed != nil {
			return
		}
		if _, twice := v.index[name]; twice {
			r.fail("the key %q stands twice in one object", clip(name))
			return
		}
		if !r.take(':') {
			r.fail("a colon is missing")
			return
		}
		member := r.value(v, name)
		v.index[name] = len(v.list)
		v.names = append(v.names, name)
		v.list = append(v.list, member)
		if r.failed != nil || r.take('}') {
			return
		}
		if !r.take(',') {
			r.fail("a comma or the object's end is missing")
		}
	}
}

func (r *reader) array(v *value) {
	if r.take(']') {
		return
	}
	for r.failed == nil {
		v.list = append(v.list, r.value(v, strconv.Itoa(len(v.list))))
		if r.failed != nil || r.take(']') {
			return
		}
		if !r.take(',') {
			r.fail("a comma or the array's end is missing")
		}
	}
}

// digits consumes a run of digits and says whether there was one.
func (r *reader) digits() bool {
	from := r.at
	for r.at < len(r.text) && r.text[r.at] >= '0' && r.text[r.at] <= '9' {
		r.at++
	}
	return r.at > from
}

// is consumes the byte at the position if it is one of set.
func (r *reader) is(set string) bool {
	if r.at < len(r.text) && strings.IndexByte(set, r.text[r.at]) >= 0 {
		r.at++
		return true
	}
	return false
}

func (r *reader) number() string {
	from := r.at
	r.is("-")
	ok := r.is("0") || r.digits()
	if ok && r.is(".") {
		ok = r.digits()
	}
	if ok && r.is("eE") {
		r.is("+-")
		ok = r.digits()
	}
	if !ok {
		r.fail("a number is not complete")
	}
	return r.text[from:r.at]
}

// str reads a string from its opening quote on and returns its content.
func (r *reader) str() string {
	r.at++
	from := r.at
	for r.at < len(r.text) && r.text[r.at] != '"' && r.text[r.at] != '\\' {
		if r.text[r.at] < 0x20 {
			r.fail("a control character in a string")
			return ""
		}
		r.at++
	}
	if r.at < len(r.text) && r.text[r.at] == '"' {
		s := r.text[from:r.at]
		r.at++
		return r.checked(s)
	}
	b := []byte(r.text[from:r.at])
	for r.at < len(r.text) {
		switch c := r.text[r.at]; {
		case c == '"':
			r.at++
			return r.checked(string(b))
		case c < 0x20:
			r.fail("a control character in a string")
			return ""
		case c == '\\':
			r.at++
			b = r.escape(b)
			if r.failed != nil {
				return ""
			}
		default:
			b = append(b, c)
			r.at++
		}
	}
	r.fail("a string does not end")
	return ""
}

func (r *reader) checked(s string) string {
	if !utf8.ValidString(s) {
		r.fail("a string is not UTF-8")
	}
	return s
}

// escape reads what follows a backslash.
func (r *reader) escape(b []byte) []byte {
	if r.at >= len(r.text) {
		r.fail("a string does not end")
		return b
	}
	c := r.text[r.at]
	r.at++
	if c != 'u' {
		if i := strings.IndexByte(`"\/bfnrt`, c); i >= 0 {
			return append(b, "\"\\/\b\f\n\r\t"[i])
		}
		r.fail("no escape of JSON's")
		return b
	}
	u, ok := r.hex()
	if ok && utf16.IsSurrogate(u) {
		low := rune(0)
		if ok = strings.HasPrefix(r.text[r.at:], `\u`); ok {
			r.at += 2
			low, ok = r.hex()
		}
		u = utf16.DecodeRune(u, low)
		ok = ok && u != utf8.RuneError
	}
	if !ok {
		r.fail("no character has this escape")
	}
	return utf8.AppendRune(b, u)
}

func (r *reader) hex() (rune, bool) {
	if len(r.text)-r.at < 4 {
		return 0, false
	}
	u, err := strconv.ParseUint(r.text[r.at:r.at+4], 16, 16)
	r.at += 4
	return rune(u), err == nil
}

// clip shortens a name for a message.
func clip(s string) string {
	const most = 60
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}
