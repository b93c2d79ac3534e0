package eagleray

import (
	"reflect"
	"slices"
	"testing"

	"github.com/eagleray/eagleray/internal/api/apitest"
	"github.com/eagleray/eagleray/internal/engine/replicas"
)

func narrow(v *float64) *float32 {
	if v == nil {
		return nil
	}
	return new(float32(*v))
}

// TestSameParametersAsHTTP holds that the Go API and the HTTP API make the same of one generation
// config and one request.
func TestSameParametersAsHTTP(t *testing.T) {
	for _, c := range apitest.Cases() {
		t.Run(c.Name, func(t *testing.T) {
			e := apitest.Open(t, c.Folder(t))
			want, wantTokens := c.Complete(t, e)

			p := SamplingParams{Temperature: narrow(c.Set.Temperature), TopP: narrow(c.Set.TopP),
				TopK: c.Set.TopK,
				Seed: new(uint64(apitest.Seed)), IgnoreEOS: c.IgnoreEOS}
			if c.Set.MaxTokens != nil {
				p.MaxTokens = *c.Set.MaxTokens
			}
			got, err := e.Info().Resolve(p.overrides(), defaultMaxTokens)
			if err != nil {
				t.Fatal(err)
			}
			// as Submit does
			e.Info().Fit(&got, len(e.Info().Tokenizer.Encode(apitest.Prompt, true)))
			if !reflect.DeepEqual(got, want) {
				t.Errorf("Go API %+v\nHTTP   %+v", got, want)
			}
			llm := &LLM{engines: replicas.New([]replicas.Engine{e}, true, nil)}
			defer llm.Close()
			out, err := llm.Generate(t.Context(), []string{apitest.Prompt}, p)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(out[0].Tokens, wantTokens) {
				t.Errorf("Go API gives %v, HTTP %v", out[0].Tokens, wantTokens)
			}
		})
	}
}

// TestLogprobs: log-probabilities of the most likely tokens, and of some that are named, agree.
func TestLogprobs(t *testing.T) {
	llm, err := Open(t.Context(), Options{KVCacheMemoryBytes: 32 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer llm.Close()
	p := SamplingParams{MaxTokens: 3, Temperature: new(float32), Logprobs: new(2)}
	likely, err := llm.Generate(t.Context(), []string{"func main() {"}, p)
	if err != nil {
		t.Fatal(err)
	}
	if len(likely[0].Logprobs) != 3 || len(likely[0].Logprobs[0].Top) != 2 {
		t.Fatalf("%+v", likely[0].Logprobs)
	}
	first := likely[0].Logprobs[0]
	if first.Token != first.Top[0] || first.Token.Token != likely[0].Tokens[0] {
		t.Errorf("%+v is not the most likely of itself", first)
	}
	p.Logprobs, p.LogprobTokenIDs = nil, []int32{first.Top[1].Token, first.Top[0].Token}
	named, err := llm.Generate(t.Context(), []string{"func main() {"}, p)
	if err != nil {
		t.Fatal(err)
	}
	if got := named[0].Logprobs[0]; !slices.Equal(got.Top, first.Top) || got.Token != first.Token {
		t.Errorf("named: %+v instead of %+v", got, first)
	}
}

// TestDataParallelSize: prompts are shared out among engines, and their outputs are those of one.
func TestDataParallelSize(t *testing.T) {
	prompts := []string{"func main() {", "What is a map?", "package os", "if err != nil",
		"type T struct"}
	greedy := SamplingParams{MaxTokens: 12, Temperature: new(float32), IgnoreEOS: true}
	var want []Output
	for _, engines := range []int{0, 2} {
		llm, err := Open(t.Context(), Options{DataParallelSize: engines,
			KVCacheMemoryBytes: 32 << 20})
		if err != nil {
			t.Fatal(err)
		}
		got, err := llm.Generate(t.Context(), prompts, greedy)
		if err != nil {
			t.Fatal(err)
		}
		if engines == 0 {
			want = got
		}
		for i := range prompts {
			if len(got[i].Tokens) != 12 || !slices.Equal(got[i].Tokens, want[i].Tokens) {
				t.Errorf("%d engines, prompt %d: %v, want %v", engines, i, got[i].Tokens,
					want[i].Tokens)
			}
		}
		for _, r := range llm.engines.Report() {
			if r.Finished == 0 {
				t.Errorf("engine %d of %d has nothing done", r.Engine, engines)
			}
		}
		if err := llm.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
