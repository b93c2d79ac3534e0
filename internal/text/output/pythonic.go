package output

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/eagleray/eagleray/internal/text/typed"
)

// pythonic are calls as a list of Python's, of literals by keyword, that is all of the answer.
// Llama 3.2, Llama 4, ToolACE:
//
//	[f(x=1), g(y="z")]
var pythonic = &Format{
	Names:   []string{"pythonic", "llama4_pythonic"},
	closers: []string{"<|python_end|>"},
	inner:   []string{"<|python_start|>"},
	envelope: &envelope{before: "[", between: ", ", after: "]", begin: "NAME(", end: ")",
		style: typed.PythonArguments},
	start: func(r *reader) verdict {
		r.spaces()
		if r.accept("<|python_start|>") {
			r.spaces()
		}
		if !r.accept("[") {
			return refused
		}
		v := r.pythonCalls(']')
		if v == called {
			r.spaces()
			r.accept("]")
		}
		return v
	},
}

// olmo are the calls of OLMo 3, a line for each:
//
//	<function_calls>
//	f(x=1)
//	</function_calls>
var olmo = &Format{
	Names:   []string{"olmo3"},
	openers: []string{"<function_calls>"},
	closers: []string{"</function_calls>"},
	follows: []string{},
	envelope: &envelope{before: "<function_calls>\n", between: "\n", after: "\n</function_calls>",
		begin: "NAME(", end: ")", style: typed.PythonArguments},
	read: func(r *reader, _ string) verdict { return r.pythonCalls('<') },
}

// lfm2 are the calls of LFM 2, a list between tags:
//
//	<|tool_call_start|>[f(x=1)]<|tool_call_end|>
var lfm2 = &Format{
	Names:   []string{"lfm2"},
	openers: []string{"<|tool_call_start|>"},
	closers: []string{"<|tool_call_end|>"},
	follows: []string{"["},
	envelope: &envelope{before: "<|tool_call_start|>[", between: ", ",
		after: "]<|tool_call_end|>", begin: "NAME(", end: ")", style: typed.PythonArguments},
	read: func(r *reader, _ string) verdict {
		if r.spaces(); !r.accept("[") {
			return r.noCall()
		}
		v := r.pythonCalls(']')
		if v == called {
			r.spaces()
			r.accept("]")
		}
		return v
	},
}

// pythonCalls reads calls with commas or white space between them, up to a byte.
func (r *reader) pythonCalls(end byte) verdict {
	for first := true; ; first = false {
		r.spaces()
		if !first && (r.next(end) || r.ended()) {
			return called
		}
		if !first {
			r.keep = r.pos
		}
		if v := r.pythonCall(); v != called {
			if !first && v == refused {
				r.pos = r.keep // what is no call is content
				return called
			}
			return v
		}
		r.spaces()
		r.accept(",")
	}
}

// pythonCall reads one. It is none where its first argument is not a literal by keyword.
func (r *reader) pythonCall() verdict {
	name := r.identifier(true)
	if name == "" || !r.accept("(") {
		return r.noCall()
	}
	for n := 0; ; n++ {
		r.spaces()
		if r.accept(")") {
			if n == 0 {
				r.call(name, "")
			}
			r.endMembers(n)
			return called
		}
		key := r.identifier(false)
		r.spaces()
		if key == "" || !r.accept("=") {
			return r.broken(n > 0)
		}
		r.spaces()
		if c, ok := r.peek(); !ok || strings.IndexByte(`'"[({+-.0123456789TFNtfn`, c) < 0 {
			return r.broken(n > 0)
		}
		if n == 0 {
			r.call(name, "")
		}
		r.member(n, key)
		if !r.pythonValue(0) {
			return called
		}
		r.spaces()
		if !r.accept(",") && !r.next(')') {
			return called
		}
	}
}

// identifier reads a name of Python, or where there may be dots, of any tool.
func (r *reader) identifier(dotted bool) string {
	n := 0
	for {
		c, ok := r.ahead(n)
		letter := c == '_' || isLetter(c) || c >= 0x80
		if !ok || !letter && !('0' <= c && c <= '9' && (n > 0 || dotted) ||
			dotted && (c == '.' || c == '-')) {
			break
		}
		n++
	}
	name := string(r.buf[r.pos : r.pos+n])
	r.pos += n
	return name
}

