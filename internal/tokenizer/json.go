package tokenizer

import (
	"errors"
	"fmt"
	"unicode/utf16"
	"unicode/utf8"
)

// maxJSONDepth bounds nesting, so that a hostile file cannot exhaust the stack.
const maxJSONDepth = 64

var errJSONEnd = errors.New("unexpected end of JSON")

// jsonScanner reads JSON in place. A published vocabulary is 10 MB of short strings, and reading it
// through encoding/json takes several times as long as building every table from it.
// The input must be valid UTF-8.
type jsonScanner struct {
	data []byte
	pos  int
}

func (s *jsonScanner) errorf(format string, args ...any) error {
	return fmt.Errorf("%s at byte %d", fmt.Sprintf(format, args...), s.pos)
}

func (s *jsonScanner) space() {
	for s.pos < len(s.data) {
		switch s.data[s.pos] {
		case ' ', '\n', '\t', '\r':
			s.pos++
		default:
			return
		}
	}
}

// atEnd reports whether only white space is left.
func (s *jsonScanner) atEnd() bool {
	s.space()
	return s.pos >= len(s.data)
}

// peek returns the next byte that is not white space, or 0 at the end. (A zero byte is an error wherever
// it stands, so the two need not be told apart.)
func (s *jsonScanner) peek() byte {
	if s.atEnd() {
		return 0
	}
	return s.data[s.pos]
}

func (s *jsonScanner) expect(c byte) error {
	got := s.peek()
	if got == c {
		s.pos++
		return nil
	}
	if got == 0 {
		return errJSONEnd
	}
	return s.errorf("JSON has %q where %q is expected", got, c)
}

// more advances to the next element of an array or object that closes with end; first says whether
// it would be the first one. It reports false after reading end.
func (s *jsonScanner) more(end byte, first bool) (bool, error) {
	if s.peek() == end {
		s.pos++
		return false, nil
	}
	if first {
		return true, nil
	}
	if err := s.expect(','); err != nil {
		return false, err
	}
	if s.peek() == end {
		return false, s.errorf("JSON has a comma before %q", end)
	}
	return true, nil
}

// text appends the decoded string value at the cursor to dst.
func (s *jsonScanner) text(dst []byte) ([]byte, error) {
	if err := s.expect('"'); err != nil {
		return dst, err
	}
	for {
		start := s.pos
		for s.pos < len(s.data) && s.data[s.pos] != '"' && s.data[s.pos] != '\\' && s.data[s.pos] >= ' ' {
			s.pos++
		}
		dst = append(dst, s.data[start:s.pos]...)
		if s.pos >= len(s.data) {
			return dst, errJSONEnd
		}
		switch c := s.data[s.pos]; {
		case c == '"':
			s.pos++
			return dst, nil
		case c < ' ':
			return dst, s.errorf("JSON string holds the control character %#02x", c)
		}
		var err error
		if dst, err = s.escape(dst); err != nil {
			return dst, err
		}
	}
}

func (s *jsonScanner) escape(dst []byte) ([]byte, error) {
	if s.pos+1 >= len(s.data) {
		return dst, errJSONEnd
	}
	c := s.data[s.pos+1]
	s.pos += 2
	switch c {
	case '"', '\\', '/':
		return append(dst, c), nil
	case 'b':
		return append(dst, '\b'), nil
	case 'f':
		return append(dst, '\f'), nil
	case 'n':
		return append(dst, '\n'), nil
	case 'r':
		return append(dst, '\r'), nil
	case 't':
		return append(dst, '\t'), nil
	case 'u':
		return s.unicodeEscape(dst)
	}
	return dst, s.errorf("JSON string has the unknown escape \\%c", c)
}

func (s *jsonScanner) unicodeEscape(dst []byte) ([]byte, error) {
	r, err := s.hex4()
	if err != nil {
		return dst, err
	}
	if utf16.IsSurrogate(r) {
		if s.pos+1 >= len(s.data) || s.data[s.pos] != '\\' || s.data[s.pos+1] != 'u' {
			return dst, s.errorf("JSON string has half a surrogate pair")
		}
		s.pos += 2
		low, err := s.hex4()
		if err != nil {
			return dst, err
		}
		if r = utf16.DecodeRune(r, low); r == utf8.RuneError {
			return dst, s.errorf("JSON string has a broken surrogate pair")
		}
	}
	return utf8.AppendRune(dst, r), nil
}

