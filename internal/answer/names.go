package answer

import "slices"

// formats are all ways of writing calls.
var formats = []*Format{
	tagged("<tool_call>", "</tool_call>", "hermes", "granite4"),
	tagged("<longcat_tool_call>", "</longcat_tool_call>", "longcat"),
	qwenXML("<tool_call>", "</tool_call>", "qwen3_coder", "qwen3_xml"),
	qwenXML("<seed:tool_call>", "</seed:tool_call>", "seed_oss"),
	llama3,
	pythonic,
	olmo,
	mistral,
	deepseek("deepseek_v3", callBegin+"function"+callSep+"NAME\n```json\n", "\n```"+callEnd),
	deepseek("deepseek_v31", callBegin+"NAME"+callSep, callEnd),
	dsml,
	granite,
	listed([]string{"functools"}, nil, "phi4_mini_json", "phi4_mini"),
	listed([]string{"<tool_calls>"}, []string{"</tool_calls>"},
		"jamba"),
	glm,
	kimi,
}

// granite may leave the tag out.
var granite = func() *Format {
	f := listed([]string{"<|tool_call|>", "<tool_call>"}, nil, "granite")
	f.closers = []string{"</tool_call>"}
	f.start = func(r *reader) verdict {
		if r.spaces(); !r.next('[') {
			return refused
		}
		return r.listCall(&plainObject)
	}
	return f
}()

// thinkings are all ways of writing reasoning.
var thinkings = []*Thinking{
	think("<think>", "</think>", false, "qwen3", "deepseek_v3", "glm45", "kimi_k2", "ernie45", "holo2",
		"olmo3", "mimo"),
	// The templates of these begin the reasoning, or leave that to the model, which does not always
	// write the tag.
	think("<think>", "</think>", true, "deepseek_r1", "minimax_m2", "nemotron_v3", "step3"),
	think("<seed:think>", "</seed:think>", false, "seed_oss"),
	think("[THINK]", "[/THINK]", false, "mistral"),
	{Names: []string{"granite"},
		Start: []string{"Here is my thought process:", "Here's my thought process:"},
		End:   []string{"Here is my response:", "Here's my response:"}},
}

func think(start, end string, always bool, names ...string) *Thinking {
	return &Thinking{Names: names, Start: []string{start}, End: []string{end}, Always: always}
}

// FormatNamed returns the format with one of vLLM's names, nil for none.
func FormatNamed(name string) *Format {
	i := slices.IndexFunc(formats, func(f *Format) bool { return slices.Contains(f.Names, name) })
	if i < 0 {
		return nil
	}
	return formats[i]
}

// ThinkingNamed returns the reasoning with one of vLLM's names, nil for none.
func ThinkingNamed(name string) *Thinking {
	i := slices.IndexFunc(thinkings,
		func(f *Thinking) bool { return slices.Contains(f.Names, name) })
	if i < 0 {
		return nil
	}
	return thinkings[i]
}

// FormatNames lists the names of FormatNamed, sorted.
func FormatNames() []string {
	var list []string
	for _, f := range formats {
		list = append(list, f.Names...)
	}
	slices.Sort(list)
	return list
}

// ThinkingNames lists the names of ThinkingNamed, sorted.
func ThinkingNames() []string {
	var list []string
	for _, f := range thinkings {
		list = append(list, f.Names...)
	}
	slices.Sort(list)
	return list
}
