package engine_test

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/engine/open"
	"github.com/eagleray/eagleray/internal/link/step"
	"github.com/eagleray/eagleray/internal/ops/config"
)

const hidden = 128 // of the models in testdata

// headOf is element j of class i of the classifiers here, in one of few values that every type has.
func headOf(i, j int) float32 { return float32((7*i+3*j)%9-4) / 16 }

// classifier is a folder with a model of testdata as transformers saves it for classification, with
// a head of classes; config.json has what is set. The head of tokens is there, and is not read.
func classifier(t *testing.T, name string, classes int, set map[string]any) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("../../testdata/models/"+name)); err != nil {
		t.Fatal(err)
	}
	edit(t, filepath.Join(dir, "config.json"), func(c map[string]any) {
		c["architectures"] = []string{strings.Replace(c["architectures"].([]any)[0].(string),
			"ForCausalLM", "ForSequenceClassification", 1)}
		for k, v := range set {
			c[k] = v
		}
	})
	var data []byte
	for i := range classes {
		for j := range hidden {
			data = binary.LittleEndian.AppendUint32(data, math.Float32bits(headOf(i, j)))
		}
	}
	header := fmt.Appendf(
		nil, `{"score.weight":{"dtype":"F32","shape":[%d,%d],"data_offsets":[0,%d]}}`, classes,
		hidden, len(data))
	file := append(binary.LittleEndian.AppendUint64(nil, uint64(len(header))), header...)
	if err := os.WriteFile(filepath.Join(dir, "score.safetensors"), append(file, data...),
		0o644); err != nil {
		t.Fatal(err)
	}
	edit(t, filepath.Join(dir, "model.safetensors.index.json"), func(c map[string]any) {
		c["weight_map"].(map[string]any)["score.weight"] = "score.safetensors"
	})
	return dir
}

// edit changes a JSON file.
func edit(t *testing.T, path string, change func(map[string]any)) {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var c map[string]any
	if err := json.Unmarshal(raw, &c); err != nil {
		t.Fatal(err)
	}
	change(c)
	if raw, err = json.Marshal(c); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, raw, 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestClasses holds logits and probabilities to the head's of the states that transformers
// computes, in several layouts.
func TestClasses(t *testing.T) {
	raw, err := os.ReadFile("../../testdata/pooling/qwen2-tiny.json")
	if err != nil {
		t.Fatal(err)
	}
	var want pooledGoldens
	if err := json.Unmarshal(raw, &want); err != nil {
		t.Fatal(err)
	}
	dir := classifier(t, "qwen2-tiny", 3, map[string]any{
		"id2label": map[string]string{"0": "no", "1": "so", "2": "yes"}})
	for _, set := range []func(*config.Config){
		func(*config.Config) {},
		func(c *config.Config) {
			c.Parallel.Backend, c.Parallel.CPUThreads = "uni", 1
			c.Parallel.TensorParallelSize, c.Parallel.PipelineParallelSize = 2, 2
		},
	} {
		e := openEngine(t, func(c *config.Config) {
			c.Model.Path, c.Model.SkipTokenizerInit, c.Model.DType = dir, true, "float32"
			set(c)
		})
		head := e.Info().Pooling.Classes
		if got := fmt.Sprint(head.Labels); got != "[no so yes]" {
			t.Errorf("labels %s", got)
		}
		var list []*engine.Request
		for _, x := range want.Cases {
			list = append(list, engine.NewPoolingRequest(x.IDs, step.PoolLast))
		}
		for i, v := range pooled(t, e, list) {
			logits, err := head.Of(v, false)
			if err != nil {
				t.Fatal(err)
			}
			probs, err := head.Of(v, true)
			if err != nil {
				t.Fatal(err)
			}
			exact, sum := make([]float64, len(logits)), 0.0
			for k := range exact {
				for j, x := range want.Cases[i].Last {
					exact[k] += float64(x) * float64(headOf(k, j))
				}
				sum += math.Exp(exact[k])
			}
			for k, x := range exact {
				if p := math.Exp(x) / sum; math.Abs(float64(logits[k])-x) > 1e-4 ||
					math.Abs(float64(probs[k])-p) > 1e-5 {
					t.Errorf("%d tokens, class %d: %v, %v, want %v, %v", len(want.Cases[i].IDs), k,
						logits[k], probs[k], x, p)
				}
			}
		}
	}
}

// TestActivations are those of transformers' losses.
func TestActivations(t *testing.T) {
	for _, c := range []struct {
		problem string
		weight  []float32
		want    string
	}{
		{"", []float32{0, 1}, "[0.26894143 0.7310586]"},
		{"single_label_classification", []float32{1000, 0}, "[1 0]"},
		{"multi_label_classification", []float32{0, 1}, "[0.5 0.7310586]"},
		{"regression", []float32{0, 1}, "[0 1]"},
		{"", []float32{1}, "[0.7310586]"},
	} {
		got, err := open.NewClasses(make([]string, len(c.weight)), c.problem,
			c.weight).Of([]float32{1}, true)
		if err != nil || fmt.Sprint(got) != c.want {
			t.Errorf("%q of %v: %v, %v, want %s", c.problem, c.weight, got, err, c.want)
		}
	}
	if _, err := open.NewClasses([]string{"a"}, "", []float32{1}).Of([]float32{1, 2},
		true); err == nil {
		t.Error("a vector of another width is taken")
	}
}

// TestClassesRefused says what is wrong with a classifier and its flags.
func TestClassesRefused(t *testing.T) {
	for _, c := range []struct {
		labels int
		set    func(*config.Model)
		want   string
	}{
		{3, func(m *config.Model) { m.Runner = "generate" },
			"is a classifier, it generates nothing"},
		{4, func(*config.Model) {},
			`"score.weight" has shape [3 128], but config.json asks for [4 128]`},
		{3, func(m *config.Model) { m.PoolerConfig = `{"normalize":true}` },
			"normalize is for embeddings"},
		{3, func(m *config.Model) { m.HFOverrides = `{"is_matryoshka":true}` },
			"of which nothing is overridden"},
	} {
		conf := config.Default()
		conf.Model.Path = classifier(t, "qwen2-tiny", 3, map[string]any{"num_labels": c.labels})
		conf.Model.SkipTokenizerInit, conf.Cache.MemoryBytes = true, 16<<20
		c.set(&conf.Model)
		if _, _, err := engine.Open(t.Context(), engine.Options{Config: conf}); err == nil ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("%d labels: %v, want %s", c.labels, err, c.want)
		}
	}
}
