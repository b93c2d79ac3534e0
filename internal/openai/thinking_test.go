package openai

import (
	"slices"
	"testing"
)

// TestThinkingBudget: the tags of the model's reasoning reach the sampler as tokens, with the budget;
// the start only where the prompt has not begun it.
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
	budget, start, end := ask(chatPath, `{`+messages+`,"thinking_token_budget":5}`)
	if budget != 5 || !slices.Equal(start, tok.Encode("<think>", false)) ||
		!slices.Equal(end, tok.Encode("</think>", false)) {
		t.Errorf("budget %d, from %v to %v", budget, start, end)
	}
	if _, _, end := ask(chatPath, `{`+messages+`,"thinking_token_budget":-1}`); end != nil {
		t.Errorf("no budget, but an end: %v", end)
	}
	budget, _, end = ask(messagesPath, `{"max_tokens":9,`+messages+
		`,"thinking":{"type":"enabled","budget_tokens":7}}`)
	if budget != 7 || end == nil {
		t.Errorf("budget %d to %v", budget, end)
	}
	refused(t, s, chatPath, `{`+messages+`,"thinking_token_budget":-2}`, 400, "thinking_token_budget", "at least 0")
	refused(t, newServer(t), chatPath, `{`+messages+`,"thinking_token_budget":2}`, 400,
		"thinking_token_budget", "needs a model that reasons")
}
