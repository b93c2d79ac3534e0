package sentence

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/link/step"
)

// folder is a folder of the given files.
func folder(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
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

// list is modules.json with a transformer, a module that pools, and more of the given types.
func list(more ...string) string {
	text := `[{"path":"","type":"sentence_transformers.models.Transformer"},
		{"path":"1_Pooling","type":"sentence_transformers.models.Pooling"}`
	for _, kind := range more {
		text += `,{"path":"2_X","type":"sentence_transformers.models.` + kind + `"}`
	}
	return text + "]"
}

// TestModes reads the kinds of pooling by the names of all versions of the file.
func TestModes(t *testing.T) {
	for text, want := range map[string]step.Pooling{
		`{}`:                                step.PoolMean,
		`{"pooling_mode_cls_token":true}`:   step.PoolCLS,
		`{"pooling_mode_mean_tokens":true}`: step.PoolMean,
		`{"pooling_mode_max_tokens":true}`:  step.PoolMax,
		`{"pooling_mode_lasttoken":true}`:   step.PoolLast,
		`{"pooling_mode":"cls"}`:            step.PoolCLS,
		`{"pooling_mode":["weightedmean"]}`: step.PoolWeighted,
		`{"embedding_dimension":8}`:         step.PoolMean,
		`{"word_embedding_dimension":8}`:    step.PoolMean,
		`{"pooling_mode_mean_tokens":false,
			"pooling_mode_mean_sqrt_len_tokens":true}`: step.PoolMeanSqrt,
		`{"pooling_mode_weightedmean_tokens":true}`: step.PoolWeighted,
	} {
		m, err := Read(folder(t, map[string]string{"modules.json": list(),
			"1_Pooling/config.json": text}), 8)
		if err != nil || m.Pooling != want || m.Normalize {
			t.Errorf("%s: %+v, %v, want %v", text, m, err, want)
		}
	}
	if m, err := Read(t.TempDir(), 8); m != nil || err != nil {
		t.Errorf("an empty folder is %+v, %v", m, err)
	}
}

// TestRefuses names what would change a vector and is not done.
func TestRefuses(t *testing.T) {
	const mean = `{"pooling_mode_mean_tokens":true}`
	for _, c := range []struct {
		files map[string]string
		want  string
	}{
		{map[string]string{"modules.json": `[`}, "modules.json"},
		{map[string]string{"modules.json": `[]`}, "no module that pools"},
		{map[string]string{"modules.json": `[{"path":"0_Transformer","type":"x.Transformer"}]`},
			`the model is in the folder "0_Transformer"`},
		{map[string]string{"modules.json": `[{"path":"","type":"x.Transformer"},
			{"path":"../x","type":"x.Pooling"}]`}, "leads out of"},
		{map[string]string{"modules.json": list("LSTM"), "1_Pooling/config.json": mean},
			`module 2, "sentence_transformers.models.LSTM"`},
		{map[string]string{"modules.json": list("Normalize", "Dense"),
			"1_Pooling/config.json": mean}, "nothing is known to follow Normalize"},
		{map[string]string{"modules.json": list(), "1_Pooling/config.json": `{
			"pooling_mode_cls_token":true,"pooling_mode_mean_tokens":true}`},
			"cls and mean are pooled side by side"},
		{map[string]string{"modules.json": list(),
			"1_Pooling/config.json": `{"pooling_mode":"attention"}`}, `pooling_mode is "attention"`},
		{map[string]string{"modules.json": list(),
			"1_Pooling/config.json": `{"include_prompt":false}`}, "include_prompt is false"},
		{map[string]string{"modules.json": list(),
			"1_Pooling/config.json": `{"word_embedding_dimension":9}`}, "is 9, the model's states"},
		{map[string]string{"modules.json": list("Dense"), "1_Pooling/config.json": mean,
			"2_X/config.json": `{"in_features":9,"out_features":4}`}, "in_features is 9"},
		{map[string]string{"modules.json": list("Dense"), "1_Pooling/config.json": mean,
			"2_X/config.json": `{"activation_function":"my.Tanh"}`}, `"my.Tanh"`},
		{map[string]string{"modules.json": list("Dense"), "1_Pooling/config.json": mean,
			"2_X/config.json": `{"use_residual":true}`}, "use_residual is true"},
		{map[string]string{"modules.json": list("Dense"), "1_Pooling/config.json": mean,
			"2_X/config.json": `{}`}, "safetensors"},
		{map[string]string{"modules.json": list(), "1_Pooling/config.json": mean,
			"sentence_bert_config.json": `{"max_seq_length":0}`}, "max_seq_length is 0"},
		{map[string]string{"modules.json": list(), "1_Pooling/config.json": mean,
			"config_sentence_transformers.json": `{"default_prompt_name":"q"}`},
			`default_prompt_name is "q"`},
	} {
		if _, err := Read(folder(t, c.files), 8); err == nil ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v, want %q", c.files, err, c.want)
		}
	}
}

// TestDense computes a layer with all it can have.
func TestDense(t *testing.T) {
	d := &Dense{In: 2, Out: 2, Weight: []float32{1, 2, 3, 4}, Bias: []float32{-1, 0.5},
		Activation: "relu", Norm: []float32{1, 2}, NormBias: []float32{0, 1}, NormEps: 0.25}
	got, err := d.Of([]float32{1, -1})
	if err != nil {
		t.Fatal(err)
	}
	// -2 and -0.5 are 0 both: no variance.
	if got[0] != 0 || got[1] != 1 {
		t.Errorf("%v", got)
	}
	if _, err := d.Of([]float32{1}); err == nil {
		t.Error("a vector of another width is taken")
	}
	for name, want := range map[string]float64{"": 1, "tanh": 0.76159416, "relu": 1,
		"sigmoid": 0.73105858, "silu": 0.73105858, "gelu": 0.84134475, "gelu_tanh": 0.84119199} {
		if got := activated(name, 1); math.Abs(got-want) > 1e-7 {
			t.Errorf("%s of 1 is %v, want %v", name, got, want)
		}
	}
}

// FuzzRead wants an error or a model of any file, and no more.
func FuzzRead(f *testing.F) {
	f.Add(list("Normalize"), `{"pooling_mode":"cls"}`, `{"max_seq_length":9}`, `{"prompts":{}}`)
	f.Fuzz(func(t *testing.T, modules, pooling, bounds, prompts string) {
		m, err := Read(folder(t, map[string]string{"modules.json": modules,
			"1_Pooling/config.json": pooling, "sentence_bert_config.json": bounds,
			"config_sentence_transformers.json": prompts}), 8)
		if err == nil && m.Pooling == step.NotPooled {
			t.Errorf("%+v pools nothing", m)
		}
	})
}
