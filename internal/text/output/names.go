package output

import (
	"slices"

	"github.com/eagleray/eagleray/internal/text/typed"
)

// formats are all ways of writing calls. What makes them is not inlined: copies of it at each place
// would take kilobytes of the program.
var formats = []*Format{
	tagged("<tool_call>", "</tool_call>", "hermes", "granite4", "qwen3_json"),
	ernieCalls,
	tagged("<longcat_tool_call>", "</longcat_tool_call>", "longcat"),
	qwenXML("<tool_call>", "</tool_call>", "qwen3_coder", "qwen3_xml", "mimo", "step3p5"),
	qwenXML("<seed:tool_call>", "</seed:tool_call>", "seed_oss"),
	llama3,
	pythonic,
	olmo,
	mistral,
	deepseek("deepseek_v3", callBegin+"function"+callSep+"NAME\n```json\n", "\n```"+callEnd),
	deepseek("deepseek_v31", callBegin+"NAME"+callSep, callEnd),
	dsml("function_calls", "deepseek_v32"),
	dsml("tool_calls", "deepseek_v4"),
	tagParameters("minimax:tool_call", "minimax_m2"),
	tagParameters("dots_function_call", "dots"),
	apertus,
	hunyuan,
	lfm2,
	internlm,
	granite20b,
	xlam,
	granite,
	listed([]string{"functools"}, nil, &plainObject, "phi4_mini_json", "phi4_mini"),
	listed([]string{"<tool_calls>"}, []string{"</tool_calls>"}, &plainObject,
		"jamba", "hunyuan_a13b"),
	glm(typed.GLM, "\n", "glm45"),
	glm(typed.GLM47, "", "glm47"),
	kimi,
	harmonyCalls,
	command3,
	command4,
	gemma4Calls,
	gemma("<start_function_call>", "<end_function_call>", typed.FunctionGemma),
}

// granite may leave the tag out.
var granite = func() *Format {
	f := listed([]string{"<|tool_call|>", "<tool_call>"}, nil, &plainObject, "granite")
	f.closers = []string{"</tool_call>"}
	f.start = func(r *reader) verdict {
		if r.spaces(); !r.next('[') {
			return refused
		}
		return r.listCall(&plainObject)
	}
	return f
}()

// ernie is ERNIE 4.5's: content after reasoning may be between tags of its own.
var (
	ernie         = &layout{tags: []string{"<response>", "</response>"}}
	ernieThinking = &Thinking{Names: []string{"ernie45"}, layout: ernie,
		Start: []string{"<think>"}, End: []string{"</think>"}}
	ernieCalls = func() *Format {
		f := tagged("<tool_call>", "</tool_call>", "ernie45")
		f.layout = ernie
		return f
	}()
)

// internlm has one call, as an object of JSON.
var internlm = &Format{
	Names:   []string{"internlm"},
	openers: []string{"<|action_start|>"},
	closers: []string{"<|action_end|>"},
	inner:   []string{"<|plugin|>"},
	envelope: &envelope{begin: "<|action_start|><|plugin|>\n{\"name\": \"NAME\", \"parameters\": ",
		end: "}<|action_end|>", between: "\n"},
	read: func(r *reader, _ string) verdict {
		r.spaces()
		r.accept("<|plugin|>")
		r.spaces()
		return r.objectCall(&plainObject)
	},
}

// granite20b has a tag before each call, and none after it.
var granite20b = &Format{
	Names:   []string{"granite-20b-fc"},
	openers: []string{"<function_call>"},
	follows: []string{"{"},
	envelope: &envelope{begin: "<function_call> {\"name\": \"NAME\", \"arguments\": ", end: "}",
		between: "\n"},
	read: func(r *reader, _ string) verdict {
		r.spaces()
		return r.objectCall(&plainObject)
	},
}

// xlam has a list for all of its answer, which it may put in a block of code.
var xlam = &Format{
	Names:    []string{"xlam"},
	closers:  []string{"```"},
	envelope: objects("[", "arguments", ", ", "]"),
	start: func(r *reader) verdict {
		r.spaces()
		if r.acceptAny([]string{"```json", "```"}) {
			r.spaces()
		}
		return r.listCall(&plainObject)
	},
}

// thinkings are all ways of writing reasoning.
var thinkings = []*Thinking{
	think("<think>", "</think>", false, "qwen3", "deepseek_v3", "deepseek_v4", "glm45", "glm47",
		"kimi_k2", "holo2", "olmo3", "mimo", "hy_v3", "minicpmv"),
	// The templates of these begin the reasoning, or leave that to the model, which does not always
	// write the tag.
	think("<think>", "</think>", true, "deepseek_r1", "minimax_m2", "nemotron_v3", "step3",
		"step3p5", "step5", "granite_thinking_parser"),
	think("<seed:think>", "</seed:think>", false, "seed_oss"),
	think("[THINK]", "[/THINK]", false, "mistral"),
	{Names: []string{"granite"},
		Start: []string{"Here is my thought process:", "Here's my thought process:"},
		End:   []string{"Here is my response:", "Here's my response:"}},
	harmonyThinking,
	command3Thinking,
	command4Thinking,
	gemma4Thinking,
	ernieThinking,
	{Names: []string{"hunyuan_a13b"}, Start: []string{"<think>"}, End: []string{"</think>"},
		layout: &layout{tags: []string{"<answer>", "</answer>"}}},
	{Names: []string{"minimax_m2_append_think"}, Start: []string{"<think>"},
		End: []string{"</think>"}, Always: true, aloud: true},
}

//go:noinline
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
