package schema

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/eagleray/eagleray/internal/sys/jsonx"
	"github.com/eagleray/eagleray/internal/text/constrain/cfg"
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

// parser makes values of what a jsonx.Reader reads.
type parser struct {
	*jsonx.Reader
	text  string
	lim   Limits
	depth int // of the array or object that is being read
	left  int // values that there may still be
}

// parse reads a text of JSON, of so many values: one value, no key twice in one object, valid
// UTF-8, no lone surrogates. Nesting beyond lim.Depth and more than lim.Values values are errors.
func parse(text string, lim Limits) (root *value, values int, err error) {
	p := &parser{text: text, lim: lim, left: lim.Values}
	root = new(value)
	// The parser counts levels and values, and finds names that stand twice, by itself.
	err = jsonx.Read([]byte(text), jsonx.Limits{Depth: lim.Depth + 1, Members: lim.Values,
		Duplicates: true}, func(r *jsonx.Reader) error {
		p.Reader = r
		return p.value(root)
	})
	var syntax *jsonx.Error
	switch {
	case errors.As(err, &syntax):
		return nil, 0, p.fail(cfg.SchemaInvalid, syntax.Offset, "%v", syntax.Err)
	case err != nil:
		return nil, 0, err
	}
	return root, lim.Values - p.left, nil
}

// fail is the error of JSON that cannot be read: its place is its line and column.
func (p *parser) fail(code string, at int, format string, args ...any) error {
	before := p.text[:at]
	return &cfg.Error{Code: code, Subject: "JSON", Reason: fmt.Sprintf("line %d, column %d: %s",
		1+strings.Count(before, "\n"), at-strings.LastIndexByte(before, '\n'),
		fmt.Sprintf(format, args...))}
}

// value reads v, whose parent and token are set.
func (p *parser) value(v *value) (err error) {
	if p.left--; p.left < 0 {
		return p.fail(cfg.SchemaTooComplex, p.Start(), "the schema has too many values")
	}
	switch p.Kind() {
	case '{':
		v.kind = kObject
		return p.nested(func() error { return p.object(v) })
	case '[':
		v.kind = kArray
		return p.nested(func() error { return p.array(v) })
	case '"':
		v.kind = kString
		v.text, err = p.Text()
		return err
	}
	raw, err := p.Raw()
	if err != nil {
		return err
	}
	switch raw[0] {
	case 'n':
		v.kind = kNull
	case 't':
		v.kind = kTrue
	case 'f':
		v.kind = kFalse
	default:
		v.kind, v.text = kNumber, string(raw)
	}
	return nil
}

// nested reads an array or object.
func (p *parser) nested(read func() error) error {
	if p.depth == p.lim.Depth {
		return p.fail(cfg.SchemaTooComplex, p.Start(), "nested deeper than %d levels", p.lim.Depth)
	}
	p.depth++
	err := read()
	p.depth--
	return err
}

func (p *parser) object(v *value) error {
	v.index = map[string]int{}
	return p.Object(func(name string) error {
		if _, twice := v.index[name]; twice {
			return p.fail(cfg.SchemaInvalid, p.Offset(), "the key %q stands twice in one object",
				clip(name))
		}
		member := &value{parent: v, token: name}
		v.index[name] = len(v.list)
		v.names = append(v.names, name)
		v.list = append(v.list, member)
		return p.value(member)
	})
}

func (p *parser) array(v *value) error {
	return p.Array(func(i int) error {
		element := &value{parent: v, token: strconv.Itoa(i)}
		v.list = append(v.list, element)
		return p.value(element)
	})
}

// clip shortens a name for a message.
func clip(s string) string {
	const most = 60
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}
