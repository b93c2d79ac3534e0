package config_test

import (
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/ops/config"
)

// vLLM's names: those of 0.33, and one of a release before.
const (
	toolParsers = "dots deepseek_v3 deepseek_v31 deepseek_v32 deepseek_v4 deepseek_v41 " +
		"cohere_command3 cohere_command4 ernie45 glm45 glm47 ling3 granite-20b-fc " +
		"granite granite4 hermes hf beam poolside_v1 hunyuan_a13b hy_v3 hy_v4 internlm " +
		"jamba lfm2 kimi_k2 kimi_k3 k2_horizon llama3_json llama4_json llama4_pythonic " +
		"longcat mimo minimax_m2 minimax_m3 minicpm5 mistral olmo3 plamo3 muse " +
		"muse_glimmer musespark1x openai phi4_mini_json pythonic qwen3_coder qwen3_json " +
		"qwen3_xml seed_oss step3 step3p5 step5 inkling xlam gigachat3 functiongemma " +
		"gemma4 apertus solar_open2"
	reasoningParsers = "deepseek_r1 deepseek_v3 deepseek_v4 deepseek_v41 poolside_v1 " +
		"cohere_command3 cohere_command4 ernie45 gemma4 glm45 glm47 ling3 openai_gptoss granite " +
		"granite_thinking_parser hf beam holo2 hunyuan_a13b hy_v3 hy_v4 kimi_k2 kimi_k3 " +
		"k2_horizon mimo minicpmv minimax_m2 minimax_m2_append_think minimax_m3 mistral " +
		"nemotron_v3 olmo3 plamo3 muse muse_glimmer musespark1x qwen3 seed_oss step3 " +
		"step3p5 step5 inkling solar_open2"
)

// TestParsers: every parser of vLLM works, or is refused as one of vLLM's.
func TestParsers(t *testing.T) {
	refused := 0
	check := func(name string, set func(m *config.Model, name string)) {
		t.Helper()
		c := config.Default()
		set(&c.Model, name)
		if err := c.Validate(); err != nil && !strings.Contains(err.Error(), "vLLM has it") {
			t.Errorf("%s: %v", name, err)
		} else if err != nil {
			refused++
		}
	}
	for name := range strings.FieldsSeq(toolParsers) {
		check(name, func(m *config.Model, name string) { m.ToolCallParser = name })
	}
	for name := range strings.FieldsSeq(reasoningParsers) {
		check(name, func(m *config.Model, name string) { m.ReasoningParser = name })
	}
	if refused > 34 {
		t.Errorf("%d parsers are refused", refused)
	}
	for name, want := range map[string]string{
		"hermess": "(did you mean hermes?)",
		"kimi_k3": "(vLLM has it; the nearest here is kimi_k2)",
		"beam":    "(vLLM has it)", "zzz": "xlam",
	} {
		c := config.Default()
		c.Model.ToolCallParser = name
		if err := c.Validate(); err == nil || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%s: %v, want %s", name, err, want)
		}
	}
}
