package output

import "strings"

// The tags of DeepSeek V3.
const (
	callsBegin = "<｜tool▁calls▁begin｜>"
	callsEnd   = "<｜tool▁calls▁end｜>"
	callBegin  = "<｜tool▁call▁begin｜>"
	callSep    = "<｜tool▁sep｜>"
	callEnd    = "<｜tool▁call▁end｜>"
)

// deepseek reads what DeepSeek V3 and R1 write, and what V3.1 does, which is shorter:
//
//	<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f
//	```json
//	{"x": 1}
//	```<｜tool▁call▁end｜><｜tool▁calls▁end｜>
//
//	<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"x": 1}<｜tool▁call▁end｜>…
//
//go:noinline
func deepseek(name, begin, end string) *Format {
	return &Format{
		Names:   []string{name},
		openers: []string{callsBegin, callBegin},
		closers: []string{callsEnd},
		inner:   []string{callSep, callEnd},
		envelope: &envelope{before: callsBegin, after: callsEnd, begin: begin, end: end,
			between: "\n"},
		read: func(r *reader, opener string) verdict {
			if opener == callsBegin {
				r.spaces()
				if !r.accept(callBegin) {
					return r.noCall()
				}
			}
			name, at, v := r.name(callSep, callEnd, "\n")
			if v != called || at > 0 {
				return max(v, refused)
			}
			if r.spaces(); !r.next('{') { // what came first is the type of the tool
				if name, at, v = r.name("```json", "```", "\n", callEnd); v != called || at == 3 {
					return max(v, refused)
				}
				if r.spaces(); at == 2 && r.acceptAny([]string{"```json", "```"}) {
					r.spaces()
				}
			}
			r.call(name, "")
			r.jsonArguments()
			r.spaces()
			r.accept("```")
			r.spaces()
			r.accept(callEnd)
			return called
		},
	}
}

// The tags of Kimi K2, whose ids say the name:
//
//	<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0
//	<|tool_call_argument_begin|>{"x": 1}<|tool_call_end|><|tool_calls_section_end|>
var kimi = &Format{
	Names:   []string{"kimi_k2"},
	openers: []string{"<|tool_calls_section_begin|>", "<|tool_call_begin|>"},
	closers: []string{"<|tool_calls_section_end|>", "<|tool_call_end|>"},
	inner:   []string{"<|tool_call_argument_begin|>"},
	envelope: &envelope{before: "<|tool_calls_section_begin|>", after: "<|tool_calls_section_end|>",
		begin: "<|tool_call_begin|>functions.NAME:", numbered: true,
		middle: "<|tool_call_argument_begin|>", end: "<|tool_call_end|>"},
	read: func(r *reader, opener string) verdict {
		if opener != "<|tool_call_begin|>" {
			r.spaces()
			if !r.accept("<|tool_call_begin|>") {
				return r.noCall()
			}
		}
		id, at, v := r.name("<|tool_call_argument_begin|>", "<|tool_call_end|>")
		if v != called || at > 0 {
			return max(v, refused)
		}
		name := strings.TrimPrefix(id, "functions.")
		if i := strings.LastIndexByte(name, ':'); i > 0 {
			name = name[:i]
		} else {
			id = ""
		}
		if name == "" {
			return refused
		}
		r.call(name, id)
		r.spaces()
		r.jsonArguments()
		return called
	},
}