func (s *jsonScanner) hex4() (rune, error) {
	if s.pos+4 > len(s.data) {
		return 0, errJSONEnd
	}
	var r rune
	for _, c := range s.data[s.pos : s.pos+4] {
		d := hexDigit(c)
		if d < 0 {
			return 0, s.errorf("JSON string has a broken \\u escape")
		}
		r = r<<4 | rune(d)
	}
	s.pos += 4
	return r, nil
}

// hexDigit returns the value of a hexadecimal digit, or -1.
func hexDigit(c byte) int {
	switch {
	case c >= '0' && c <= '9':
		return int(c - '0')
	case c >= 'a' && c <= 'f':
		return int(c-'a') + 10
	case c >= 'A' && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}

// natural reads a number that must be a plain integer in [0, limit).
func (s *jsonScanner) natural(limit int) (int, error) {
	s.space()
	start := s.pos
	for s.pos < len(s.data) && isNumberByte(s.data[s.pos]) {
		s.pos++
	}
	digits := s.data[start:s.pos]
	if len(digits) == 0 {
		return 0, s.errorf("JSON has no number where one is expected")
	}
	n := 0
	for _, c := range digits {
		if c < '0' || c > '9' {
			return 0, s.errorf("number %.40s is not a whole number in [0, %d)", digits, limit)
		}
		if n = n*10 + int(c-'0'); n >= limit {
			return 0, s.errorf("number %.40s is not in [0, %d)", digits, limit)
		}
	}
	return n, nil
}

func isNumberByte(c byte) bool {
	return c >= '0' && c <= '9' || c == '-' || c == '+' || c == '.' || c == 'e' || c == 'E'
}

// raw skips one value and returns its text. Strings and brackets are followed exactly; the rest is
// left to whoever parses the text.
func (s *jsonScanner) raw() ([]byte, error) {
	s.space()
	start := s.pos
	if err := s.skip(0); err != nil {
		return nil, err
	}
	return s.data[start:s.pos], nil
}

func (s *jsonScanner) skip(depth int) error {
	if depth > maxJSONDepth {
		return s.errorf("JSON is nested more than %d levels deep", maxJSONDepth)
	}
	switch c := s.peek(); c {
	case 0:
		return errJSONEnd
	case '"':
		return s.skipText()
	case '{', '[':
		end := c + 2 // the closing bracket is two code points later in ASCII for both kinds
		s.pos++
		for first := true; ; first = false {
			more, err := s.more(end, first)
			if err != nil || !more {
				return err
			}
			if c == '{' {
				if err := s.skipText(); err != nil {
					return err
				}
				if err := s.expect(':'); err != nil {
					return err
				}
			}
			if err := s.skip(depth + 1); err != nil {
				return err
			}
		}
	}
	start := s.pos
	for s.pos < len(s.data) && (isNumberByte(s.data[s.pos]) || s.data[s.pos] >= 'a' && s.data[s.pos] <= 'z') {
		s.pos++
	}
	if s.pos == start {
		return s.errorf("JSON has the stray character %q", s.data[s.pos])
	}
	return nil
}

func (s *jsonScanner) skipText() error {
	if err := s.expect('"'); err != nil {
		return err
	}
	for s.pos < len(s.data) {
		switch s.data[s.pos] {
		case '"':
			s.pos++
			return nil
		case '\\':
			s.pos++
		}
		s.pos++
	}
	return errJSONEnd
}

// object calls field for every key of the object at the cursor; field must consume the value.
func (s *jsonScanner) object(field func(key string) error) error {
	if err := s.expect('{'); err != nil {
		return err
	}
	var key []byte
	for first := true; ; first = false {
		more, err := s.more('}', first)
		if err != nil || !more {
			return err
		}
		if key, err = s.text(key[:0]); err != nil {
			return err
		}
		if err := s.expect(':'); err != nil {
			return err
		}
		if err := field(string(key)); err != nil {
			return err
		}
	}
}
