package chattemplate

import (
	"math/big"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// FromJSON reads a JSON text as Python's json.loads does: keys keep their order (a repeated key its first
// place and last value), ints stay ints of any size up to 4300 digits, floats stay floats. A lone surrogate
// or invalid UTF-8 becomes U+FFFD. Nesting deeper than 256 is an error, and so are more than a million values; NaN and Infinity are not JSON.
func FromJSON(raw []byte) (Value, error) {
	d := &jsonDecoder{src: string(raw)}
	v, err := d.value(0)
	if err != nil {
		return Value{}, err
	}
	d.space()
	if d.pos < len(d.src) {
		return Value{}, d.errorf("unexpected data after the value")
	}
	return v, nil
}

type jsonDecoder struct {
	src    string
	pos    int
	values int
}

func (d *jsonDecoder) errorf(what string) error {
	return errorf("invalid JSON at byte %d: %s", d.pos, what)
}

func (d *jsonDecoder) space() {
	for d.pos < len(d.src) {
		switch d.src[d.pos] {
		case ' ', '\t', '\n', '\r':
			d.pos++
		default:
			return
		}
	}
}

// next returns the next byte that is not white space without taking it, 0 at the end.
func (d *jsonDecoder) next() byte {
	d.space()
	if d.pos < len(d.src) {
		return d.src[d.pos]
	}
	return 0
}

func (d *jsonDecoder) value(depth int) (Value, error) {
	if depth > maxJSONDepth {
		return Value{}, d.errorf("nested too deeply")
	}
	if d.values++; d.values > maxJSONValues {
		return Value{}, d.errorf("too many values")
	}
	switch c := d.next(); {
	case c == '{':
		return d.object(depth)
	case c == '[':
		return d.array(depth)
	case c == '"':
		s, err := d.string()
		return strValue(s), err
	case c == '-' || isDecimal(c):
		return d.number()
	}
	for _, word := range [...]struct {
		text  string
		value Value
	}{{"true", Bool(true)}, {"false", Bool(false)}, {"null", None()}} {
		if strings.HasPrefix(d.src[d.pos:], word.text) {
			d.pos += len(word.text)
			return word.value, nil
		}
	}
	return Value{}, d.errorf("expected a value")
}

func (d *jsonDecoder) object(depth int) (Value, error) {
	m := NewMap()
	d.pos++
	if d.next() == '}' {
		d.pos++
		return m.Value(), nil
	}
	for {
		if d.next() != '"' {
			return Value{}, d.errorf("expected a key")
		}
		key, err := d.string()
		if err != nil {
			return Value{}, err
		}
		if d.next() != ':' {
			return Value{}, d.errorf("expected ':'")
		}
		d.pos++
		value, err := d.value(depth + 1)
		if err != nil {
			return Value{}, err
		}
		m.Set(key, value)
		switch d.next() {
		case ',':
			d.pos++
		case '}':
			d.pos++
			return m.Value(), nil
		default:
			return Value{}, d.errorf("expected ',' or '}'")
		}
	}
}

func (d *jsonDecoder) array(depth int) (Value, error) {
	var items []Value
	d.pos++
	if d.next() == ']' {
		d.pos++
		return listValue(nil), nil
	}
	for {
		v, err := d.value(depth + 1)
		if err != nil {
			return Value{}, err
		}
		items = append(items, v)
		switch d.next() {
		case ',':
			d.pos++
		case ']':
			d.pos++
			return listValue(items), nil
		default:
			return Value{}, d.errorf("expected ',' or ']'")
		}
	}
}

func (d *jsonDecoder) digits() bool {
	start := d.pos
	for d.pos < len(d.src) && isDecimal(d.src[d.pos]) {
		d.pos++
	}
	return d.pos > start
}

func (d *jsonDecoder) accept(set string) bool {
	if d.pos < len(d.src) && strings.IndexByte(set, d.src[d.pos]) >= 0 {
		d.pos++
		return true
	}
	return false
}

func (d *jsonDecoder) number() (Value, error) {
	start, float := d.pos, false
	d.accept("-")
	if !d.accept("0") && !d.digits() {
		return Value{}, d.errorf("expected a digit")
	}
	if d.accept(".") {
		float = true
		if !d.digits() {
			return Value{}, d.errorf("expected a digit")
		}
	}
	if d.accept("eE") {
		float = true
		d.accept("+-")
		if !d.digits() {
			return Value{}, d.errorf("expected a digit")
		}
	}
	text := d.src[start:d.pos]
	if float {
		// Out of range is infinity, as in Python; the text is a number.
		f, _ := strconv.ParseFloat(text, 64)
		return floatValue(f), nil
	}
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return intValue(n), nil
	}
	if len(text) > maxDigits {
		return Value{}, d.errorf("integer has too many digits")
	}
	n, _ := new(big.Int).SetString(text, 10)
	return bigValue(n), nil
}

func (d *jsonDecoder) string() (string, error) {
	d.pos++
	start := d.pos
	for d.pos < len(d.src) {
		switch c := d.src[d.pos]; {
		case c == '"':
			s := d.src[start:d.pos]
			d.pos++
			if !utf8.ValidString(s) {
				s = strings.ToValidUTF8(s, "\uFFFD")
			}
			return s, nil
		case c == '\\':
			return d.escaped(start)
		case c < ' ':
			return "", d.errorf("control character in string")
		}
		d.pos++
	}
	return "", d.errorf("string is not closed")
}

// escaped reads a string from the first backslash on; start is where its text begins.
func (d *jsonDecoder) escaped(start int) (string, error) {
	out := []byte(d.src[start:d.pos])
	for d.pos < len(d.src) {
		c := d.src[d.pos]
		d.pos++
		switch {
		case c == '"':
			return strings.ToValidUTF8(string(out), "\uFFFD"), nil
		case c < ' ':
			return "", d.errorf("control character in string")
		case c != '\\':
			out = append(out, c)
			continue
		}
		if d.pos == len(d.src) {
			break
		}
		c = d.src[d.pos]
		d.pos++
		if i := strings.IndexByte(`"\/bfnrt`, c); i >= 0 {
			out = append(out, "\"\\/\b\f\n\r\t"[i])
			continue
		}
		if c != 'u' {
			return "", d.errorf("invalid escape in string")
		}
		r, ok := d.hex4()
		if !ok {
			return "", d.errorf("invalid \\u escape in string")
		}
		if utf16.IsSurrogate(r) && strings.HasPrefix(d.src[d.pos:], `\u`) {
			d.pos += 2
			low, ok := d.hex4()
			if !ok {
				return "", d.errorf("invalid \\u escape in string")
			}
			if pair := utf16.DecodeRune(r, low); pair != utf8.RuneError {
				r = pair
			} else {
				out = utf8.AppendRune(out, utf8.RuneError)
				d.pos -= 6
				continue
			}
		}
		out = utf8.AppendRune(out, r)
	}
	return "", d.errorf("string is not closed")
}

func (d *jsonDecoder) hex4() (rune, bool) {
	if d.pos+4 > len(d.src) {
		return 0, false
	}
	n, err := strconv.ParseUint(d.src[d.pos:d.pos+4], 16, 32)
	if err != nil {
		return 0, false
	}
	d.pos += 4
	return rune(n), true
}
