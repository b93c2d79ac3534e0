package model_test

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/compute/cpu"
	"github.com/eagleray/eagleray/internal/rank/model"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// openChanged opens a shipped fixture with some fields of its configuration changed.
func openChanged(t *testing.T, name string, change map[string]any) (*model.Config,
	*checkpoint.Checkpoint) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(models, name, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	var fields map[string]any
	if err := json.Unmarshal(raw, &fields); err != nil {
		t.Fatal(err)
	}
	maps.Copy(fields, change)
	if raw, err = json.Marshal(fields); err != nil {
		t.Fatal(err)
	}
	cfg, err := model.ReadConfig(raw)
	if err != nil {
		t.Fatal(err)
	}
	_, weights := shipped(name).open(t)
	return cfg, weights
}

func newDevice(t testing.TB) *cpu.Device {
	t.Helper()
	d, err := cpu.New(cpu.Options{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d
}

// TestLoadErrors wants every reason for which a model cannot be loaded named with the value that is
// wrong.
func TestLoadErrors(t *testing.T) {
	for _, tc := range []struct {
		name, fixture string
		change        map[string]any
		size          int
		want          []string
	}{
		{"unknown architecture", "llama-tiny",
			map[string]any{"architectures": []string{"LlamaForTokenClassification"}}, 1,
			[]string{`"LlamaForTokenClassification"`, "LlamaForCausalLM", "MistralForCausalLM",
				"OPTForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM"}},
		{"activation of a gated block", "llama-tiny", map[string]any{"hidden_act": "gelu"}, 1,
			[]string{`hidden_act "gelu"`, "silu"}},
		{"activation of experts", "qwen3moe-tiny", map[string]any{"hidden_act": "gelu"}, 1,
			[]string{`hidden_act "gelu"`, "silu"}},
		{"activation of Gemma", "gemma3-tiny", map[string]any{"hidden_activation": "gelu"}, 1,
			[]string{`hidden_act "gelu"`, "gelu_tanh"}},
		{"activation of OPT", "opt-tiny", map[string]any{"activation_function": "silu"}, 1,
			[]string{`activation "silu"`, "relu, relu2, gelu, gelu_tanh"}},
		{"shape of a matrix", "llama-tiny", map[string]any{"intermediate_size": 360}, 1,
			[]string{`"model.layers.0.mlp.gate_proj.weight"`, "[352 128]", "[360 128]"}},
		{"shape of the embedding", "llama-tiny", map[string]any{"vocab_size": 1000}, 1,
			[]string{`"model.embed_tokens.weight"`, "[1024 128]", "[1000 128]"}},
		{"shape of a vector", "qwen3-tiny", map[string]any{"head_dim": 64,
			"num_attention_heads": 4, "num_key_value_heads": 2}, 1,
			[]string{`"model.layers.0.self_attn.q_norm.weight"`, "[64]"}},
		{"missing layer", "qwen2-tiny", map[string]any{"num_hidden_layers": 40}, 1,
			[]string{"model.layers.", "no such tensor"}},
		{"missing bias", "llama-tiny", map[string]any{"attention_bias": true}, 1,
			[]string{`"model.layers.0.self_attn.q_proj.bias"`, "no such tensor"}},
		{"missing head", "llama-tiny", map[string]any{"tie_word_embeddings": false}, 1,
			[]string{`"lm_head.weight"`, "no such tensor"}},
		{"missing expert", "qwen3moe-tiny", map[string]any{"num_experts": 1000}, 1,
			[]string{"gate.weight", "1000"}},
		{"size of no power of two", "llama-tiny", nil, 3, []string{"tensor parallel size 3", "8"}},
		{"size of zero", "llama-tiny", nil, 0, []string{"tensor parallel size 0"}},
		{"size above the chunks", "llama-tiny", nil, 16, []string{"tensor parallel size 16"}},
		{"heads", "llama-tiny",
			map[string]any{"num_attention_heads": 6, "num_key_value_heads": 2}, 4,
			[]string{"6 attention heads", "tensor parallel size 4"}},
		{"key/value heads", "llama-tiny",
			map[string]any{"num_attention_heads": 12, "num_key_value_heads": 3}, 4,
			[]string{"3 key/value heads", "tensor parallel size 4"}},
		{"feed-forward width", "llama-tiny", map[string]any{"intermediate_size": 354}, 4,
			[]string{"intermediate_size 354", "tensor parallel size 4"}},
		{"feed-forward width of OPT", "opt-tiny", map[string]any{"ffn_dim": 510}, 4,
			[]string{"ffn_dim 510", "tensor parallel size 4"}},
		{"experts' width", "qwen3moe-tiny", map[string]any{"moe_intermediate_size": 100}, 8,
			[]string{"moe_intermediate_size 100", "tensor parallel size 8"}},
		{"vocabulary", "opt-tiny", map[string]any{"vocab_size": 9}, 8,
			[]string{"vocab_size 9", "tensor parallel size 8"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg, weights := openChanged(t, tc.fixture, tc.change)
			m, err := model.Load(cfg, model.FromCheckpoint(weights), newDevice(t),
				model.Options{Group: layers.Group{Size: tc.size}})
			if err == nil {
				m.Close()
				t.Fatal("loaded")
			}
			for _, w := range tc.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("error %q does not say %q", err, w)
				}
			}
		})
	}
}

