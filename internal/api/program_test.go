package api

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/api/pooling"
	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/link/step"
)

// TestLogprobsByID has log-probabilities by the ids of tokens, in whole answers and in streams.
func TestLogprobsByID(t *testing.T) {
	s := newServer(t)
	s.engine.play = func(_ int, r *engine.Request) script {
		d := say(r, []int32{300, 301}, []string{"a", "b"}, sample.FinishLength)
		for i := range d {
			d[i].Logprobs = nil
			for j, id := range d[i].Tokens {
				d[i].Logprobs = append(d[i].Logprobs, step.Logprobs{
					Sampled: step.TokenLogprob{Token: id, Logprob: -2, Rank: 3},
					Top: []step.TokenLogprob{{Token: 5, Logprob: -0.5, Rank: 1},
						{Token: id, Logprob: -2, Rank: 2 + int32(j)}}})
			}
		}
		return script{deltas: d}
	}
	const body = `"prompt":[1],"logprobs":2,"logprobs_by_id":true`
	entry := func(list any, i int, id string) any { return list.([]any)[i].(map[string]any)[id] }
	check := func(list any, i int, id string, logprob, rank float64) {
		t.Helper()
		e, _ := entry(list, i, id).(map[string]any)
		if e["logprob"] != logprob || e["rank"] != rank || e["decoded_token"] == nil {
			t.Errorf("token %s at %d: %v", id, i, e)
		}
	}
	got := at(t, s.ok(t, completionsPath, `{`+body+`}`), "choices", 0, "logprobs")
	check(got, 0, "300", -2, 3)
	check(got, 0, "5", -0.5, 1)
	check(got, 1, "301", -2, 3)
	if n := len(got.([]any)[0].(map[string]any)); n != 2 {
		t.Errorf("%d entries: %v", n, got)
	}
	var ids []string
	for _, e := range events(t, s.post(completionsPath, `{`+body+`,"stream":true}`).Body.String()) {
		if e == "[DONE]" {
			break
		}
		if list, ok := at(t, object(t, []byte(e)), "choices", 0, "logprobs").([]any); ok {
			for _, m := range list {
				for id := range m.(map[string]any) {
					ids = append(ids, id)
				}
			}
		}
	}
	slices.Sort(ids)
	if want := []string{"300", "301", "5", "5"}; !slices.Equal(ids, want) {
		t.Errorf("the stream has %v, want %v", ids, want)
	}
}

// TestCapMaxTokens cuts max_tokens to the room beside the prompt, which must be there.
func TestCapMaxTokens(t *testing.T) {
	s := newServer(t)
	most := s.Model.MaxModelLen
	body := fmt.Sprintf(`"prompt":[1,2,3],"max_tokens":%d`, most+1)
	if rec := s.post(completionsPath, `{`+body+`}`); rec.Code != 400 {
		t.Errorf("%d %s", rec.Code, rec.Body)
	}
	s.ok(t, completionsPath, `{`+body+`,"cap_max_tokens":true}`)
	if n := s.engine.last(t).Params.MaxTokens; int(n) != most-3 {
		t.Errorf("%d tokens, want %d", n, most-3)
	}
	s.ok(t, completionsPath, `{`+body+`,"cap_max_tokens":true,"truncate_prompt_tokens":2}`)
	if r := s.engine.last(t); len(r.Prompt) != 2 || int(r.Params.MaxTokens) != most-2 {
		t.Errorf("%d tokens after %v", r.Params.MaxTokens, r.Prompt)
	}
	long := `{"prompt":[` + repeat("1", most) + `],"max_tokens":1,"cap_max_tokens":true}`
	if rec := s.post(completionsPath, long); rec.Code != 400 {
		t.Errorf("no room: %d %s", rec.Code, rec.Body)
	}
}

// TestTextsOfPrompts has prompts back as text.
func TestTextsOfPrompts(t *testing.T) {
	s := newServer(t)
	chat := s.ok(t, "/tokenize", `{`+hiChat+`,"return_prompt":true}`)
	text, _ := chat["prompt"].(string)
	var ids strings.Builder
	for _, id := range chat["tokens"].([]any) {
		fmt.Fprintf(&ids, ",%v", id)
	}
	list := `{"tokens":[` + ids.String()[1:] + `]`
	if got := s.ok(t, "/detokenize", list+`}`)["prompt"]; got != text || text == "" {
		t.Errorf("the prompt is %q, its tokens are %q", text, got)
	}
	if got := s.ok(t, "/detokenize",
		list+`,"skip_special_tokens":true}`)["prompt"].(string); len(got) >=
		len(text) {
		t.Errorf("%q without special tokens is %q", text, got)
	}
	if got := s.ok(t, "/tokenize",
		`{"prompt":"hello","return_prompt":true}`)["prompt"]; got != "hello" {
		t.Errorf("the prompt is %v", got)
	}
	if _, there := s.ok(t, "/tokenize", `{"prompt":"hello"}`)["prompt"]; there {
		t.Error("the prompt is there unasked")
	}
	pools := poolingServer(t, nil)
	got := at(t, pools.ok(t, pooling.EmbeddingsPath,
		`{"input":[[0,5],[12]],"return_token_ids":true}`), "data", 0, "prompt_token_ids")
	if fmt.Sprint(got) != "[0 5]" {
		t.Errorf("an embedding of %v", got)
	}
}
