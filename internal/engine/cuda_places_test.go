package engine_test

import (
	"fmt"
	"testing"

	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/ops/config"
)

// TestCUDAPlaces divides requests among places whose CUDA devices share the experts of a mixture.
func TestCUDAPlaces(t *testing.T) {
	open := func(options, name string, dp, tp int) []received {
		e := onCUDA(t, options, func(c *config.Config) {
			c.Model.Path, c.Model.SkipTokenizerInit = "../../testdata/models/"+name, true
			p := &c.Parallel
			p.DataParallelSize, p.TensorParallelSize, p.ExpertParallel = dp, tp, dp > 1
		})
		t.Log(e.Info().Ranks[0].Kernels)
		return receiveAll(t, e, unevenRequests(e), func(int) {})
	}
	for _, name := range []string{"qwen3moe-tiny"} {
		want := open("", name, 1, 1)
		for _, options := range []string{"", "apart,nccl"} {
			for _, l := range [][2]int{{2, 2}} {
				got := open(options, name, l[0], l[1])
				same(t, fmt.Sprintf("%s, %q, dp %d, tp %d", name, options, l[0], l[1]), got, want)
			}
		}
	}
}

// unevenRequests have prompts and outputs of several lengths, so that places have different numbers
// of rows, and in the end one has none.
func unevenRequests(e *engine.Engine) (list []*engine.Request) {
	for i, n := range []int{9, 40, 3} {
		tokens := make([]int32, n)
		for j := range tokens {
			tokens[j] = int32((i*31 + j*j*7) % e.Info().VocabSize)
		}
		q := engine.NewRequest(tokens, sample.Params{TopP: 1, RepetitionPenalty: 1, EOS: -1,
			Logprobs: 2, PromptLogprobs: sample.NoLogprobs, MaxTokens: int32(11 - 3*i)})
		q.Raw = true
		list = append(list, q)
	}
	return list
}
