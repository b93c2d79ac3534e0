package output

import (
	"bytes"
	"encoding/json"
	"strings"
	"unicode/utf8"

	"github.com/eagleray/eagleray/internal/text/typed"
)

// Formats here write each argument between tags, without quotes: what it is follows from the
// parameter's type.

// member begins an argument of the call, number n.
func (r *reader) member(n int, key string) {
	if n == 0 {
		r.argumentText("{")
	} else {
		r.argumentText(", ")
	}
	r.argumentText(`"`)
	r.arguments(escaped([]byte(key)))
	r.argumentText(`": `)
}

// endMembers ends the arguments of which there were n.
func (r *reader) endMembers(n int) {
	if n == 0 {
		r.argumentText("{")
	}
	r.argumentText("}")
}

// typedValue reads a value up to one of the marks and emits it as JSON: texts as they come, others
// when they are whole. It returns the index of the mark.
func (r *reader) typedValue(t typed.Types, marks []string) int {
	if t == 0 || t == typed.String {
		r.argumentText(`"`)
		i := r.until(marks, func(b []byte) { r.arguments(escaped(b)) })
		if i >= 0 {
			r.argumentText(`"`)
		}
		return i
	}
	var text []byte
	i := r.until(marks, func(b []byte) { text = append(text, b...) })
	if i >= 0 {
		r.literal(t, text)
	}
	return i
}

// literal emits a value of one of the types.
func (r *reader) literal(t typed.Types, text []byte) {
	v := bytes.TrimSpace(text)
	switch string(v) {
	case "True", "False":
		if t&typed.Bool != 0 {
			v = bytes.ToLower(v)
		}
	case "None":
		if t&typed.Null != 0 {
			v = []byte("null")
		}
	}
	if is := typeOf(v); is != 0 && (t&typed.String == 0 || is != typed.String && t&is != 0) {
		r.arguments(v)
		return
	}
	r.argumentText(`"`)
	r.arguments(escaped(text))
	r.argumentText(`"`)
}

// typeOf is the type of a JSON text, 0 for what is none.
func typeOf(text []byte) typed.Types {
	if len(text) == 0 || !json.Valid(text) {
		return 0
	}
	switch text[0] {
	case '"':
		return typed.String
	case '{':
		return typed.Object
	case '[':
		return typed.Array
	case 't', 'f':
		return typed.Bool
	case 'n':
		return typed.Null
	}
	return typed.Number
}

// types are those of a parameter; 0 is unknown.
func (r *reader) types(function, parameter string) typed.Types {
	if r.opt.Types == nil {
		return 0
	}
	return r.opt.Types(function, parameter)
}

// escaped is what stands for a text between the quotes of JSON.
func escaped(text []byte) (b []byte) {
	const digits = "0123456789abcdef"
	for len(text) > 0 {
		c := text[0]
		if c >= utf8.RuneSelf {
			v, size := utf8.DecodeRune(text)
			b = utf8.AppendRune(b, v)
			text = text[size:]
			continue
		}
		text = text[1:]
		switch {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c == '\n':
			b = append(b, '\\', 'n')
		case c == '\r':
			b = append(b, '\\', 'r')
		case c == '\t':
			b = append(b, '\\', 't')
		case c < 0x20:
			b = append(b, '\\', 'u', '0', '0', digits[c>>4], digits[c&15])
		default:
			b = append(b, c)
		}
	}
	return b
}

// qwenXML are the calls of Qwen 3 Coder and later:
//
//	<tool_call>
//	<function=f>
//	<parameter=x>
//	1
//	</parameter>
//	</function>
//	</tool_call>
//
//go:noinline
func qwenXML(opener, closer string, names ...string) *Format {
	return &Format{
		Names:   names,
		openers: []string{opener, functionBegin},
		closers: []string{closer, functionEnd},
		follows: []string{functionBegin},
		envelope: &envelope{begin: opener + "\n<function=NAME>\n", end: "</function>\n" + closer,
			between: "\n", style: typed.QwenXML},
		read: func(r *reader, tag string) verdict {
			if tag == opener {
				r.spaces()
				for r.accept(opener) {
					r.spaces()
				}
				if !r.accept(functionBegin) {
					return r.noCall()
				}
			}
			name, at, v := r.name(">", "\n")
			if v != called || at > 0 {
				return max(v, refused)
			}
			r.call(name, "")
			r.qwenParameters(name, closer)
			return called
		},
	}
}

const (
	functionBegin = "<function="
	functionEnd   = "</function>"
)

// qwenParameters reads the arguments up to the end of the function.
func (r *reader) qwenParameters(name, closer string) {
	begin, end := typed.QwenXML.Begin, typed.QwenXML.End
	between := []string{begin, functionEnd, closer}
	// A value ends where the next one begins, too.
	ends := []string{end, strings.TrimSpace(end), "\n" + begin, "\n" + functionEnd}
	n := 0
	for at := r.until(between, func([]byte) {}); ; n++ {
		if at < 0 {
			return
		}
		if at > 0 {
			r.endMembers(n)
			return
		}
		key, end := r.word(">")
		if end < 0 {
			return
		}
		r.member(n, key)
		r.accept("\n")
		switch r.typedValue(r.types(name, key), ends) {
		case -1:
			return
		case 2:
			at = 0
		case 3:
			at = 1
		default:
			at = r.until(between, func([]byte) {})
		}
	}
}

// glmKeyEnd and glmValue are what stands between a key and its value, with white space between.
const glmKeyEnd, glmValue = "</arg_key>", "<arg_value>"

