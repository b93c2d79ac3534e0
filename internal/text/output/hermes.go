package output

// tagged are calls as JSON objects, each between tags. Hermes, Qwen 2.5 and Qwen 3:
//
//	<tool_call>
//	{"name": "f", "arguments": {"x": 1}}
//	</tool_call>
//
//go:noinline
func tagged(opener, closer string, names ...string) *Format {
	return &Format{
		Names:   names,
		openers: []string{opener},
		closers: []string{closer},
		follows: []string{"{"},
		envelope: &envelope{begin: opener + "\n{\"name\": \"NAME\", \"arguments\": ",
			end: "}\n" + closer, between: "\n"},
		read: func(r *reader, opener string) verdict {
			r.spaces()
			for r.accept(opener) {
				r.spaces()
			}
			v := r.objectCall(&plainObject)
			if v == called {
				r.spaces()
				for r.accept("}") { // one too many
					r.spaces()
				}
			}
			return v
		},
	}
}

// plainObject is the usual way of writing a call as an object.
var plainObject = object{name: "name", arguments: []string{"arguments", "parameters"}}

// listed are calls as a JSON list of objects. Granite, Phi 4 mini, Jamba:
//
//	<|tool_call|>[{"name": "f", "arguments": {"x": 1}}]
//
//go:noinline
func listed(openers, closers []string, o *object, names ...string) *Format {
	after := "]"
	if len(closers) > 0 {
		after += closers[0]
	}
	return &Format{
		Names:    names,
		openers:  openers,
		closers:  closers,
		follows:  []string{"["},
		envelope: objects(openers[0]+"[", "arguments", ", ", after),
		read: func(r *reader, _ string) verdict {
			r.spaces()
			return r.listCall(o)
		},
	}
}

// apertus are calls as a JSON list of objects of one member each, named as the function:
//
//	<|tools_prefix|>[{"f": {"x": 1}}, {"g": {}}]<|tools_suffix|>
var apertus = &Format{
	Names:   []string{"apertus"},
	openers: []string{"<|tools_prefix|>"},
	closers: []string{"<|tools_suffix|>"},
	follows: []string{"["},
	envelope: &envelope{before: "<|tools_prefix|>[", after: "]<|tools_suffix|>", between: ", ",
		begin: `{"NAME": `, end: "}"},
	read: func(r *reader, _ string) verdict {
		if r.spaces(); !r.accept("[") {
			return r.noCall()
		}
		for n := 0; ; n++ {
			if v := r.memberCall(); v != called {
				if n > 0 {
					return called
				}
				return v
			}
			if r.spaces(); !r.accept(",") {
				r.accept("]")
				return called
			}
		}
	},
}

// memberCall reads a call written as an object whose one member is named as the function.
func (r *reader) memberCall() verdict {
	if r.spaces(); !r.accept("{") {
		return r.noCall()
	}
	r.spaces()
	name, ok := r.quoted()
	if r.spaces(); !ok || name == "" || !r.accept(":") {
		return r.noCall()
	}
	r.call(name, "")
	if r.spaces(); r.argumentsTo(r.arguments) {
		r.spaces()
		r.accept("}")
	}
	return called
}

// listCall reads a list of calls as objects.
func (r *reader) listCall(o *object) verdict {
	if !r.accept("[") {
		return r.noCall()
	}
	for first := true; ; first = false {
		if r.spaces(); !first && r.accept("]") {
			return called
		}
		if v := r.objectCall(o); v != called {
			if first {
				return v
			}
			return called
		}
		r.spaces()
		if !r.accept(",") {
			r.accept("]")
			return called
		}
	}
}

// llama3 is Llama 3's and 4's JSON, which nothing tells from other JSON but its keys:
//
//	<|python_tag|>{"name": "f", "parameters": {"x": 1}}; {"name": "g", "parameters": {}}
var llama3 = &Format{
	Names:    []string{"llama3_json", "llama4_json"},
	openers:  []string{"{", "<|python_tag|>"},
	loose:    true,
	envelope: objects("", "parameters", "; ", ""),
	read: func(r *reader, opener string) verdict {
		if opener == "{" {
			r.pos--
		}
		for n := 0; ; n++ {
			r.spaces()
			if v := r.objectCall(&llamaObject); v != called {
				if n > 0 && v == refused {
					r.unread()
					return called
				}
				return v
			}
			r.spaces()
			for r.accept(";") {
				r.spaces()
			}
			if !r.next('{') {
				return called
			}
			r.keep = r.pos
		}
	},
}

// unread gives back, as content, what was read since keep.
func (r *reader) unread() { r.content(r.buf[r.keep:r.pos]) }

var llamaObject = object{name: "name", arguments: []string{"parameters", "arguments"},
	others: []string{"name", "type", "id"}, needsArguments: true}

// mistral has had three ways of writing calls, by version of its tokenizer:
//
//	[TOOL_CALLS][{"name": "f", "arguments": {"x": 1}, "id": "abcdef123"}]
//	[TOOL_CALLS]f[CALL_ID]abcdef123[ARGS]{"x": 1}
//	[TOOL_CALLS]f[ARGS]{"x": 1}[TOOL_CALLS]g[ARGS]{}
var mistral = &Format{
	Names:    []string{"mistral"},
	ShortIDs: true,
	openers:  []string{"[TOOL_CALLS]"},
	inner:    []string{"[CALL_ID]", "[ARGS]"},
	envelope: &envelope{begin: "[TOOL_CALLS]NAME[ARGS]"},
	read: func(r *reader, opener string) verdict {
		r.spaces()
		o := plainObject
		o.id = "id"
		switch {
		case r.next('['):
			return r.listCall(&o)
		case r.next('{'):
			return r.objectCall(&o)
		}
		name, at, v := r.name("{", "[ARGS]", "[CALL_ID]", "\n", opener)
		if v != called {
			return v
		}
		id := ""
		switch at {
		case 0:
			r.pos--
		case 2:
			if id, at = r.word("[ARGS]", "{"); at < 0 {
				return cut
			}
			if at == 1 {
				r.pos--
			}
		case 3, 4:
			return refused
		}
		r.call(name, id)
		r.spaces()
		r.jsonArguments()
		return called
	},
}

// mistralListed is the first of the ways, which tokenizers without [ARGS] have.
var mistralListed = &Format{ShortIDs: true, openers: mistral.openers, read: mistral.read,
	envelope: objects("[TOOL_CALLS][", "arguments", ", ", "]")}

// For is the format as a model with these special tokens writes it.
func (f *Format) For(special func(text string) bool) *Format {
	if f == mistral && !special("[ARGS]") {
		return mistralListed
	}
	return f
}

// jsonArguments reads the arguments of the call that just began.
func (r *reader) jsonArguments() {
	c, ok := r.peek()
	switch {
	case !ok:
	case c == '{', c == '[', c == '"', c == 'n':
		r.argumentsTo(r.arguments)
	default:
		r.argumentText("{}")
	}
}

// isName is whether a word may be the name of a function.
func isName(s string) bool {
	for i := range len(s) {
		if !ofName(s[i]) {
			return false
		}
	}
	return s != ""
}

func ofName(c byte) bool {
	return isLetter(c) || '0' <= c && c <= '9' || c == '_' || c == '-' || c == '.' || c == ':' ||
		c == '/' || c >= 0x80
}

func isLetter(c byte) bool { return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' }
