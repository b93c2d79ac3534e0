package api

import (
	"slices"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/api/anthropic"
	"github.com/eagleray/eagleray/internal/api/openai"
	"github.com/eagleray/eagleray/internal/api/responses"
	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/ops/store"
	"github.com/eagleray/eagleray/internal/text/constrain"
	"github.com/eagleray/eagleray/internal/text/grammars"
)

// TestThinkingBudget: the tags of the model's reasoning reach the sampler as tokens, with the
// budget; the start only where the prompt has not begun it.
func TestThinkingBudget(t *testing.T) {
	s := newServer(t, func(o *Options) { o.Config.Model.ReasoningParser = "qwen3" })
	tok := tinyTokenizer(t)
	ask := func(path, body string) (budget int32, start, end []int32) {
		t.Helper()
		s.ok(t, path, body)
		p := s.engine.last(t).Params
		return p.ThinkingBudget, p.ThinkingStart, p.ThinkingEnd
	}
	const messages = `"messages":[{"role":"user","content":"hi"}]`
	budget, start, end := ask(openai.ChatPath, `{`+messages+`,"thinking_token_budget":5}`)
	if budget != 5 || !slices.Equal(start, tok.Encode("<think>", false)) ||
		!slices.Equal(end, tok.Encode("</think>", false)) {
		t.Errorf("budget %d, from %v to %v", budget, start, end)
	}
	if _, _, end := ask(openai.ChatPath, `{`+messages+`,"thinking_token_budget":-1}`); end != nil {
		t.Errorf("no budget, but an end: %v", end)
	}
	// What the prompt has of the reasoning counts.
	for content, want := range map[string]int{
		"":                         9,
		"one two":                  9 - len(tok.Encode("one two", false)),
		strings.Repeat("more ", 9): 0,
	} {
		budget, start, _ = ask(openai.ChatPath, `{"messages":[{"role":"user","content":"hi"},`+
			`{"role":"assistant","content":"<think>`+content+`"}],"continue_final_message":true,`+
			`"add_generation_prompt":false,"thinking_token_budget":9}`)
		if int(budget) != want || start != nil {
			t.Errorf("after %q: budget %d, want %d, from %v", content, budget, want, start)
		}
	}
	budget, _, end = ask(anthropic.MessagesPath, `{"max_tokens":9,`+messages+
		`,"thinking":{"type":"enabled","budget_tokens":7}}`)
	if budget != 7 || end == nil {
		t.Errorf("budget %d to %v", budget, end)
	}
	refused(t, s, openai.ChatPath, `{`+messages+`,"thinking_token_budget":-2}`, 400,
		"thinking_token_budget", "at least 0")
	refused(t, newServer(t), openai.ChatPath, `{`+messages+`,"thinking_token_budget":2}`, 400,
		"thinking_token_budget", "needs a model that reasons")
}

// merged puts deltas together where the bits of cut are unset, as the engine does for slow readers.
func merged(list []engine.Delta, cut int) (out []engine.Delta) {
	for i, d := range list {
		if i == 0 || cut>>(i-1)&1 == 1 {
			out = append(out, d)
			continue
		}
		out[len(out)-1] = together([]engine.Delta{out[len(out)-1], d})
	}
	return out
}

