package answer

// The calls of Hermes, Qwen 2.5 and Qwen 3:
//
//	<tool_call>
//	{"name": "f", "arguments": {"x": 1}}
//	</tool_call>
var hermes = &Format{
	Names:   []string{"hermes"},
	openers: []string{"<tool_call>"},
	closers: []string{"</tool_call>"},
	follows: []string{"{"},
	read: func(r *reader, opener string) verdict {
		r.spaces()
		for r.accept(opener) {
			r.spaces()
		}
		v := r.objectCall(&object{arguments: []string{"arguments", "parameters"}})
		for v == called {
			r.spaces()
			if !r.accept("}") { // one too many
				break
			}
		}
		return v
	},
}
