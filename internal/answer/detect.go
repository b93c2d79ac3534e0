package answer

import "strings"

// Detect recognises how a model writes calls and reasoning from its chat template, which shows it
// how to; nil is unknown.
func Detect(template string) (*Format, *Thinking) {
	var f *Format
	for _, name := range detectable {
		if all(template, signs[name]) {
			f = FormatNamed(name)
			break
		}
	}
	switch {
	case all(template, []string{"<｜Assistant｜>", "</think>"}):
		return f, ThinkingNamed("deepseek_r1")
	case strings.Contains(template, "</think>"):
		return f, ThinkingNamed("qwen3")
	}
	return f, nil
}

// detectable are formats in the order in which their signs are looked for: the special ones first.
var detectable = []string{"hermes"}

// signs are what a template has that shows a format.
var signs = map[string][]string{
	"hermes": {"<tool_call>", `"arguments"`},
}

func all(text string, signs []string) bool {
	for _, s := range signs {
		if !strings.Contains(text, s) {
			return false
		}
	}
	return true
}
