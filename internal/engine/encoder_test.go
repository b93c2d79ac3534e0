package engine_test

import (
	"encoding/json"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/link/step"
	"github.com/eagleray/eagleray/internal/ops/config"
)

// encoderCases are what transformers computes of texts in float32.
func encoderCases(t *testing.T, name string) (cases []struct {
	IDs       []int32   `json:"ids"`
	CLS, Mean []float32 // neither normalized
}) {
	t.Helper()
	raw, err := os.ReadFile("../../testdata/encoders/" + name + "/goldens.json")
	if err != nil {
		t.Fatal(err)
	}
	err = json.Unmarshal(raw, &struct{ Prompts any }{&cases})
	if err != nil || len(cases) == 0 {
		t.Fatalf("%d cases: %v", len(cases), err)
	}
	return cases
}

func openEncoder(t *testing.T, name string, set func(*config.Config)) *engine.Engine {
	t.Helper()
	return openEngine(t, func(c *config.Config) {
		c.Model.Path, c.Model.SkipTokenizerInit = "../../testdata/encoders/"+name, true
		c.Model.DType = "float32"
		if set != nil {
			set(c)
		}
	})
}

// TestEncoders holds what encoders pool to transformers, and to the very same bits in any layout
// and with any texts beside. They take no blocks.
func TestEncoders(t *testing.T) {
	for k, name := range []string{"bert-tiny", "xlm-roberta-tiny", "modernbert-tiny"} {
		cases := encoderCases(t, name)
		kinds := []step.Pooling{step.PoolCLS, step.PoolMean, step.PoolMax, step.PoolMeanSqrt,
			step.PoolWeighted, step.PoolLast, step.PoolAll}
		var list []*engine.Request
		for _, x := range cases {
			for _, kind := range kinds {
				list = append(list, engine.NewPoolingRequest(x.IDs, kind))
			}
		}
		var first [][]float32
		for n, set := range []func(*config.Config){
			nil,
			func(c *config.Config) {
				c.Schedule.MaxNumBatchedTokens, c.Schedule.MaxNumSeqs = 512, 3
			},
			func(c *config.Config) {
				c.Parallel.Backend, c.Parallel.CPUThreads = "uni", 1
				c.Parallel.TensorParallelSize, c.Parallel.PipelineParallelSize = 2, 2
			},
			func(c *config.Config) { c.Parallel.TensorParallelSize = 2 },
			func(c *config.Config) { c.Parallel.PipelineParallelSize = 3 },
		} {
			if testing.Short() && n > 1 && n != 2+k {
				continue // the families take turns
			}
			e := openEncoder(t, name, set)
			if i := e.Info(); i.Blocks != 0 || i.CacheBytes != 0 {
				t.Errorf("%s: %d blocks, %d bytes of KV cache", name, i.Blocks, i.CacheBytes)
			}
			if first == nil {
				first = pooled(t, e, list)
				continue
			}
			// One kind of each text, by turns: the hidden states are those of all.
			var some []*engine.Request
			var at []int
			for i := range cases {
				at = append(at, len(kinds)*i+(i+n)%len(kinds))
				some = append(some, list[at[i]])
			}
			for i, got := range pooled(t, e, some) {
				if !slices.Equal(got, first[at[i]]) {
					t.Errorf("%s, layout %v, %v of %d tokens: other bits", name, e.Info().Layout,
						some[i].Pooling, len(some[i].Prompt))
				}
			}
		}
		for i, x := range cases {
			cls, mean, most := first[7*i], first[7*i+1], first[7*i+2]
			root, weighted, last := first[7*i+3], first[7*i+4], first[7*i+5]
			if all, w := first[7*i+6], len(cls); len(all) != w*len(x.IDs) ||
				!slices.Equal(all[:w], cls) || !slices.Equal(all[len(all)-w:], last) ||
				apart(meanOf(all, w), x.Mean) > 1e-5 {
				t.Errorf("%s, %d tokens: %d numbers of all tokens", name, len(x.IDs), len(all))
			}
			if a, b := apart(cls, x.CLS), apart(mean, x.Mean); a > 1e-5 || b > 1e-5 {
				t.Errorf("%s, %d tokens: cls %.2g and mean %.2g from transformers'", name,
					len(x.IDs), a, b)
			}
			n := float64(len(x.IDs))
			for j := range root {
				if d := float64(root[j]) - float64(mean[j])*math.Sqrt(n); math.Abs(d) > 1e-4 {
					t.Fatalf("%s, %d tokens: mean by the root is %v from the mean's", name,
						len(x.IDs), d)
				}
				if n == 1 && (most[j] != cls[j] || weighted[j] != cls[j] || last[j] != cls[j]) {
					t.Fatalf("%s: of one token %v %v %v", name, most[j], weighted[j], last[j])
				}
				if most[j] < mean[j] || most[j] < cls[j] {
					t.Fatalf("%s: the greatest of element %d is %v, less than the mean", name, j,
						most[j])
				}
			}
			if two := weighted; n == 2 {
				for j := range two {
					if d := two[j] - (cls[j]+2*last[j])/3; math.Abs(float64(d)) > 1e-5 {
						t.Fatalf("%s: weighted mean of two: %v off", name, d)
					}
				}
			}
		}
	}
}

