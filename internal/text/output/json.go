package output

import (
	"bytes"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// object is how a family writes a call as a JSON object.
type object struct {
	// name is the key of the function's name, arguments are those of the arguments.
	name      string
	arguments []string
	// others are the keys that may stand beside them; nil allows any.
	others []string
	// id is the key of the call's id, "" for none.
	id string
	// needsArguments says that an object without arguments is no call.
	needsArguments bool
}

// verdict is what a text turned out to be.
type verdict uint8

const (
	// called: a call began.
	called verdict = iota
	// refused: it is no call, and nothing was emitted.
	refused
	// cut: the text ended before that was known.
	cut
)

// objectCall reads a call written as an object, which begins here, as far as it goes. The name, id
// and arguments may come in any order; only the keys of the object itself count.
func (r *reader) objectCall(o *object) verdict {
	if !r.accept("{") {
		return r.noCall()
	}
	var name, id string
	var early []byte
	named, begun, given := false, false, false
	begin := func() {
		r.call(name, id)
		begun = true
	}
	for first := true; ; first = false {
		r.spaces()
		if r.accept("}") {
			break
		}
		if !first {
			if !r.accept(",") {
				return r.broken(begun)
			}
			r.spaces()
		}
		key, ok := r.quoted()
		if !ok {
			return r.broken(begun)
		}
		r.spaces()
		if !r.accept(":") {
			return r.broken(begun)
		}
		r.spaces()
		switch {
		case key == o.name && !named:
			if name, named = r.quoted(); !named || name == "" {
				return r.broken(begun)
			}
			if early != nil {
				begin()
				r.arguments(early)
			} else if o.id == "" && !o.needsArguments {
				begin()
			}
		case slices.Contains(o.arguments, key) && !given:
			if given = true; !named {
				if !r.argumentsTo(func(b []byte) { early = append(early, b...) }) {
					return cut
				}
				break
			}
			if !begun {
				begin()
			}
			if !r.argumentsTo(r.arguments) {
				return called
			}
		case key == o.id && !begun && r.next('"'):
			if id, ok = r.quoted(); !ok {
				return r.broken(begun)
			}
		case !begun && o.others != nil && !slices.Contains(o.others, key):
			return refused
		default:
			if !r.value(func([]byte) {}) {
				return r.broken(begun)
			}
		}
	}
	switch {
	case !named, o.needsArguments && !given:
		return refused
	case !begun:
		begin()
	}
	if !given {
		r.argumentText("{}")
	}
	return called
}

// noCall is refused, or cut at the end of the text.
func (r *reader) noCall() verdict {
	if r.ended() {
		return cut
	}
	return refused
}

// lacks is noCall where one of some texts should come next: cut too where the end cuts that.
func (r *reader) lacks(texts ...string) verdict {
	for _, s := range texts {
		if r.eof && strings.HasPrefix(s, string(r.buf[r.pos:])) {
			r.pos = len(r.buf)
		}
	}
	return r.noCall()
}

// broken is the verdict on an object that does not go on as one.
func (r *reader) broken(begun bool) verdict {
	if begun {
		return called
	}
	return r.noCall()
}

// argumentsTo reads the value of arguments and hands them to f: as they were written, a text that
// holds them without its quotes, and an empty object for null. It is false where the text ends
// within.
func (r *reader) argumentsTo(f func([]byte)) bool {
	c, ok := r.peek()
	switch {
	case !ok:
		return false
	case c == '"':
		some := false
		ok = r.decoded(func(b []byte) {
			some = some || len(b) > 0
			f(b)
		})
		if ok && !some {
			f([]byte("{}"))
		}
		return ok
	case c == '{' || c == '[':
		return r.value(f)
	}
	var scalar []byte
	ok = r.value(func(b []byte) { scalar = append(scalar, b...) })
	if string(scalar) == "null" || string(scalar) == "None" {
		scalar = []byte("{}")
	}
	f(scalar)
	return ok
}

// value reads over a JSON value and hands it to f as it was written. It is not checked but for
// where it ends, and false where the text ends first.
func (r *reader) value(f func([]byte)) bool {
	c, ok := r.peek()
	if !ok {
		return false
	}
	if c != '{' && c != '[' && c != '"' {
		return r.scalar(f)
	}
	depth, inText, escaped := 0, false, false
	for {
		for i, c := range r.buf[r.pos:] {
			switch {
			case escaped:
				escaped = false
			case inText && c == '\\':
				escaped = true
			case c == '"':
				inText = !inText
			case inText:
			case c == '{' || c == '[':
				depth++
			case c == '}' || c == ']':
				depth--
			}
			if depth == 0 && !inText {
				f(r.buf[r.pos : r.pos+i+1])
				r.pos += i + 1
				return true
			}
		}
		f(r.buf[r.pos:])
		r.pos = len(r.buf)
		if !r.more() {
			return false
		}
	}
}

// scalar reads over a number or a word, whole. Where the text ends first there is none.
func (r *reader) scalar(f func([]byte)) bool {
	n := 0
	for {
		for ; r.pos+n < len(r.buf); n++ {
			switch c := r.buf[r.pos+n]; {
			case isSpace(c), c == ',', c == '}', c == ']', c == ':', c == '"':
				if n == 0 {
					return false
				}
				text := r.buf[r.pos : r.pos+n]
				r.pos += n
				f(text)
				return true
			}
		}
		if !r.more() {
			r.pos = len(r.buf)
			return false
		}
	}
}

// quoted reads a JSON text in quotes.
func (r *reader) quoted() (string, bool) {
	var text []byte
	if !r.next('"') {
		return "", false
	}
	ok := r.decoded(func(b []byte) { text = append(text, b...) })
	return string(text), ok
}

// decoded reads a JSON text in quotes, which begins here, and hands what it says to f. It is false
// where the text ends within.
func (r *reader) decoded(f func([]byte)) bool {
	r.pos++
	for {
		at := bytes.IndexAny(r.buf[r.pos:], `"\`)
		if at < 0 {
			at = len(r.buf) - r.pos
		}
		if at > 0 {
			text := r.buf[r.pos : r.pos+at]
			r.pos += at
			f(text)
		}
		c, ok := r.peek()
		switch {
		case !ok:
			return false
		case c == '"':
			r.pos++
			return true
		case c == '\\':
			v, ok := r.escape()
			if !ok {
				return false
			}
			f(utf8.AppendRune(nil, v))
		}
	}
}

// escape reads an escape of JSON; what is none stands for the character after the backslash.
func (r *reader) escape() (rune, bool) {
	c, ok := r.ahead(1)
	if !ok {
		r.pos = len(r.buf)
		return 0, false
	}
	if c == 'u' {
		if _, ok := r.ahead(5); !ok {
			r.pos = len(r.buf)
			return 0, false
		}
		if v, ok := r.hex(2, 4); ok {
			r.pos += 6
			return r.surrogate(v), true
		}
	}
	r.pos++
	switch c {
	case 'b':
		c = '\b'
	case 'f':
		c = '\f'
	case 'n':
		c = '\n'
	case 'r':
		c = '\r'
	case 't':
		c = '\t'
	default:
		v, size := r.character()
		r.pos += size
		return v, true
	}
	r.pos++
	return rune(c), true
}

// surrogate joins the first half of a character, of which the second comes next. Half a character
// alone is none.
func (r *reader) surrogate(v rune) rune {
	if !utf16.IsSurrogate(v) {
		return v
	}
	if r.starts(`\u`) {
		if low, ok := r.hex(2, 4); ok {
			if joined := utf16.DecodeRune(v, low); joined != utf8.RuneError {
				r.pos += 6
				return joined
			}
		}
	}
	return utf8.RuneError
}

// ahead returns a byte after the next one; false says that the text has ended.
func (r *reader) ahead(n int) (byte, bool) {
	for r.pos+n >= len(r.buf) {
		if !r.more() {
			return 0, false
		}
	}
	return r.buf[r.pos+n], true
}

// hex reads, without passing it, a number in hexadecimal.
func (r *reader) hex(from, digits int) (rune, bool) {
	if _, ok := r.ahead(from + digits - 1); !ok {
		return 0, false
	}
	v, err := strconv.ParseUint(string(r.buf[r.pos+from:r.pos+from+digits]), 16, 32)
	return rune(v), err == nil
}

// character returns the next character, and its length.
func (r *reader) character() (rune, int) {
	for !utf8.FullRune(r.buf[r.pos:]) && r.more() {
	}
	return utf8.DecodeRune(r.buf[r.pos:])
}
