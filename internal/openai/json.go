package openai

import (
	"bytes"
	"fmt"
	"unicode/utf16"
	"unicode/utf8"
)

// member is one key of an object with the text of its value.
type member struct {
	key string
	raw []byte
}

// parseObject checks that body is exactly one JSON object by RFC 8259, nothing repaired: valid UTF-8 without a
// byte order mark, no duplicate keys at any level, no lone surrogates, no NaN, nesting and object size bounded.
// It returns the object's members in order. A fault inside a member names that member.
func parseObject(body []byte, lim Limits) ([]member, *apiError) {
	if bytes.HasPrefix(body, []byte("\xef\xbb\xbf")) {
		return nil, badRequest("", "request body begins with a byte order mark")
	}
	c := &jsonScanner{data: body, maxDepth: lim.JSONDepth, maxMembers: lim.JSONMembers}
	c.space()
	if c.pos == len(body) {
		return nil, badRequest("", "request body is empty, expected a JSON object")
	}
	if body[c.pos] != '{' {
		return nil, badRequest("", "request body must be a JSON object")
	}
	var members []member
	at := ""
	err := c.object(func(key string) error {
		at = key
		start := c.pos
		if err := c.value(); err != nil {
			return err
		}
		members = append(members, member{key: key, raw: body[start:c.pos]})
		at = ""
		return nil
	})
	if err == nil {
		if c.space(); c.pos != len(body) {
			err = c.errorf("data after the JSON object")
		}
	}
	if err != nil {
		if at != "" {
			return nil, badRequest(at, "invalid JSON in `%s`: %v", clip(at), err)
		}
		return nil, badRequest("", "invalid JSON: %v", err)
	}
	return members, nil
}

// eachElement calls f with the text of every element of a checked array.
func eachElement(raw []byte, f func(i int, raw []byte) *apiError) *apiError {
	c := &jsonScanner{data: raw, trusted: true}
	c.pos++
	for i := 0; ; i++ {
		c.space()
		if raw[c.pos] == ']' {
			return nil
		}
		if raw[c.pos] == ',' {
			c.pos++
			c.space()
		}
		start := c.pos
		_ = c.value() // the array was checked as a whole
		if err := f(i, raw[start:c.pos]); err != nil {
			return err
		}
	}
}

// eachMember calls f with every member of a checked object, in order.
func eachMember(raw []byte, f func(key string, raw []byte) *apiError) *apiError {
	c := &jsonScanner{data: raw, trusted: true}
	var failed *apiError
	_ = c.object(func(key string) error {
		start := c.pos
		_ = c.value()
		if failed == nil {
			failed = f(key, raw[start:c.pos])
		}
		return nil
	})
	return failed
}

// jsonScanner walks JSON text. With trusted set the text has been checked before and only its structure is
// followed.
type jsonScanner struct {
	data       []byte
	pos        int
	depth      int
	maxDepth   int
	maxMembers int
	trusted    bool
}

func (c *jsonScanner) errorf(format string, args ...any) error {
	return fmt.Errorf(format+" at byte %d", append(args, c.pos)...)
}

func (c *jsonScanner) space() {
	for c.pos < len(c.data) {
		switch c.data[c.pos] {
		case ' ', '\t', '\n', '\r':
			c.pos++
		default:
			return
		}
	}
}

// peek returns the next byte, 0 at the end.
func (c *jsonScanner) peek() byte {
	if c.pos < len(c.data) {
		return c.data[c.pos]
	}
	return 0
}

func (c *jsonScanner) value() error {
	switch b := c.peek(); {
	case b == '{':
		return c.object(func(string) error { return c.value() })
	case b == '[':
		return c.array()
	case b == '"':
		_, err := c.text()
		return err
	case b == '-' || '0' <= b && b <= '9':
		return c.number()
	}
	for _, word := range []string{"true", "false", "null"} {
		if bytes.HasPrefix(c.data[c.pos:], []byte(word)) {
			c.pos += len(word)
			return nil
		}
	}
	for _, word := range []string{"NaN", "Infinity"} {
		if bytes.HasPrefix(c.data[c.pos:], []byte(word)) {
			return c.errorf("%s is not a JSON number", word)
		}
	}
	if c.pos >= len(c.data) {
		return c.errorf("unexpected end")
	}
	return c.errorf("unexpected character %q", rune(c.data[c.pos]))
}

func (c *jsonScanner) enter() error {
	c.depth++
	if c.depth > c.maxDepth && !c.trusted {
		return c.errorf("nested deeper than %d levels", c.maxDepth)
	}
	c.pos++
	c.space()
	return nil
}

func (c *jsonScanner) array() error {
	if err := c.enter(); err != nil {
		return err
	}
	defer func() { c.depth-- }()
	if c.peek() == ']' {
		c.pos++
		return nil
	}
	for {
		if err := c.value(); err != nil {
			return err
		}
		c.space()
		switch c.peek() {
		case ',':
			c.pos++
			c.space()
		case ']':
			c.pos++
			return nil
		default:
			return c.errorf("expected , or ] in an array")
		}
	}
}

// object calls f at every value of the object; f consumes it.
func (c *jsonScanner) object(f func(key string) error) error {
	if err := c.enter(); err != nil {
		return err
	}
	defer func() { c.depth-- }()
	if c.peek() == '}' {
		c.pos++
		return nil
	}
	var keys keySet
	for n := 1; ; n++ {
		if c.peek() != '"' {
			return c.errorf("expected a key in quotes")
		}
		raw, err := c.text()
		if err != nil {
			return err
		}
		key := unquote(raw)
		if !c.trusted {
			if n > c.maxMembers {
				return c.errorf("more than %d members in one object", c.maxMembers)
			}
			if !keys.add(key) {
				return c.errorf("duplicate key %q", clip(key))
			}
		}
		c.space()
		if c.peek() != ':' {
			return c.errorf("expected : after a key")
		}
		c.pos++
		c.space()
		if err := f(key); err != nil {
			return err
		}
		c.space()
		switch c.peek() {
		case ',':
			c.pos++
			c.space()
		case '}':
			c.pos++
			return nil
		default:
			return c.errorf("expected , or } in an object")
		}
	}
}

