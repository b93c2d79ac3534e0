package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/eagleray/eagleray/internal/text/output"
)

// Parsers of vLLM that are not here: mostly those of models that are not either.
var (
	otherToolParsers = []string{"beam", "deepseek_v41", "gigachat3", "hf", "hy_v4", "inkling",
		"k2_horizon", "kimi_k3", "ling3", "minicpm5", "minimax_m3", "muse", "muse_glimmer",
		"musespark1x", "plamo3", "poolside_v1", "solar_open2", "step3", "step5"}
	otherReasoningParsers = []string{"beam", "deepseek_v41", "hf", "hy_v4", "inkling",
		"k2_horizon", "kimi_k3", "ling3", "minimax_m3", "muse", "muse_glimmer", "musespark1x",
		"plamo3", "poolside_v1", "solar_open2"}
)

// toolParsers and reasoningParsers are the names of parsers that there are.
func toolParsers() []string { return append([]string{AutoParser, "none"}, output.FormatNames()...) }

func reasoningParsers() []string {
	return append([]string{AutoParser, "none"}, output.ThinkingNames()...)
}

// checkParsers refuses names of parsers that are not here, with the one that may be meant.
func checkParsers(m *Model) error {
	for _, c := range []struct {
		flag, value string
		here, vllm  []string
	}{
		{"tool-call-parser", m.ToolCallParser, toolParsers(), otherToolParsers},
		{"reasoning-parser", m.ReasoningParser, reasoningParsers(), otherReasoningParsers},
	} {
		if c.value == "" || slices.Contains(c.here, c.value) {
			continue
		}
		near, hint := closest(c.value, c.here), ""
		switch known := slices.Contains(c.vllm, c.value); {
		case known && near != "":
			hint = fmt.Sprintf(" (vLLM has it; the nearest here is %s)", near)
		case known:
			hint = " (vLLM has it)"
		case near != "":
			hint = fmt.Sprintf(" (did you mean %s?)", near)
		}
		return usage("--%s %q is not one of %s%s", c.flag, c.value, strings.Join(c.here, ", "),
			hint)
	}
	return nil
}
