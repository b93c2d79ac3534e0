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
// built-in model: more tokens fit into the same memory, its answers are right, and the logarithm of
// the perplexity is within 0.01, of answers, which it knows, within 0.0001.
func TestCacheDTypes(t *testing.T) {
	most := 1000
	if testing.Short() {
		most = 60
	}
	var plain [2]float64
	blocks := 0
	for _, dtype := range []string{"auto", "int8", "fp8_e4m3"} {
		e := openEngine(t, func(c *config.Config) { c.Cache.DType = dtype })
		got := logprobs(t, e, most)
		asked, right := recall(t, e, most)
		t.Logf("%s: %d blocks, mean log-probabilities %.6f, %d of %d answers", dtype,
			e.Info().Blocks, got, right, asked)
		if dtype == "auto" {
			plain, blocks = got, e.Info().Blocks
			continue
		}
		if !(math.Abs(got[0]-plain[0]) < 0.01) || !(math.Abs(got[1]-plain[1]) < 0.0001) ||
			right < asked*99/100 {
			t.Errorf("%s: mean log-probabilities %v, not %v; %d of %d answers", dtype, got, plain,
				right, asked)
		}
		if e.Info().Blocks < blocks*17/10 {
			t.Errorf("%s: %d blocks, where there are %d of 16 bits", dtype, e.Info().Blocks, blocks)
		}
	}
}

// logprobs are the mean log-probabilities of a token of the first questions of recall.jsonl with
// their answers, and of the answers alone.
func logprobs(t *testing.T, e *engine.Engine, most int) (mean [2]float64) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	var n [2]int
	for q := range recalled(t, most) {
		r := greedy(e, q.Question, 1)
		r.Params.PromptLogprobs = 0
		asked := len(r.Prompt)
		tokens := append(r.Prompt, e.Info().Tokenizer.Encode(q.Answer, false)...)
		wg.Go(func() {
			s, err := e.Submit(t.Context(), engine.NewRequest(tokens, r.Params))
			if err != nil {
				t.Error(err)
				return
			}
			defer s.Close()
			for at := 0; ; {
				d, err := s.Next(t.Context())
				if errors.Is(err, io.EOF) {
					return
				}
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				for _, l := range d.PromptLogprobs {
					for i, from := range [2]int{1, asked} { // nothing is before the first token
						if at >= from {
							mean[i] += float64(l.Sampled.Logprob)
							n[i]++
						}
					}
					at++
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return [2]float64{mean[0] / float64(n[0]), mean[1] / float64(n[1])}
}