// TestUnusedWidthMayBeAnything divides a model whose layers are all mixtures of experts although
// the width of the dense block, which it has nowhere, cannot be divided.
func TestUnusedWidthMayBeAnything(t *testing.T) {
	all := map[string]any{"intermediate_size": 33, "decoder_sparse_step": 1,
		"mlp_only_layers": []int{}}
	cfg, _ := openChanged(t, "qwen3moe-tiny", all)
	if err := model.CheckShard(cfg, 2); err != nil {
		t.Error(err)
	}
	all["mlp_only_layers"] = []int{1}
	cfg, _ = openChanged(t, "qwen3moe-tiny", all)
	err := model.CheckShard(cfg, 2)
	if err == nil || !strings.Contains(err.Error(), "intermediate_size 33 cannot be divided among "+
		"tensor parallel size 2") {
		t.Errorf("with a dense layer: %v", err)
	}
}

// TestMissingShard removes one file of a sharded checkpoint.
func TestMissingShard(t *testing.T) {
	const lost = "model-00004-of-00007.safetensors"
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(filepath.Join(models, "qwen2-tiny"))); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, lost)); err != nil {
		t.Fatal(err)
	}
	folder, err := checkpoint.Dir(dir)
	if err != nil {
		t.Fatal(err)
	}
	weights, err := checkpoint.Open(folder)
	if err == nil {
		weights.Close()
		t.Fatal("opened")
	}
	if !strings.Contains(err.Error(), lost) {
		t.Errorf("error %q does not name the file", err)
	}
}

// mappedByUs is the memory mapped into this process but for what Go's runtime has mapped for
// itself.
func mappedByUs(t *testing.T) int {
	t.Helper()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	raw, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Skipf("no list of mappings on %s: %v", runtime.GOOS, err)
	}
	total := -int(stats.Sys)
	for line := range strings.Lines(string(raw)) {
		var begin, end uint64
		var access string
		if _, err := fmt.Sscanf(line, "%x-%x %s", &begin, &end, &access); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if access[0] == 'r' { // the runtime does not count what it has only reserved
			total += int(end - begin)
		}
	}
	return total
}

// TestLoadLeaksNothing loads models again and again, to the end and up to an error in the last
// layer, and looks at what stays mapped.
func TestLoadLeaksNothing(t *testing.T) {
	times := 50
	if testing.Short() {
		times = 20
	}
	broken, weights := openChanged(t, "qwen2-tiny", map[string]any{"num_hidden_layers": 5})
	sound, _ := openChanged(t, "qwen2-tiny", nil)
	if sound.Layers != 4 {
		t.Fatalf("the fixture has %d layers", sound.Layers)
	}
	d := newDevice(t)
	stored := func() layers.Source { return model.FromCheckpoint(weights) }
	for _, tc := range []struct {
		name   string
		cfg    *model.Config
		source func() layers.Source
		fails  bool
	}{
		{"failing half-way", broken, stored, true},
		{"closed", sound, stored, false},
		{"dummy weights failing half-way", sound,
			func() layers.Source { return &failing{Source: model.Dummy(1), after: 20} }, true},
		{"dummy weights closed", sound, func() layers.Source { return model.Dummy(1) }, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var before int
			for i := range times + 2 {
				if i == 2 { // the first rounds may extend the device's scratch memory
					before = mappedByUs(t)
				}
				m, err := model.Load(tc.cfg, tc.source(), d,
					model.Options{Group: layers.Group{Size: 1}})
				if (err != nil) != tc.fails {
					t.Fatalf("error is %v", err)
				}
				if err == nil {
					m.Close()
				}
			}
			// The whole model is 1.7 MiB, its embedding 256 KiB.
			if grown := mappedByUs(t) - before; grown > times*64<<10 {
				t.Errorf("%d KiB more are mapped after %d loads", grown>>10, times)
			}
		})
	}
}

// failing is a source whose every tensor after a number of them cannot be read.
type failing struct {
	layers.Source
	after int
}

func (f *failing) Tensor(name string, shape ...int) (checkpoint.Tensor, error) {
	if f.after--; f.after < 0 {
		return checkpoint.Tensor{}, fmt.Errorf("tensor %q: %w", name, fs.ErrPermission)
	}
	return f.Source.Tensor(name, shape...)
}