// glm are the calls of GLM 4.5, and of 4.7, which leaves the line breaks out:
//
//	<tool_call>f
//	<arg_key>x</arg_key>
//	<arg_value>1</arg_value>
//	</tool_call>
//
//	<tool_call>f<arg_key>x</arg_key><arg_value>1</arg_value></tool_call>
//
//go:noinline
func glm(style *typed.Style, line, name string) *Format {
	return &Format{
		Names:   []string{name},
		openers: []string{"<tool_call>"},
		closers: []string{"</tool_call>"},
		follows: []string{style.Begin, "</tool_call>"},
		named:   true,
		envelope: &envelope{begin: "<tool_call>NAME" + line, end: "</tool_call>", between: line,
			style: style},
		inner: []string{style.Begin, glmKeyEnd, glmValue, style.End},
		read:  func(r *reader, _ string) verdict { return r.glmCall(style, "\n") },
	}
}

// hunyuan are the calls of Hunyuan 3: GLM's, all of them between tags, with one after each name.
//
//	<tool_calls>
//	<tool_call>f<tool_sep>
//	<arg_key>x</arg_key>
//	<arg_value>1</arg_value>
//	</tool_call>
//	</tool_calls>
var hunyuan = func() *Format {
	const all, one, name = "<tool_calls>", "<tool_call>", "<tool_sep>"
	f := glm(typed.GLM, "", "hy_v3")
	f.openers, f.closers = []string{all, one}, append(f.closers, "</tool_calls>")
	f.follows, f.named, f.inner = []string{one}, false, append(f.inner, name)
	f.envelope = &envelope{before: all + "\n", after: "</tool_calls>",
		begin: one + "NAME" + name + "\n", end: "</tool_call>\n", style: typed.GLM}
	f.read = func(r *reader, opener string) verdict {
		if opener == all {
			if r.spaces(); !r.accept(one) {
				return r.lacks(one)
			}
		}
		return r.glmCall(typed.GLM, name)
	}
	return f
}()

// glmCall reads a call after its tag; its name ends with a text, or where what follows begins.
func (r *reader) glmCall(style *typed.Style, ends string) verdict {
	name, at, v := r.name(ends, style.Begin, "</tool_call>")
	if v != called {
		return v
	}
	between := []string{style.Begin, "</tool_call>"}
	switch at {
	case 0:
		at = -1
		if r.spaces(); r.accept(between[0]) {
			at = 0
		} else if r.accept(between[1]) {
			at = 1
		} else if !r.ended() {
			return refused
		}
	default:
		at--
	}
	r.call(name, "")
	for n := 0; ; n++ {
		if at != 0 {
			if at > 0 {
				r.endMembers(n)
			}
			return called
		}
		key, end := r.word(glmKeyEnd)
		if end < 0 || r.until([]string{glmValue}, func([]byte) {}) < 0 {
			return called
		}
		r.member(n, key)
		switch r.typedValue(r.types(name, key), []string{style.End, "</tool_call>"}) {
		case -1:
			return called
		case 1:
			at = 1
		default:
			at = r.until(between, func([]byte) {})
		}
	}
}

// dsml are the calls of DeepSeek V3.2, and of V4 with another name for all of them. They say what
// is a text:
//
//	<｜DSML｜function_calls>
//	<｜DSML｜invoke name="f">
//	<｜DSML｜parameter name="x" string="false">1</｜DSML｜parameter>
//	</｜DSML｜invoke>
//	</｜DSML｜function_calls>
//
//go:noinline
func dsml(calls, name string) *Format {
	s := typed.DeepSeek
	return invoked("｜DSML｜"+calls, "｜DSML｜", name, s,
		func(r *reader, _ string) (string, typed.Types, bool) {
			key, end := r.word(s.Text, s.Other, `">`)
			if end == 1 {
				return key, typed.Any &^ typed.String, true
			}
			return key, typed.String, end >= 0
		})
}

// tagParameters are the calls of MiniMax M2, and of dots with another name for all of them:
//
//	<minimax:tool_call>
//	<invoke name="f">
//	<parameter name="x">1</parameter>
//	</invoke>
//	</minimax:tool_call>
//
//go:noinline
func tagParameters(calls, name string) *Format {
	return invoked(calls, "", name, typed.MiniMax,
		func(r *reader, function string) (string, typed.Types, bool) {
			key, end := r.word(typed.MiniMax.Text)
			return key, r.types(function, key), end >= 0
		})
}

// invoked are calls between tags of their own, with a tag for each argument, all of which may have
// a prefix. parameter reads the rest of such a tag, and what the value is: false where the text
// ends within.
func invoked(calls, prefix, name string, style *typed.Style,
	parameter func(r *reader, function string) (string, typed.Types, bool)) *Format {
	all, allEnd := "<"+calls+">", "</"+calls+">"
	invoke, invokeEnd := "<"+prefix+`invoke name="`, "</"+prefix+"invoke>"
	return &Format{
		Names:   []string{name},
		openers: []string{all, invoke},
		closers: []string{allEnd, invokeEnd},
		envelope: &envelope{before: all + "\n", after: allEnd, begin: invoke + "NAME\">\n",
			end: invokeEnd + "\n", style: style},
		inner: []string{style.Begin, style.End},
		read: func(r *reader, tag string) verdict {
			if tag != invoke {
				r.spaces()
				if !r.accept(invoke) {
					return r.noCall()
				}
			}
			function, at, v := r.name(`">`, "\n")
			if v != called || at > 0 {
				return max(v, refused)
			}
			r.call(function, "")
			for n := 0; ; n++ {
				switch r.until([]string{style.Begin, invokeEnd}, func([]byte) {}) {
				case -1:
					return called
				case 1:
					r.endMembers(n)
					return called
				}
				key, t, ok := parameter(r, function)
				if !ok {
					return called
				}
				r.member(n, key)
				if r.typedValue(t, []string{style.End}) < 0 {
					return called
				}
			}
		},
	}
}
