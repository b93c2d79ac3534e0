package engine_test

import (
	"path/filepath"
	"slices"
	"testing"

	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/link/status"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/rank/model/predictortest"
)

var shipped = filepath.Join("..", "..", "testdata", "models")

// guessing makes of a model one with a layer that predicts a token more, or for Llama and Qwen 3 a
// head of EAGLE-3, and returns its folder and how it guesses.
func guessing(t *testing.T, name string) (dir string, how config.Speculative) {
	t.Helper()
	base, made := filepath.Join(shipped, name), t.TempDir()
	if slices.Contains([]string{"llama-tiny", "qwen3-tiny", "qwen3moe-tiny"}, name) {
		if err := predictortest.Eagle3(made, base, 1, []int{1, 2, 3}); err != nil {
			t.Fatal(err)
		}
		return base, config.Speculative{Method: config.Eagle3, Tokens: 3, Model: made}
	}
	if err := predictortest.Extend(made, base, predictortest.Options{Seed: 1,
		Copies: name == "glm4moe-tiny"}); err != nil {
		t.Fatal(err)
	}
	return made, config.Speculative{Method: config.MTP, Tokens: 3}
}

// guessable are requests a third of whose tokens are guessed right by chance.
func guessable(e *engine.Engine, n, tokens int) (list []*engine.Request) {
	for i := range n {
		p := params(e, int32(tokens))
		p.EOS, p.Temperature, p.Seed, p.Logprobs = -1, float32(i%2)/4, uint64(i), 2
		p.AllowedTokens = []int32{5, 8, 71}
		prompt := []int32{5, 6, 7, 8, int32(9 + i), 10}
		list = append(list, engine.NewRequest(append(prompt, prompt...), p))
	}
	return list
}

// TestPredictor has the layer of a checkpoint that predicts a token more guess, or a head of
// EAGLE-3: answers are those without it, to the bits of each log-probability, and some guesses are
// right.
func TestPredictor(t *testing.T) {
	for _, name := range []string{"deepseek-v3-tiny", "glm4moe-tiny", "llama-tiny", "qwen3-tiny",
		"qwen3next-tiny", "../variants/qwen3.5-moe-vision"} {
		t.Run(filepath.Base(name), func(t *testing.T) {
			dir, guesses := guessing(t, name)
			caches := make(chan status.WeightsCache, 4)
			run := func(change func(*config.Config)) ([]received, engine.Totals) {
				e, _ := openWith(t, func(c *config.Config) {
					c.Model.Path, c.Model.Tokenizer = dir, filepath.Join(shipped, "go-std-tiny")
					c.Parallel.Backend = "uni"
					change(c)
				}, func(e status.Event) {
					if e, ok := e.(status.WeightsCache); ok {
						caches <- e
					}
				})
				return receiveAll(t, e, guessable(e, 3, 40), func(int) {}), e.Totals()
			}
			guess := func(c *config.Config) { c.Speculative = guesses }
			int8 := func(c *config.Config) { c.Model.Quantization = "int8" }
			want, _ := run(int8)
			cache := t.TempDir()
			right, of := uint64(0), uint64(0) // in all: how many there are is a matter of time
			for _, stored := range []bool{true, false} {
				got, totals := run(func(c *config.Config) {
					guess(c)
					int8(c)
					c.Model.WeightsCache = cache
				})
				same(t, "int8", got, want)
				right, of = right+totals.AcceptedTokens, of+totals.DraftTokens
				if c := <-caches; c.Failure != "" || c.Bytes == 0 || c.Stored != stored ||
					c.Found == stored || totals.DraftTokens == 0 {
					t.Errorf("%+v, %d guesses", c, totals.DraftTokens)
				}
			}
			want, _ = run(func(*config.Config) {})
			for what, change := range map[string]func(*config.Config){
				"one rank": guess,
				"in stages, with ranks that share layers": func(c *config.Config) {
					guess(c)
					c.Parallel.TensorParallelSize, c.Parallel.PipelineParallelSize = 2, 2
				},
				"in a stage for each layer": func(c *config.Config) {
					guess(c)
					c.Parallel.PipelineParallelSize = 4
				},
				"short of blocks": func(c *config.Config) {
					guess(c)
					c.Model.MaxModelLen = 128
					c.Cache.MemoryBytes, c.Cache.Blocks = 0, 8
					c.Schedule.MaxNumBatchedTokens = 16
					c.Schedule.MaxNumSeqs = 4
				},
			} {
				got, totals := run(change)
				same(t, what, got, want)
				t.Logf("%s: %d of %d guesses right, %d preempted", what, totals.AcceptedTokens,
					totals.DraftTokens, totals.Preemptions)
				if totals.DraftTokens == 0 {
					t.Errorf("%s: no guesses", what)
				}
				right, of = right+totals.AcceptedTokens, of+totals.DraftTokens
			}
			if right == 0 || right == of {
				t.Errorf("%d of %d guesses right", right, of)
			}
		})
	}
}

