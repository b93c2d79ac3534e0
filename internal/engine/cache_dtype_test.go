package engine_test

import (
	"errors"
	"io"
	"math"
	"sync"
	"testing"

	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/ops/config"
)

// TestCacheDTypes holds KV caches of a byte for each value to the one of bfloat16, with the
// built-in model: more tokens fit into the same memory, its answers are right, and the perplexity
// of questions and answers is within half a percent.
func TestCacheDTypes(t *testing.T) {
	most := 1000
	if testing.Short() {
		most = 60
	}
	var plain float64
	blocks := 0
	for _, dtype := range []string{"auto", "int8", "fp8_e4m3"} {
		e := openEngine(t, func(c *config.Config) { c.Cache.DType = dtype })
		got := perplexity(t, e, most)
		asked, right := recall(t, e, most)
		t.Logf("%s: %d blocks, perplexity %.5f, %d of %d answers", dtype, e.Info().Blocks, got,
			right, asked)
		if dtype == "auto" {
			plain, blocks = got, e.Info().Blocks
			continue
		}
		if !(math.Abs(got/plain-1) < 0.005) || right < asked*99/100 {
			t.Errorf("%s: perplexity %v, not %v; %d of %d answers", dtype, got, plain, right, asked)
		}
		if e.Info().Blocks < blocks*17/10 {
			t.Errorf("%s: %d blocks, where there are %d of 16 bits", dtype, e.Info().Blocks, blocks)
		}
	}
}

// perplexity is that of the first questions of recall.jsonl with their answers.
func perplexity(t *testing.T, e *engine.Engine, most int) float64 {
	var wg sync.WaitGroup
	var mu sync.Mutex
	var sum float64
	n := 0
	for q := range recalled(t, most) {
		r := greedy(e, q.Question, 1)
		r.Params.PromptLogprobs = 0
		tokens := append(r.Prompt, e.Info().Tokenizer.Encode(q.Answer, false)...)
		wg.Go(func() {
			s, err := e.Submit(t.Context(), engine.NewRequest(tokens, r.Params))
			if err != nil {
				t.Error(err)
				return
			}
			defer s.Close()
			for {
				d, err := s.Next(t.Context())
				if errors.Is(err, io.EOF) {
					return
				}
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				for i := range d.PromptLogprobs {
					sum -= float64(d.PromptLogprobs[i].Sampled.Logprob)
				}
				n += len(d.PromptLogprobs)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return math.Exp(sum / float64(n))
}