// TestEncoderLengths: a text has as many tokens as there are positions, and no more. What asks for
// a token is refused before a rank sees it.
func TestEncoderLengths(t *testing.T) {
	e := openEncoder(t, "xlm-roberta-tiny", nil)
	longest := make([]int32, 256)
	for i := range longest {
		longest[i] = int32(5 + i)
	}
	if got := pooled(t, e, []*engine.Request{engine.NewPoolingRequest(longest,
		step.PoolMean)}); len(got[0]) != 96 {
		t.Errorf("%d elements", len(got[0]))
	}
	for want, r := range map[string]*engine.Request{
		"256": engine.NewPoolingRequest(append(longest, 5), step.PoolMean),
		"says no token": engine.NewRequest([]int32{1}, sample.Params{TopP: 1, MaxTokens: 1,
			RepetitionPenalty: 1, EOS: -1}),
		"an encoder": engine.NewPoolingRequest([]int32{1}, step.PoolLogits, 1, 2),
	} {
		if _, err := e.Submit(t.Context(), r); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	pooled(t, e, []*engine.Request{engine.OneToken(e.Info().Pooling)})
}

// TestPairTypes: where the second text of a pair begins is a part of what BERT computes.
func TestPairTypes(t *testing.T) {
	e := openEncoder(t, "bert-tiny", nil)
	var list []*engine.Request
	for _, second := range []uint32{0, 3, 4} {
		r := engine.NewPoolingRequest([]int32{2, 40, 3, 50, 60, 3}, step.PoolCLS)
		r.Second = second
		list = append(list, r)
	}
	got := pooled(t, e, list)
	if slices.Equal(got[0], got[1]) || slices.Equal(got[1], got[2]) {
		t.Error("other types, the same state")
	}
}

// TestEncoderFlags refuses flags that ask for what an encoder does not do.
func TestEncoderFlags(t *testing.T) {
	for want, set := range map[string]func(*config.Config){
		"--max-num-batched-tokens 128 is less than the 256 tokens": func(c *config.Config) {
			c.Schedule.MaxNumBatchedTokens, c.Schedule.MaxNumSeqs = 128, 8
		},
		"--prefill-context-parallel-size 2": func(c *config.Config) {
			c.Parallel.PrefillContextParallelSize = 2
		},
		"is an encoder, it generates nothing": func(c *config.Config) {
			c.Model.Runner = "generate"
		},
		"which says no token": func(c *config.Config) {
			c.Model.HFOverrides = `{"classifier_from_token":["a","b"]}`
		},
		"--kv-transfer-config": func(c *config.Config) { c.Transfer.Role = "kv_both" },
	} {
		conf := config.Default()
		conf.Model.Path, conf.Model.SkipTokenizerInit = "../../testdata/encoders/bert-tiny", true
		set(&conf)
		_, _, err := engine.Open(t.Context(), engine.Options{Config: conf})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// TestEncoderClassifiers holds classifiers of every family of encoders to transformers: their
// heads, what those read, the types of a pair, and configurations as transformers 5 writes them.
func TestEncoderClassifiers(t *testing.T) {
	for _, name := range []string{"bert-classifier", "xlm-roberta-classifier",
		"modernbert-classifier"} {
		var goldens struct {
			Cases []struct {
				IDs    []int32
				Second uint32
				Logits []float64
			}
		}
		raw, err := os.ReadFile("../../testdata/encoders/" + name + "/goldens.json")
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(raw, &goldens); err != nil {
			t.Fatal(err)
		}
		e := openEncoder(t, name, nil)
		p := e.Info().Pooling
		var list []*engine.Request
		for _, x := range goldens.Cases {
			r := engine.NewPoolingRequest(x.IDs, p.Type)
			r.Second = x.Second
			list = append(list, r)
		}
		for i, v := range pooled(t, e, list) {
			got, err := p.Classes.Of(v, false)
			if err != nil || len(got) != len(goldens.Cases[i].Logits) {
				t.Fatalf("%s: %v, %v", name, got, err)
			}
			for j, want := range goldens.Cases[i].Logits {
				if math.Abs(float64(got[j])-want) > 1e-5 {
					t.Errorf("%s, %d tokens: logit %d is %v, want %v", name,
						len(goldens.Cases[i].IDs), j, got[j], want)
				}
			}
			// sentence-transformers says that the scores of this one are logits.
			active, err := p.Classes.Of(v, true)
			if err != nil || slices.Equal(active, got) != (name == "bert-classifier") {
				t.Errorf("%s: %v activated is %v, %v", name, got, active, err)
			}
		}
	}
}

// TestTextLengths: a text has as many tokens as sentence-transformers reads of it, by its file of
// any name, else by the tokenizer's, and one step is held to no more.
func TestTextLengths(t *testing.T) {
	const length = `{"max_seq_length":100}`
	for _, c := range []struct {
		files map[string]string
		want  int
	}{
		{nil, 256},
		{map[string]string{"tokenizer_config.json": `{"model_max_length":90}`}, 90},
		{map[string]string{"tokenizer_config.json": `{"model_max_length":1e30}`}, 256},
		{map[string]string{"sentence_bert_config.json": length,
			"tokenizer_config.json": `{"model_max_length":90}`}, 100},
		{map[string]string{"sentence_xlm-roberta_config.json": length}, 100},
		{map[string]string{"sentence_bert_config.json": `{"max_seq_length":null}`,
			"sentence_roberta_config.json": length,
			"tokenizer_config.json":        `{"model_max_length":90}`}, 90},
	} {
		dir := t.TempDir()
		if err := os.CopyFS(dir, os.DirFS("../../testdata/encoders/bert-tiny")); err != nil {
			t.Fatal(err)
		}
		files := map[string]string{"tokenizer.json": `{"model":{"type":"BPE",
			"merges":[],"vocab":{"a":0}}}`, "modules.json": `[{"path":"","type":"x.Transformer"},
			{"path":"pool","type":"x.Pooling"}]`}
		maps.Copy(files, c.files)
		for name, text := range files {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Mkdir(filepath.Join(dir, "pool"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "pool", "config.json"), []byte(`{}`),
			0o644); err != nil {
			t.Fatal(err)
		}
		e := openEncoder(t, "", func(conf *config.Config) {
			conf.Model.Path, conf.Model.SkipTokenizerInit = dir, false
			conf.Schedule.MaxNumBatchedTokens, conf.Schedule.MaxNumSeqs = c.want, 8
		})
		if got := e.Info().MaxModelLen; got != c.want {
			t.Errorf("%v: %d tokens, want %d", c.files, got, c.want)
		}
	}
}

// TestSentenceTransformers reads a folder as sentence-transformers saves it, and holds every kind
// of pooling, and the layer after it, to what that makes of the same states.
func TestSentenceTransformers(t *testing.T) {
	dir := t.TempDir()
	for _, from := range []string{"encoders/bert-tiny", "sentence"} {
		files := os.DirFS("../../testdata/" + from)
		if from == "sentence" {
			if err := os.Remove(filepath.Join(dir, "goldens.json")); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.CopyFS(dir, files); err != nil {
			t.Fatal(err)
		}
	}
	var goldens struct {
		Cases []struct {
			IDs    []int32
			Pooled map[string][]float32
			Vector []float32
		}
	}
	raw, err := os.ReadFile("../../testdata/sentence/goldens.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &goldens); err != nil {
		t.Fatal(err)
	}
	e := openEncoder(t, "", func(c *config.Config) { c.Model.Path = dir })
	p := e.Info().Pooling
	if e.Info().MaxModelLen != 128 || p.Prompts["query"] != "query: " || !p.Normalize ||
		p.Width != 40 || p.Type != step.PoolWeighted {
		t.Errorf("%d positions, %+v", e.Info().MaxModelLen, p)
	}
	kinds := map[string]step.Pooling{"cls": step.PoolCLS, "max": step.PoolMax,
		"mean": step.PoolMean, "mean_sqrt_len_tokens": step.PoolMeanSqrt,
		"weightedmean": step.PoolWeighted, "lasttoken": step.PoolLast}
	for _, x := range goldens.Cases {
		for mode, kind := range kinds {
			v := pooled(t, e, []*engine.Request{engine.NewPoolingRequest(x.IDs, kind)})[0]
			if far := apart(v, x.Pooled[mode]); far > 1e-5 {
				t.Errorf("%s of %d tokens is %.2g from sentence-transformers'", mode, len(x.IDs),
					far)
			}
			if kind != p.Type {
				continue
			}
			v, err := p.Vector(v)
			if err != nil {
				t.Fatal(err)
			}
			length := 0.0
			for _, y := range v {
				length += float64(y) * float64(y)
			}
			for i := range v {
				v[i] /= float32(math.Sqrt(length))
			}
			if far := apart(v, x.Vector); far > 1e-5 {
				t.Errorf("the vector of %d tokens is %.2g from sentence-transformers'",
					len(x.IDs), far)
			}
		}
	}
}