// text consumes a string and returns it with its quotes.
func (c *jsonScanner) text() ([]byte, error) {
	start := c.pos
	c.pos++
	ascii := true
	for c.pos < len(c.data) {
		switch b := c.data[c.pos]; {
		case b == '"':
			c.pos++
			raw := c.data[start:c.pos]
			if !ascii && !c.trusted && !utf8.Valid(raw) {
				c.pos = start
				return nil, c.errorf("invalid UTF-8 in the string")
			}
			return raw, nil
		case b == '\\':
			if err := c.escape(); err != nil {
				return nil, err
			}
		case b < 0x20:
			return nil, c.errorf("control character %#02x in a string", b)
		default:
			ascii = ascii && b < utf8.RuneSelf
			c.pos++
		}
	}
	return nil, c.errorf("unexpected end in a string")
}

func (c *jsonScanner) escape() error {
	if c.pos+1 >= len(c.data) {
		return c.errorf("unexpected end in a string")
	}
	switch c.data[c.pos+1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		c.pos += 2
		return nil
	case 'u':
	default:
		return c.errorf("unknown escape \\%c", rune(c.data[c.pos+1]))
	}
	r, ok := hex4(c.data[c.pos:])
	if !ok {
		return c.errorf("\\u needs four hexadecimal digits")
	}
	if !utf16.IsSurrogate(r) {
		c.pos += 6
		return nil
	}
	low, ok := hex4(c.data[c.pos+6:])
	if !ok || utf16.DecodeRune(r, low) == utf8.RuneError {
		return c.errorf("lone surrogate \\u%04x", r)
	}
	c.pos += 12
	return nil
}

// hex4 reads \uXXXX at the beginning of b.
func hex4(b []byte) (rune, bool) {
	if len(b) < 6 || b[0] != '\\' || b[1] != 'u' {
		return 0, false
	}
	var r rune
	for _, d := range b[2:6] {
		switch {
		case '0' <= d && d <= '9':
			d -= '0'
		case 'a' <= d && d <= 'f':
			d -= 'a' - 10
		case 'A' <= d && d <= 'F':
			d -= 'A' - 10
		default:
			return 0, false
		}
		r = r<<4 | rune(d)
	}
	return r, true
}

func (c *jsonScanner) number() error {
	if c.peek() == '-' {
		c.pos++
		if bytes.HasPrefix(c.data[c.pos:], []byte("Infinity")) {
			return c.errorf("-Infinity is not a JSON number")
		}
	}
	switch b := c.peek(); {
	case b == '0':
		c.pos++
	case '1' <= b && b <= '9':
		c.digits()
	default:
		return c.errorf("expected a digit")
	}
	if c.peek() == '.' {
		c.pos++
		if c.digits() == 0 {
			return c.errorf("expected a digit after the decimal point")
		}
	}
	if b := c.peek(); b == 'e' || b == 'E' {
		c.pos++
		if b := c.peek(); b == '+' || b == '-' {
			c.pos++
		}
		if c.digits() == 0 {
			return c.errorf("expected a digit in the exponent")
		}
	}
	return nil
}

func (c *jsonScanner) digits() int {
	start := c.pos
	for c.pos < len(c.data) && '0' <= c.data[c.pos] && c.data[c.pos] <= '9' {
		c.pos++
	}
	return c.pos - start
}

// keySet finds duplicates; a few keys are compared one by one, many through a map.
type keySet struct {
	few  [16]string
	n    int
	many map[string]struct{}
}

// add reports whether key is new.
func (s *keySet) add(key string) bool {
	if s.many != nil {
		if _, ok := s.many[key]; ok {
			return false
		}
		s.many[key] = struct{}{}
		return true
	}
	for _, k := range s.few[:s.n] {
		if k == key {
			return false
		}
	}
	if s.n < len(s.few) {
		s.few[s.n] = key
		s.n++
		return true
	}
	s.many = make(map[string]struct{}, 2*len(s.few))
	for _, k := range s.few {
		s.many[k] = struct{}{}
	}
	s.many[key] = struct{}{}
	return true
}

// unquote decodes a checked JSON string with its quotes.
func unquote(raw []byte) string {
	raw = raw[1 : len(raw)-1]
	if bytes.IndexByte(raw, '\\') < 0 {
		return string(raw)
	}
	out := make([]byte, 0, len(raw))
	for i := 0; i < len(raw); i++ {
		if raw[i] != '\\' {
			out = append(out, raw[i])
			continue
		}
		i++
		switch raw[i] {
		case 'b':
			out = append(out, '\b')
		case 'f':
			out = append(out, '\f')
		case 'n':
			out = append(out, '\n')
		case 'r':
			out = append(out, '\r')
		case 't':
			out = append(out, '\t')
		case 'u':
			r, _ := hex4(raw[i-1:])
			i += 4
			if utf16.IsSurrogate(r) {
				low, _ := hex4(raw[i+1:])
				r = utf16.DecodeRune(r, low)
				i += 6
			}
			out = utf8.AppendRune(out, r)
		default: // quote, backslash, slash
			out = append(out, raw[i])
		}
	}
	return string(out)
}

// clip shortens what a client sent before it goes into a message or a log.
func clip(s string) string {
	const most = 80
	if len(s) <= most {
		return s
	}
	cut := most
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "…"
}
