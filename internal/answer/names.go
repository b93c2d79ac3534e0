package answer

import "slices"

// formats are all ways of writing calls, thinkings all of writing reasoning.
var (
	formats   = []*Format{hermes}
	thinkings = []*Thinking{qwen3Thinking, deepseekThinking}
)

var (
	qwen3Thinking = &Thinking{Names: []string{"qwen3"}, Start: "<think>", End: "</think>"}
	// The templates of DeepSeek R1 begin the reasoning, or leave that to the model, which does not
	// always write the tag.
	deepseekThinking = &Thinking{Names: []string{"deepseek_r1"}, Start: "<think>",
		End: "</think>", Always: true}
)

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

// FormatNames and ThinkingNames list the names, sorted.
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
