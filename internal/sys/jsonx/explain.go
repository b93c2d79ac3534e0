package jsonx

import (
	"bytes"
	"errors"

	"github.com/go-json-experiment/json/jsontext"
)

// separator returns the comma or colon before the next value, 0 where there is none, and the offset
// of the byte after both it and white space.
func (r *Reader) separator() (sep byte, at int) {
	at = r.space(r.Offset())
	if at < len(r.data) && (r.data[at] == ',' || r.data[at] == ':') {
		return r.data[at], r.space(at + 1)
	}
	return 0, at
}

func (r *Reader) space(at int) int {
	for at < len(r.data) {
		switch r.data[at] {
		case ' ', '\t', '\n', '\r':
			at++
		default:
			return at
		}
	}
	return at
}

// explain says what is wrong where the decoder stopped. The decoder's state is the one before the
// fault; its own error gives the place inside a string.
func (r *Reader) explain(err error) error {
	var fault *jsontext.SyntacticError
	inside := -1
	if errors.As(err, &fault) {
		inside = int(fault.ByteOffset)
	}
	sep, at := r.separator()
	if errors.Is(err, jsontext.ErrDuplicateName) {
		return errorAt(at, "duplicate key %q", clip(fault.JSONPointer.LastToken()))
	}
	switch kind, n := r.dec.StackIndex(r.dec.StackDepth()); {
	case kind == '{' && n%2 == 1 && sep != ':':
		return errorAt(at, "expected : after a key")
	case kind == '{' && n%2 == 0 && n > 0 && sep != ',':
		return errorAt(at, "expected , or } in an object")
	case kind == '{' && n%2 == 0 && n > 0 && r.at(at) != '"':
		return errorAt(at, "expected a key in quotes after a comma")
	case kind == '{' && n == 0 && (sep != 0 || r.at(at) != '"'):
		return errorAt(at, "expected a key in quotes")
	case kind == '[' && n > 0 && sep != ',':
		return errorAt(at, "expected , or ] in an array")
	case kind != '{' && n == 0 && sep != 0:
		return errorAt(at, "unexpected character %q", rune(sep))
	}
	return r.badValue(at, inside, err)
}

// badValue says what is wrong with the value at an offset.
func (r *Reader) badValue(at, inside int, err error) error {
	rest := r.data[at:]
	for _, word := range []string{"NaN", "Infinity", "-Infinity"} {
		if bytes.HasPrefix(rest, []byte(word)) {
			return errorAt(at, "%s is not a JSON number", word)
		}
	}
	switch c := r.at(at); {
	case len(rest) == 0:
		return errorAt(at, "unexpected end")
	case c == '"':
		return r.badText(at, inside)
	case c == '-' || '0' <= c && c <= '9':
		return errorAt(max(at, inside), "expected a digit")
	case c == '{' || c == '[':
		return errorAt(at, "%w", err)
	default:
		return errorAt(at, "unexpected character %q", rune(c))
	}
}

// badText says what is wrong at an offset inside the string that starts at another.
func (r *Reader) badText(start, at int) error {
	if at <= start || at >= len(r.data) {
		return errorAt(len(r.data), "unexpected end in a string")
	}
	rest := r.data[at:]
	switch c := rest[0]; {
	case c < 0x20:
		return errorAt(at, "control character %#02x in a string", c)
	case c != '\\':
		return errorAt(start, "invalid UTF-8 in the string")
	case len(rest) < 2:
		return errorAt(at, "unexpected end in a string")
	case rest[1] != 'u':
		return errorAt(at, "unknown escape \\%c", rune(rest[1]))
	case !isUnicodeEscape(rest):
		return errorAt(at, "\\u needs four hexadecimal digits")
	}
	return errorAt(at, "lone surrogate %s", rest[:6])
}

func isUnicodeEscape(b []byte) bool {
	if len(b) < 6 {
		return false
	}
	return len(bytes.Trim(b[2:6], "0123456789abcdefABCDEF")) == 0
}

// at returns a byte of the text, 0 at its end.
func (r *Reader) at(i int) byte {
	if i < len(r.data) {
		return r.data[i]
	}
	return 0
}

// clip shortens a name from the text before it goes into a message.
func clip(s string) string {
	const most = 80
	if len(s) <= most {
		return s
	}
	return string(bytes.ToValidUTF8([]byte(s[:most]), nil)) + "…"
}
