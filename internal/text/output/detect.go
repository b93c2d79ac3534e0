package output

import (
	"strings"

	"github.com/eagleray/eagleray/internal/text/typed"
)

// Detect recognises how a model writes calls and reasoning from its chat template, which shows it
// how to; nil is unknown.
func Detect(template string) (*Format, *Thinking) {
	f := FormatNamed(detect(template, formatSigns))
	return f, ThinkingNamed(detect(template, thinkingSigns))
}

// sign is what a template has that shows a parser.
type sign struct {
	name  string
	texts []string
}

// formatSigns and thinkingSigns are in the order in which they are looked for: what several
// families have comes last.
var (
	formatSigns = []sign{
		{"openai", []string{harmonyChannel, harmonyMessage}},
		{"kimi_k2", []string{"<|tool_calls_section_begin|>"}},
		{"deepseek_v4", []string{"｜DSML｜tool_calls"}},
		{"deepseek_v32", []string{"｜DSML｜"}},
		{"deepseek_v3", []string{callsBegin, "```json"}},
		{"deepseek_v31", []string{callsBegin}},
		{"mistral", []string{"[TOOL_CALLS]"}},
		{"hy_v3", []string{"<tool_sep>"}},
		{"glm47", []string{typed.GLM47.Text}},
		{"glm45", []string{typed.GLM.Begin}},
		{"seed_oss", []string{"<seed:tool_call>"}},
		{"minimax_m2", []string{"<minimax:tool_call>"}},
		{"lfm2", []string{"<|tool_call_start|>"}},
		{"cohere_command4", []string{"<|START_ACTION|>", "<|START_TEXT|>"}},
		{"cohere_command3", []string{"<|START_ACTION|>"}},
		{"gemma4", []string{"<|tool_call>", "call:"}},
		{"functiongemma", []string{"<start_function_call>"}},
		{"internlm", []string{"<|action_start|>"}},
		{"longcat", []string{"<longcat_tool_call>"}},
		{"qwen3_coder", []string{"<tool_call>", functionBegin}},
		{"apertus", []string{"<|tools_prefix|>"}},
		{"dots", []string{"<dots_function_call>"}},
		{"ernie45", []string{"<tool_call>", "<response>"}},
		{"olmo3", []string{"<function_calls>"}},
		{"phi4_mini_json", []string{"functools"}},
		{"granite", []string{"<|tool_call|>"}},
		{"jamba", []string{"<tool_calls>"}},
		{"llama4_pythonic", []string{"<|python_start|>"}},
		{"hermes", []string{"<tool_call>"}},
		{"llama3_json", []string{"<|python_tag|>"}},
		{"llama3_json", []string{"<|start_header_id|>", `"parameters": `}},
	}
	thinkingSigns = []sign{
		{"openai_gptoss", []string{harmonyChannel, harmonyMessage}},
		{"cohere_command4", []string{"<|START_THINKING|>", "<|START_TEXT|>"}},
		{"cohere_command3", []string{"<|START_THINKING|>"}},
		{"gemma4", []string{"<|channel>", "<channel|>"}},
		{"mistral", []string{"[THINK]"}},
		{"seed_oss", []string{"<seed:think>"}},
		{"granite", []string{"Here is my thought process:"}},
		{"ernie45", []string{"<response>", "</think>"}},
		{"hunyuan_a13b", []string{"<answer>", "</think>", "<|extra_0|>"}},
		{"deepseek_r1", []string{"<｜Assistant｜>", "</think>"}},
		{"qwen3", []string{"</think>"}},
	}
)

// detect returns the name of the first sign that the text has, "" for none.
func detect(text string, signs []sign) string {
next:
	for _, s := range signs {
		for _, t := range s.texts {
			if !strings.Contains(text, t) {
				continue next
			}
		}
		return s.name
	}
	return ""
}
