package engine_test

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/link/step"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint/checkpointtest"
)

// pooledGoldens are the final hidden states that transformers computes in float32, and the
// probability of one token against another.
type pooledGoldens struct {
	No, Yes int32
	Cases   []struct {
		IDs        []int32
		Last, Mean []float32
		Score      float64
	}
}

// apart is the distance of two vectors beside the length of the second.
func apart(a, b []float32) float64 {
	var d, n float64
	for i := range b {
		d += math.Pow(float64(a[i])-float64(b[i]), 2)
		n += math.Pow(float64(b[i]), 2)
	}
	return math.Sqrt(d / n)
}

// TestPoolingGoldens holds pooled states and scores to those of transformers, and to the very same
// bits in any layout, for any chunks, and with a warm prefix cache.
func TestPoolingGoldens(t *testing.T) {
	for i, name := range []string{"qwen3-tiny", "qwen2-tiny", "llama-tiny", "opt-tiny"} {
		raw, err := os.ReadFile("../../testdata/pooling/" + name + ".json")
		if err != nil {
			t.Fatal(err)
		}
		var want pooledGoldens
		if err := json.Unmarshal(raw, &want); err != nil {
			t.Fatal(err)
		}
		var first [][]float32
		for n, set := range []func(*config.Config){
			func(*config.Config) {},
			func(c *config.Config) {
				c.Schedule.MaxNumBatchedTokens, c.Schedule.MaxNumSeqs = 24,
					8
			},
			func(c *config.Config) {
				c.Parallel.Backend, c.Parallel.CPUThreads = "uni", 1
				c.Parallel.TensorParallelSize, c.Parallel.PipelineParallelSize = 2, 2
			},
			func(c *config.Config) {
				c.Parallel.Backend, c.Parallel.PrefillContextParallelSize = "uni", 2
				c.Parallel.CPUThreads = 1
			},
		} {
			if testing.Short() && n > 0 && n != 1+i%3 {
				continue // the families take turns
			}
			e := openEngine(t, func(c *config.Config) {
				c.Model.Path, c.Model.SkipTokenizerInit = "../../testdata/models/"+name, true
				c.Model.DType, c.Model.Runner = "float32", "pooling"
				set(c)
			})
			var list []*engine.Request
			for _, x := range want.Cases {
				for _, kind := range []step.Pooling{step.PoolLast, step.PoolMean, step.PoolAll} {
					list = append(list, engine.NewPoolingRequest(x.IDs, kind))
				}
				list = append(list, engine.NewPoolingRequest(x.IDs, step.PoolLogits, want.No,
					want.Yes))
			}
			for range 2 {
				got := pooled(t, e, list)
				if first == nil {
					first = got
				}
				for i := range got {
					if !slices.Equal(got[i], first[i]) {
						t.Errorf("%s, layout %v, %v of %d tokens: other bits", name,
							e.Info().Layout, list[i].Pooling, len(list[i].Prompt))
					}
				}
			}
		}
		for i, x := range want.Cases {
			last, mean, all, logits := first[4*i], first[4*i+1], first[4*i+2], first[4*i+3]
			if w := len(last); len(all) != w*len(x.IDs) || !slices.Equal(all[len(all)-w:], last) ||
				apart(meanOf(all, w), x.Mean) > 1e-5 {
				t.Errorf("%s, %d tokens: %d numbers of all tokens", name, len(x.IDs), len(all))
			}
			score := 1 / (1 + math.Exp(float64(logits[0])-float64(logits[1])))
			if a, b := apart(last, x.Last), apart(mean, x.Mean); a > 1e-5 || b > 1e-5 ||
				math.Abs(score-x.Score) > 1e-5 {
				t.Errorf("%s, %d tokens: last %.2g and mean %.2g from transformers', score %v, "+
					"want %v", name, len(x.IDs), a, b, score, x.Score)
			}
		}
	}
}

// meanOf is the mean of vectors of a width that stand one after another.
func meanOf(all []float32, width int) []float32 {
	mean := make([]float32, width)
	for i, v := range all {
		mean[i%width] += v / float32(len(all)/width)
	}
	return mean
}

// pooled submits the requests together and returns their vectors.
func pooled(t *testing.T, e *engine.Engine, list []*engine.Request) [][]float32 {
	t.Helper()
	s, err := e.Submit(t.Context(), list...)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	vectors := make([][]float32, len(list))
	for left := len(list); left > 0; left-- {
		d, err := s.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		vectors[d.Choice] = slices.Clone(d.Pooled)
	}
	return vectors
}