// TestPredictorBehindFiles has a layer that predicts a token more guess behind blocks that come
// from files, which have no keys and values of it, and behind those that it has computed itself.
func TestPredictorBehindFiles(t *testing.T) {
	model, guesses := guessing(t, "glm4moe-tiny")
	dir := filepath.Join(t.TempDir(), "kv")
	var want []received
	for i := range 2 {
		e, _ := openWith(t, func(c *config.Config) {
			c.Model.Path, c.Model.Tokenizer = model, filepath.Join(shipped, "go-std-tiny")
			c.Parallel.Backend, c.Speculative = "uni", guesses
			c.Cache.Offloading.GiB, c.Cache.Offloading.Dir = 0.1, dir
		}, func(status.Event) {})
		for again := range 2 {
			list := guessable(e, 3, 40)
			for _, r := range list {
				r.Prompt = slices.Repeat(r.Prompt, 6) // blocks, and some of one
			}
			before := e.Totals()
			got, after := receiveAll(t, e, list, func(int) {}), e.Totals()
			if want == nil {
				want = got
			}
			same(t, "again", got, want)
			files, right := after.ExternalHits-before.ExternalHits,
				after.AcceptedTokens-before.AcceptedTokens
			if (files > 0) != (i == 1 && again == 0) || right == 0 {
				t.Errorf("engine %d, %d: %d tokens from files, %d guesses right", i, again, files,
					right)
			}
			t.Logf("engine %d, %d: %d tokens from files, %d of %d guesses right", i, again, files,
				right, after.DraftTokens-before.DraftTokens)
		}
		awaitFiles(t, dir, 9)
	}
}

// TestPredictorAmongRanks has a layer that predicts a token more, and a head of EAGLE-3, go on from
// hidden states of other ranks: of places among which requests are divided, and of pieces of long
// prompts. The guesses are those from the hidden states of one rank.
func TestPredictorAmongRanks(t *testing.T) {
	for _, name := range []string{"deepseek-v3-tiny", "qwen3moe-tiny"} {
		dir, guesses := guessing(t, name)
		run := func(requests int, change func(*config.Parallel)) ([]received, engine.Totals) {
			e, _ := openWith(t, func(c *config.Config) {
				c.Model.Path, c.Model.Tokenizer = dir, filepath.Join(shipped, "go-std-tiny")
				c.Parallel.Backend, c.Speculative = "uni", guesses
				change(&c.Parallel)
			}, func(status.Event) {})
			var list []*engine.Request
			for range requests {
				p := params(e, 24)
				p.EOS, p.Temperature, p.Seed = -1, 0.25, 1
				p.AllowedTokens = []int32{5, 8, 71} // so that a third is right by chance
				prompt := make([]int32, 70)
				for i := range prompt {
					prompt[i] = int32(5 + i*i%31)
				}
				list = append(list, engine.NewRequest(prompt, p))
			}
			return receiveAll(t, e, list, func(int) {}), e.Totals()
		}
		want, one := run(1, func(*config.Parallel) {})
		for _, c := range []struct {
			what     string
			requests int
			change   func(p *config.Parallel)
		}{
			{"places", 2, func(p *config.Parallel) {
				p.DataParallelSize, p.ExpertParallel = 2, true
			}},
			// Of two requests in stages one may be behind the other, and learn from its guesses.
			{"places in stages", 1, func(p *config.Parallel) {
				p.DataParallelSize, p.PipelineParallelSize, p.ExpertParallel = 2, 2, true
			}},
			{"pieces of prompts", 1, func(p *config.Parallel) {
				p.PrefillContextParallelSize = 2
			}},
			{"pieces of prompts in stages", 1, func(p *config.Parallel) {
				p.PrefillContextParallelSize, p.PipelineParallelSize = 2, 2
			}},
			{"pieces of prompts with whole experts", 1, func(p *config.Parallel) {
				p.PrefillContextParallelSize, p.TensorParallelSize = 2, 2
				p.ExpertParallel = true
			}},
		} {
			got, all := run(c.requests, c.change)
			for i := range got {
				same(t, c.what, got[i:i+1], want)
			}
			if n := uint64(c.requests); all.DraftTokens != n*one.DraftTokens ||
				all.AcceptedTokens != n*one.AcceptedTokens || one.AcceptedTokens == 0 {
				t.Errorf("%s, %s: %d requests have %d of %d guesses right, one of a rank %d of %d",
					name, c.what, c.requests, all.AcceptedTokens, all.DraftTokens,
					one.AcceptedTokens, one.DraftTokens)
			}
		}
	}
}