// TestReasoningTokens: the tokens of the reasoning are counted with those of its tags, on every
// route that tells it apart, streamed or not, however the engine's news were put together.
func TestReasoningTokens(t *testing.T) {
	for _, c := range []struct {
		texts  []string
		tokens float64
	}{
		{[]string{"<think>", "a b", " c", "</th", "ink>", "It", " is"}, 5},
		{[]string{"<think>", "a", "</think>It", " is"}, 3},
		{[]string{"It", " is", ""}, 0},
		{[]string{"<think>", "a", " b", ""}, 4}, // cut
		{[]string{"<th", "is is it"}, 0},
		{[]string{"<think>", "a", `<tool_call>{"name":"f"}`, "</tool_call>"}, 2},
		{[]string{"<|channel|>analysis<|message|>", "a", "<|end|>",
			"<|start|>assistant<|channel|>commentary<|message|>Hm.", "<|end|>",
			"<|start|>assistant<|channel|>analysis<|message|>", "b"}, 5},
	} {
		cut := 0
		s := newServer(t, hermesTemplate, keeping(t, store.Options{}), func(o *Options) {
			o.Config.Model.ToolCallParser, o.Config.Model.ReasoningParser = "hermes", "qwen3"
			if strings.HasPrefix(c.texts[0], "<|channel|>") {
				o.Config.Model.ToolCallParser = "openai"
				o.Config.Model.ReasoningParser = "openai_gptoss"
			}
			o.Engine = &fakeEngine{play: func(_ int, r *engine.Request) script {
				ids := make([]int32, len(c.texts))
				return script{deltas: merged(say(r, ids, c.texts, sample.FinishStop), cut)}
			}}
		})
		for cut = range 1 << (len(c.texts) - 1) {
			chat, response := `{`+askTools, `{`+hiInput
			got := []any{
				at(t, s.ok(t, openai.ChatPath, chat+`}`), "usage", "completion_tokens_details",
					"reasoning_tokens"),
				at(t, s.ok(t, responses.ResponsesPath, response+
					`,"tools":[{"type":"function","name":"f"}]}`), "usage",
					"output_tokens_details", "reasoning_tokens"),
			}
			list := chunks(t, s.post(openai.ChatPath, chat+
				`,"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}}`))
			got = append(got, at(t, list[len(list)-1], "usage", "completion_tokens_details",
				"reasoning_tokens"))
			for _, v := range got {
				if v != c.tokens {
					t.Errorf("%q cut by %b: %v tokens of reasoning, want %v", c.texts, cut, got,
						c.tokens)
				}
			}
		}
		s.Close()
	}
	s := newServer(t)
	if u := s.ok(t, openai.ChatPath,
		`{"messages":[{"role":"user","content":"hi"}]}`)["usage"].(map[string]any); u["completion_tokens_details"] != nil {
		t.Errorf("without a parser of reasoning: %v", u)
	}
}

// TestConstraintInChannels: where content is in a channel of its own, a constraint on it is too; a
// tool that is strict leaves a final answer, a call, or commentary before either.
func TestConstraintInChannels(t *testing.T) {
	s := newServer(t, hermesTemplate, func(o *Options) {
		o.Config.Model.ToolCallParser = "openai"
		o.Config.Model.ReasoningParser = "openai_gptoss"
	})
	for body, want := range map[string][]string{
		hiChat + `,"response_format":{"type":"json_object"}`: {
			`"value":"<|channel|>analysis<|message|>"`, `"value":"<|start|>assistant"`,
			`{"begin":"<|channel|>final<|message|>","content":{"json_schema":{"type":"object"}`},
		strings.Replace(askTools, `"name":"f"`, `"name":"f","strict":true`, 1): {
			`{"begin":"<|channel|>commentary<|message|>","content":{"excludes":["<|start|>","<|channel|>"]`,
			`{"begin":"<|channel|>final<|message|>","content":{"excludes":["<|start|>","<|channel|>"]`,
			`"begin":"<|channel|>commentary to=functions.f <|constrain|>json<|message|>"`},
	} {
		s.ok(t, openai.ChatPath, `{`+body+`}`)
		c := s.engine.last(t).Constraint
		for _, text := range want {
			if c.Kind != constrain.StructuralTag || !strings.Contains(c.Text, text) {
				t.Errorf("%s makes %v, without %s", body, c, text)
			}
		}
		if _, err := constrain.Compile(c, grammars.Vocabulary(s.Model.Tokenizer),
			constrain.Limits{}); err != nil {
			t.Error(err)
		}
	}
}
