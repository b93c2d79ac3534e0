package engine_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http/httptest"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/ops/config"
)

// TestExpertLoad counts the rows of a known run. Bits are the same in any layout, and so is where
// rows go: every layout counts what one rank does, in which each row of a request counts once for
// each expert of a token.
func TestExpertLoad(t *testing.T) {
	// The second prompt has a token of output: where requests are divided its place is idle then.
	const prompt, output, second = 150, 7, 100
	layouts := []struct {
		backend         string
		tp, pp, pcp, dp int
	}{{"uni", 1, 1, 1, 1}, {"uni", 2, 1, 1, 1}, {"uni", 1, 2, 1, 1}, {"uni", 1, 1, 2, 1},
		{"mp", 2, 2, 1, 1}, {"uni", 1, 1, 1, 2}, {"uni", 1, 1, 2, 2}}
	for _, m := range []struct {
		name                        string
		experts, perToken, mixtures int
	}{
		{"qwen3moe-tiny", 8, 2, 4},
		{"deepseek-v3-tiny", 16, 4, 3},
		{"gpt-oss-tiny", 8, 2, 4},
	} {
		var alone []engine.ExpertLoad
		for _, l := range layouts {
			name := fmt.Sprintf("%s %+v", m.name, l)
			e, series := openMeasured(t, func(c *config.Config) {
				c.Model.Path, c.Model.SkipTokenizerInit = "../../testdata/models/"+m.name, true
				c.Model.ServedNames = []string{"m"}
				p := &c.Parallel
				p.Backend, p.CPUThreads = l.backend, 1
				p.TensorParallelSize, p.PipelineParallelSize = l.tp, l.pp
				p.PrefillContextParallelSize, p.DataParallelSize = l.pcp, l.dp
				p.ExpertParallel = l.dp > 1
				c.Schedule.MaxNumBatchedTokens, c.Schedule.MaxNumSeqs = 100, 8
			})
			r := rand.New(rand.NewPCG(1, 2))
			tokens := make([]int32, prompt)
			for i := range tokens {
				tokens[i] = r.Int32N(int32(e.Info().VocabSize))
			}
			params := sample.Params{TopP: 1, RepetitionPenalty: 1, EOS: -1,
				Logprobs: sample.NoLogprobs, PromptLogprobs: sample.NoLogprobs, MaxTokens: output}
			q := engine.NewRequest(tokens, params)
			params.MaxTokens = 1
			short := engine.NewRequest(tokens[prompt-second:], params)
			q.Raw, short.Raw = true, true
			other, err := e.Submit(t.Context(), short)
			if err != nil {
				t.Fatal(err)
			}
			mustAsk(t, e, q)
			for err == nil {
				_, err = other.Next(t.Context())
			}
			other.Close()
			loads, err := e.ExpertLoad(t.Context())
			if err != nil || len(loads) != m.mixtures {
				t.Fatalf("%s: %d layers, %v", name, len(loads), err)
			}
			if alone == nil {
				alone = loads
			}
			for i, load := range loads {
				sum := int64(0)
				for _, n := range load.Rows {
					sum += n
				}
				// The last token is not computed.
				if want := int64(m.perToken * (prompt + output - 1 + second)); sum != want ||
					len(load.Rows) != m.experts {
					t.Errorf("%s: layer %d: %d rows of %d experts, not %d of %d", name, load.Layer,
						sum, len(load.Rows), want, m.experts)
				}
				if load.Layer != alone[i].Layer || !slices.Equal(load.Rows, alone[i].Rows) ||
					!slices.Equal(load.Recent, load.Rows) {
					t.Errorf("%s: layer %d: %v, on one rank layer %d: %v", name, load.Layer,
						load.Rows, alone[i].Layer, alone[i].Rows)
				}
			}
			w := httptest.NewRecorder()
			series.Handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", "/",
				nil))
			_, share := loads[0].Hottest()
			for series, v := range map[string]any{
				"tokens_total":      m.perToken * (prompt + output - 1 + second),
				"load_hottest_perc": share, "load_balancedness": loads[0].Balancedness(),
			} {
				want := fmt.Sprintf("expert_%s{engine=\"0\",layer=\"%d\",model_name=\"m\"} %v\n",
					series, loads[0].Layer, v)
				if !strings.Contains(w.Body.String(), want) {
					t.Errorf("%s: no %q", name, want)
				}
			}
		}
	}
}

// TestNoExpertLoad asks an engine whose model has no experts, without a word to its ranks, and has
// no series of it.
func TestNoExpertLoad(t *testing.T) {
	e, series := openMeasured(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if loads, err := e.ExpertLoad(ctx); loads != nil || !errors.Is(err, engine.ErrNoExpertLoad) {
		t.Errorf("%v, %v", loads, err)
	}
	w := httptest.NewRecorder()
	series.Handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", "/", nil))
	if strings.Contains(w.Body.String(), "expert_") {
		t.Error(w.Body)
	}
}

// TestExpertLoadOnCUDA asks two ranks on CUDA devices: each row of a step counts once for each of
// its experts.
func TestExpertLoadOnCUDA(t *testing.T) {
	e := onCUDA(t, "", func(c *config.Config) {
		c.Model.Path, c.Model.SkipTokenizerInit = "../../testdata/models/qwen3moe-tiny", true
		c.Model.MaxModelLen, c.Parallel.TensorParallelSize = 64, 2
	})
	const output, perToken, mixtures = 4, 2, 4
	prompt := []int32{5, 6, 7, 8, 9, 10, 11, 12, 13}
	q := engine.NewRequest(prompt, sample.Params{TopP: 1, RepetitionPenalty: 1, EOS: -1,
		Logprobs: sample.NoLogprobs, PromptLogprobs: sample.NoLogprobs, MaxTokens: output})
	q.Raw = true
	mustAsk(t, e, q)
	loads, err := e.ExpertLoad(t.Context())
	if err != nil || len(loads) != mixtures {
		t.Fatalf("%d layers, %v", len(loads), err)
	}
	for _, load := range loads {
		sum := int64(0)
		for _, n := range load.Rows {
			sum += n
		}
		// The last token is not computed.
		if want := int64(perToken * (len(prompt) + output - 1)); sum != want {
			t.Errorf("layer %d: %v of experts, not %d together", load.Layer, load.Rows, want)
		}
	}
}

// TestExpertLoadOfLostRanks asks when a rank has died: what was known comes with the error.
func TestExpertLoadOfLostRanks(t *testing.T) {
	e, series := openMeasured(t, func(c *config.Config) {
		c.Model.Path, c.Model.SkipTokenizerInit = "../../testdata/models/qwen3moe-tiny", true
		c.Parallel.Backend, c.Parallel.TensorParallelSize, c.Parallel.CPUThreads = "mp", 2, 1
		c.Recovery.OnFailure = "exit"
	})
	before, err := e.ExpertLoad(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(e.Report()[1].PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-e.Failed()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var after []engine.ExpertLoad
	for err = nil; err == nil; { // for a second the last answer is new enough
		after, err = e.ExpertLoad(ctx)
	}
	if ctx.Err() != nil || len(after) != len(before) {
		t.Errorf("%d layers, %v, %v", len(after), err, ctx.Err())
	}
	w := httptest.NewRecorder()
	series.Handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", "/", nil))
	if !strings.Contains(w.Body.String(), "expert_tokens_total") {
		t.Error("a scrape does not show what is known")
	}
}
