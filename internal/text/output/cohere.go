package output

// cohere is Command's: a plan or reasoning, then either an answer between tags or a list of calls.
// Command A has RESPONSE where the later models have TEXT:
//
//	<|START_THINKING|>It is …<|END_THINKING|><|START_ACTION|>[
//	    {"tool_call_id": "0", "tool_name": "f", "parameters": {"x": 1}}
//	]<|END_ACTION|>
//
// vLLM passes on the model's ids, which count from 0 in every answer: here each call has its own.
// Marks of citations, <co>…</co: 0:[1]>, which vLLM takes out, stay as the model wrote them.
func cohere(name, answer string) (*Format, *Thinking) {
	tag := func(side, what string) string { return "<|" + side + "_" + what + "|>" }
	l := &layout{tags: []string{tag("START", "RESPONSE"), tag("END", "RESPONSE"),
		tag("START", "TEXT"), tag("END", "TEXT")},
		begin: tag("START", answer), end: tag("END", answer)}
	f := listed([]string{tag("START", "ACTION")}, []string{tag("END", "ACTION")},
		&object{name: "tool_name", arguments: []string{"parameters"}}, name)
	f.layout = l
	f.envelope = &envelope{before: tag("START", "ACTION") + "[\n    ", between: ",\n    ",
		after: "\n]" + tag("END", "ACTION"), begin: `{"tool_call_id": "`, numbered: true,
		middle: `", "tool_name": "NAME", "parameters": `, end: "}"}
	return f, &Thinking{Names: []string{name}, layout: l,
		Start: []string{tag("START", "THINKING")}, End: []string{tag("END", "THINKING")}}
}

var (
	command3, command3Thinking = cohere("cohere_command3", "RESPONSE")
	command4, command4Thinking = cohere("cohere_command4", "TEXT")
)
