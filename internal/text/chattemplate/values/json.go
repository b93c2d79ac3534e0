package values

import (
	"bytes"
	"errors"
	"io"
	"math/big"
	"strconv"
	"sync"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

const (
	maxJSONDepth  = 256     // of JSON given to FromJSON
	maxJSONValues = 1 << 20 // of JSON given to FromJSON: each takes some 50 times its shortest text
)

// FromJSON reads a JSON text as Python's json.loads does: keys keep their order (a repeated key its
// first place and last value), ints stay ints of any size up to 4300 digits, floats stay floats. A
// lone surrogate or invalid UTF-8 becomes U+FFFD. Nesting deeper than 256 is an error, and so are
// more than a million values; NaN and Infinity are not JSON.
func FromJSON(raw []byte) (Value, error) {
	if !utf8.Valid(raw) {
		raw = bytes.ToValidUTF8(raw, []byte("\uFFFD"))
	}
	d := jsonDecoders.Get().(*jsonDecoder)
	defer d.free()
	d.reset(raw)
	v, err := d.value(0)
	if err != nil {
		return Value{}, err
	}
	if _, err := d.dec.ReadToken(); err != io.EOF {
		return Value{}, d.errorf("unexpected data after the value")
	}
	return v, nil
}

type jsonDecoder struct {
	src    string // the text; strings without escapes are parts of it
	buf    bytes.Buffer
	dec    jsontext.Decoder
	values int
}

// jsonDecoders keeps the decoders' stacks, which a short text would otherwise spend its time on.
var jsonDecoders = sync.Pool{New: func() any { return new(jsonDecoder) }}

func (d *jsonDecoder) reset(raw []byte) {
	d.src, d.values = string(raw), 0
	d.buf = *bytes.NewBuffer(raw)
	d.dec.Reset(&d.buf,
		jsontext.AllowDuplicateNames(true),
		jsontext.AllowInvalidUTF8(true)) // admits lone surrogates
}

// free gives the decoder back and forgets its text.
func (d *jsonDecoder) free() {
	d.reset(nil)
	jsonDecoders.Put(d)
}

func (d *jsonDecoder) errorf(what string) error {
	return Errorf("invalid JSON at byte %d: %s", d.dec.InputOffset(), what)
}

// fault is an error of the decoder.
func (d *jsonDecoder) fault(err error) error {
	var syntax *jsontext.SyntacticError
	if errors.As(err, &syntax) && syntax.Err != nil {
		return Errorf("invalid JSON at byte %d: %s", syntax.ByteOffset, syntax.Err)
	}
	return d.errorf("unexpected end")
}

func (d *jsonDecoder) value(depth int) (Value, error) {
	if depth > maxJSONDepth {
		return Value{}, d.errorf("nested too deeply")
	}
	if d.values++; d.values > maxJSONValues {
		return Value{}, d.errorf("too many values")
	}
	switch d.dec.PeekKind() {
	case '{':
		return d.object(depth)
	case '[':
		return d.array(depth)
	}
	text, err := d.dec.ReadValue()
	if err != nil {
		return Value{}, d.fault(err)
	}
	switch text[0] {
	case '"':
		return Str(d.string(text)), nil
	case 't':
		return Bool(true), nil
	case 'f':
		return Bool(false), nil
	case 'n':
		return None(), nil
	}
	return d.number(text)
}

func (d *jsonDecoder) object(depth int) (Value, error) {
	if _, err := d.dec.ReadToken(); err != nil {
		return Value{}, d.fault(err)
	}
	m := NewMap()
	for d.dec.PeekKind() != '}' {
		name, err := d.dec.ReadValue()
		if err != nil {
			return Value{}, d.fault(err)
		}
		key := d.string(name)
		value, err := d.value(depth + 1)
		if err != nil {
			return Value{}, err
		}
		m.Set(key, value)
	}
	if _, err := d.dec.ReadToken(); err != nil {
		return Value{}, d.fault(err)
	}
	return m.Value(), nil
}

func (d *jsonDecoder) array(depth int) (Value, error) {
	if _, err := d.dec.ReadToken(); err != nil {
		return Value{}, d.fault(err)
	}
	var items []Value
	for d.dec.PeekKind() != ']' {
		v, err := d.value(depth + 1)
		if err != nil {
			return Value{}, err
		}
		items = append(items, v)
	}
	if _, err := d.dec.ReadToken(); err != nil {
		return Value{}, d.fault(err)
	}
	return NewList(items), nil
}

// number reads the text of a number.
func (d *jsonDecoder) number(text []byte) (Value, error) {
	if bytes.ContainsAny(text, ".eE") {
		// Out of range is infinity, as in Python; the text is a number.
		f, _ := strconv.ParseFloat(string(text), 64)
		return Float(f), nil
	}
	if n, err := strconv.ParseInt(string(text), 10, 64); err == nil {
		return Int(n), nil
	}
	if len(text) > MaxDigits {
		return Value{}, d.errorf("integer has too many digits")
	}
	n, _ := new(big.Int).SetString(string(text), 10)
	return Big(n), nil
}

// string decodes the string or name that was just read.
func (d *jsonDecoder) string(quoted []byte) string {
	if bytes.IndexByte(quoted, '\\') < 0 {
		end := int(d.dec.InputOffset())
		return d.src[end-len(quoted)+1 : end-1]
	}
	// The only error is a lone surrogate, which is replaced.
	s, _ := jsontext.AppendUnquote(make([]byte, 0, len(quoted)), quoted)
	return string(s)
}