// maxNesting bounds how deep literals are nested.
const maxNesting = 100

// pythonValue reads a literal and emits it as JSON; false is for what is none, or is cut.
func (r *reader) pythonValue(depth int) bool {
	c, ok := r.peek()
	switch {
	case !ok || depth > maxNesting:
		return false
	case c == '\'' || c == '"':
		return r.pythonText()
	case c == '[':
		return r.pythonItems("[", "]", "]", depth, false)
	case c == '(':
		return r.pythonItems("[", "]", ")", depth, false)
	case c == '{':
		return r.pythonItems("{", "}", "}", depth, true)
	case c == '+' || c == '-' || c == '.' || '0' <= c && c <= '9':
		return r.pythonNumber()
	}
	switch r.identifier(false) {
	case "True", "true":
		r.argumentText("true")
	case "False", "false":
		r.argumentText("false")
	case "None", "null", "none":
		r.argumentText("null")
	default:
		return false
	}
	return true
}

// pythonItems reads a list, a tuple, or a dict, and emits it between the given brackets.
func (r *reader) pythonItems(open, shut, end string, depth int, dict bool) bool {
	r.pos++
	r.argumentText(open)
	for n := 0; ; n++ {
		r.spaces()
		if r.accept(end) {
			r.argumentText(shut)
			return true
		}
		if r.ended() {
			return false
		}
		if n > 0 {
			r.argumentText(", ")
		}
		if dict {
			if !(r.next('"') || r.next('\'')) || !r.pythonText() {
				return false
			}
			r.spaces()
			if !r.accept(":") {
				return false
			}
			r.argumentText(": ")
			r.spaces()
		}
		if !r.pythonValue(depth + 1) {
			return false
		}
		if r.spaces(); !r.accept(",") && !r.starts(end) {
			return false
		}
	}
}

// pythonNumber reads a decimal number and emits it as JSON writes it.
func (r *reader) pythonNumber() bool {
	n := 0
	for {
		c, ok := r.ahead(n)
		if !ok || strings.IndexByte("+-.eE_0123456789", c) < 0 {
			break
		}
		n++
	}
	text := bytes.ReplaceAll(bytes.TrimPrefix(r.buf[r.pos:r.pos+n], []byte("+")), []byte("_"), nil)
	if !json.Valid(text) { // as .5 and 1. are not
		v, err := strconv.ParseFloat(string(text), 64)
		if err != nil {
			return false
		}
		text = strconv.AppendFloat(nil, v, 'g', -1, 64)
	}
	r.arguments(text)
	r.pos += n
	return true
}

// pythonText reads a text in quotes of either kind, one or three.
func (r *reader) pythonText() bool {
	quote := string(r.buf[r.pos])
	if triple := strings.Repeat(quote, 3); r.starts(triple) {
		quote = triple
	}
	r.pos += len(quote)
	r.argumentText(`"`)
	emit := func(b []byte) { r.arguments(escaped(b)) }
	for {
		switch r.until([]string{quote, `\`}, emit) {
		case -1:
			return false
		case 0:
			r.argumentText(`"`)
			return true
		}
		if !r.pythonEscape(emit) {
			return false
		}
	}
}

// pythonEscape reads what follows a backslash.
func (r *reader) pythonEscape(emit func([]byte)) bool {
	c, ok := r.peek()
	if !ok {
		return false
	}
	digits := map[byte]int{'x': 2, 'u': 4, 'U': 8}[c]
	if digits > 0 {
		if _, ok := r.ahead(digits); !ok {
			r.pos = len(r.buf)
			return false
		}
		if v, ok := r.hex(1, digits); ok {
			r.pos += 1 + digits
			emit(utf8.AppendRune(nil, v))
			return true
		}
	}
	if i := strings.IndexByte("abfnrtv0\n", c); i >= 0 {
		r.pos++
		emit([]byte("\a\b\f\n\r\t\v\x00"[i:min(i+1, 8)]))
		return true
	}
	if strings.IndexByte(`\'"`, c) < 0 { // the backslash stands for itself
		emit([]byte{'\\'})
	}
	_, size := r.character()
	text := r.buf[r.pos : r.pos+size]
	r.pos += size
	emit(text)
	return true
}