// TestPoolingFlags reads how a model pools from its folder and from the flags.
func TestPoolingFlags(t *testing.T) {
	folder := func(files map[string]string) string {
		dir := t.TempDir()
		if err := os.CopyFS(dir, os.DirFS("../../testdata/models/go-std-tiny")); err != nil {
			t.Fatal(err)
		}
		for name, text := range files {
			path := filepath.Join(dir, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		return dir
	}
	pools := func(pooling string, more string) map[string]string {
		return map[string]string{"1_Pooling/config.json": pooling, "modules.json": `[{"path":"","type":
			"sentence_transformers.models.Transformer"},{"path":"1_Pooling","type":
			"sentence_transformers.models.Pooling"}` + more + `]`}
	}
	mean := folder(pools(`{"pooling_mode_mean_tokens":true}`, ""))
	for _, c := range []struct {
		dir, pooler, overrides string
		kind                   step.Pooling
		normalize              bool
		err                    string
	}{
		{dir: "", kind: step.PoolLast, normalize: true},
		{dir: mean, kind: step.PoolMean},
		{dir: mean, pooler: `{"pooling_type":"last","normalize":true}`, kind: step.PoolLast,
			normalize: true},
		{dir: folder(pools(`{"pooling_mode_lasttoken":true}`, `,{"path":"2_Normalize",
			"type":"sentence_transformers.models.Normalize"}`)), kind: step.PoolLast,
			normalize: true},
		{dir: folder(pools(`{"pooling_mode":["cls","mean"]}`, "")),
			err: "cls and mean are pooled side by side"},
		{pooler: `{"pooling_type":"CLS"}`, kind: step.PoolCLS, normalize: true},
		{pooler: `{"pooling_type":"ALL"}`,
			err: `--pooler-config: pooling_type "ALL" is not one of`},
		{pooler: `{"kind":1}`, err: "--pooler-config"},
		{overrides: `{"matryoshka_dimensions":[8,100000]}`,
			err: "--hf-overrides: matryoshka_dimensions"},
		{overrides: `{"classifier_from_token":["no"]}`, err: "classifier_from_token has 1 tokens"},
		{overrides: `{"classifier_from_token":["no","yes indeed"]}`,
			err: "tokens of the model, not one"},
		{overrides: `{"rope":1}`, err: "--hf-overrides"},
	} {
		conf := config.Default()
		conf.Cache.MemoryBytes, conf.Model.Path, conf.Model.Runner = 16<<20, c.dir, "pooling"
		conf.Model.PoolerConfig, conf.Model.HFOverrides = c.pooler, c.overrides
		e, _, err := engine.Open(t.Context(), engine.Options{Config: conf})
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%+v: error %v", c, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%+v: %v", c, err)
			continue
		}
		if p := e.Info().Pooling; p.Type != c.kind || p.Normalize != c.normalize {
			t.Errorf("%+v: %+v", c, p)
		}
		if err := e.Stop(t.Context()); err != nil {
			t.Error(err)
		}
	}
	conf := config.Default()
	conf.Model.PoolerConfig = `{"pooling_type":"LAST"}`
	if _, _, err := engine.Open(t.Context(), engine.Options{Config: conf}); err == nil ||
		!strings.Contains(err.Error(), "is for --runner pooling") {
		t.Errorf("error %v", err)
	}
}

// TestBareTensors pools with a checkpoint as embedding models are published: its class is that of a
// model without a head, and its tensors have no "model." before their names.
func TestBareTensors(t *testing.T) {
	const whole = "../../testdata/models/qwen3-tiny"
	dir := checkpointtest.Copy(t, whole, `"model.`, `"`, `"lm_head.`, `"another.`)
	path := filepath.Join(dir, "config.json")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for said, other := range map[string]string{"Qwen3ForCausalLM": "Qwen3Model",
		`"tie_word_embeddings": true`: `"tie_word_embeddings": false`} {
		b = bytes.ReplaceAll(b, []byte(said), []byte(other))
	}
	if err := os.WriteFile(path, b, 0o644); err != nil {
		t.Fatal(err)
	}
	var got [][][]float32
	for folder, runner := range map[string]string{whole: "pooling", dir: "auto"} {
		e := openEngine(t, func(c *config.Config) {
			c.Model.Path, c.Model.SkipTokenizerInit, c.Model.Runner = folder, true, runner
		})
		got = append(got, pooled(t, e, []*engine.Request{
			engine.NewPoolingRequest([]int32{1, 2, 3}, step.PoolLast)}))
	}
	if !slices.EqualFunc(got[0], got[1], slices.Equal) {
		t.Error("the same weights under other names have other states")
	}
}
