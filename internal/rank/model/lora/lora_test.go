package lora_test

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/lora"
	"github.com/eagleray/eagleray/internal/rank/model/lora/loratest"
	"github.com/eagleray/eagleray/internal/sys/fixtures"
)

var shapes = []lora.Shape{
	{Name: "model.layers.0.self_attn.q_proj", Out: 6, In: 4},
	{Name: "model.layers.0.mlp.down_proj", Out: 4, In: 8},
	{Name: "model.layers.1.self_attn.q_proj", Out: 6, In: 4},
}

func write(t testing.TB, o loratest.Options) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "adapter")
	if err := loratest.Write(dir, shapes, o); err != nil {
		t.Fatal(err)
	}
	return dir
}

func open(t testing.TB, dir string) (*lora.Adapter, error) {
	t.Helper()
	folder, err := checkpoint.Dir(dir)
	if err != nil {
		t.Fatal(err)
	}
	a, c, err := lora.Open(folder)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { c.Close() })
	return a, nil
}

func TestScales(t *testing.T) {
	for name, tt := range map[string]struct {
		config map[string]any
		want   [3]float64 // of down_proj, q_proj, and q_proj of layer 1
	}{
		"alpha over rank": {map[string]any{"lora_alpha": 6}, [3]float64{1.5, 1.5, 1.5}},
		"rank-stabilised": {map[string]any{"use_rslora": true}, [3]float64{4, 4, 4}},
		"a fraction":      {map[string]any{"lora_alpha": 0.5}, [3]float64{0.125, 0.125, 0.125}},
		"negative":        {map[string]any{"lora_alpha": -4}, [3]float64{-1, -1, -1}},
		"alpha of modules": {map[string]any{"alpha_pattern": map[string]any{"q_proj": 16}},
			[3]float64{2, 4, 4}},
		"alpha of one": {map[string]any{"alpha_pattern": map[string]any{
			"^model.layers.1.self_attn.q_proj": 1}}, [3]float64{2, 2, 0.25}},
		"of a model with encoders": {map[string]any{"alpha_pattern": map[string]any{
			`^model\.language_model\.layers\.1\..*`: 1}}, [3]float64{2, 2, 0.25}},
		"by a pattern": {map[string]any{"alpha_pattern": map[string]any{
			`layers\.[1-9]\..*`: 12}}, [3]float64{2, 2, 3}},
		"the end of a name is no match": {map[string]any{"alpha_pattern": map[string]any{
			"proj": 12}}, [3]float64{2, 2, 2}},
		"what means nothing": {map[string]any{"lora_dropout": 0.1, "inference_mode": true,
			"modules_to_save": []string{}, "target_modules": "all-linear", "use_dora": false,
			"layer_replication": nil, "eva_config": map[string]any{"rho": 2}, "bias": "none",
			"fan_in_fan_out": false, "init_lora_weights": "gaussian"}, [3]float64{2, 2, 2}},
	} {
		t.Run(name, func(t *testing.T) {
			a, err := open(t, write(t, loratest.Options{Rank: 4, Width: 1, Config: tt.config}))
			if err != nil {
				t.Fatal(err)
			}
			if len(a.Modules) != 3 || a.Rank() != 4 {
				t.Fatalf("%+v", a)
			}
			for i, want := range tt.want {
				if got := float64(a.Modules[i].Scale); math.Abs(got-want) > 1e-6 {
					t.Errorf("scale of %s is %v, want %v", a.Modules[i].Name, got, want)
				}
			}
			if err := a.Fit(shapes, 4); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestPatternsInOrder(t *testing.T) {
	dir := write(t, loratest.Options{Rank: 4, Width: 1})
	config := `{"peft_type":"LORA","r":4,"lora_alpha":4,` +
		`"alpha_pattern":{"self_attn.q_proj":8,"q_proj":12}}`
	if err := os.WriteFile(filepath.Join(dir, lora.ConfigFile), []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	a, err := open(t, dir)
	if err != nil || a.Modules[1].Scale != 2 {
		t.Errorf("%+v, %v", a, err)
	}
}

// TestRefuses names what an adapter asks for that is not computed, and what is wrong with one.
func TestRefuses(t *testing.T) {
	for want, config := range map[string]map[string]any{
		`modules_to_save is "[\"lm_head\"]"`:   {"modules_to_save": []string{"lm_head"}},
		`use_dora is "true"`:                   {"use_dora": true},
		`lora_bias is "true"`:                  {"lora_bias": true},
		`bias is "all"`:                        {"bias": "all"},
		`peft_type is "LOHA"`:                  {"peft_type": "LOHA"},
		"layer_replication is":                 {"layer_replication": [][]int{{0, 4}}},
		"alora_invocation_tokens is":           {"alora_invocation_tokens": []int{1}},
		"target_parameters is":                 {"target_parameters": []string{"experts.down"}},
		"trainable_token_indices is":           {"trainable_token_indices": []int{0}},
		`init_lora_weights is "pissa_niter_4"`: {"init_lora_weights": "pissa_niter_4"},
		`init_lora_weights is "lora_ga"`:       {"init_lora_weights": "lora_ga"},
		"r is 0, outside":                      {"r": 0},
		`r is "four"`:                          {"r": "four"},
		"lora_alpha is":                        {"lora_alpha": "x"},
		"adapter_config.json says 8":           {"r": 8},
		"rank_pattern has no number":           {"rank_pattern": map[string]any{"q_proj": "x"}},
		"rank_pattern is":                      {"rank_pattern": []int{1}},
		`alpha_pattern has the pattern "(",`:   {"alpha_pattern": map[string]any{"(": 1}},
		"the scale of module":                  {"lora_alpha": 1e300},
	} {
		_, err := open(t, write(t, loratest.Options{Rank: 4, Width: 1, Config: config}))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", config, err, want)
		}
	}
}

func TestRefusesTensors(t *testing.T) {
	rename := func(t *testing.T, from, to string) error {
		dir := write(t, loratest.Options{Rank: 4, Width: 1})
		path := filepath.Join(dir, lora.WeightsFile)
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if len(from) != len(to) || !strings.Contains(string(raw), from) {
			t.Fatalf("%s and %s", from, to)
		}
		raw = []byte(strings.ReplaceAll(string(raw), from, to))
		if err := os.WriteFile(path, raw, 0o644); err != nil {
			t.Fatal(err)
		}
		_, err = open(t, dir)
		return err
	}
	for want, change := range map[string][2]string{
		`"base_model.model.model.layers.1.self_attn.q_proj.lora_A.wEight" is neither`: {
			"layers.1.self_attn.q_proj.lora_A.weight", "layers.1.self_attn.q_proj.lora_A.wEight"},
		"has one of A and B": {"layers.1.self_attn.q_proj.lora_A",
			"layers.2.self_attn.q_proj.lora_A"},
		"of rank":  {`[4,8]`, `[8,4]`},
		"has type": {`"dtype":"F32","shape":[4,8]`, `"dtype":"I32","shape":[4,8]`},
	} {
		if err := rename(t, change[0], change[1]); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", change, err, want)
		}
	}
	dir := write(t, loratest.Options{Rank: 4, Width: 1})
	if err := os.Remove(filepath.Join(dir, lora.WeightsFile)); err != nil {
		t.Fatal(err)
	}
	if _, err := open(t, dir); err == nil || !strings.Contains(err.Error(), lora.WeightsFile) {
		t.Errorf("without weights: %v", err)
	}
	if _, err := open(t, t.TempDir()); err == nil ||
		!strings.Contains(err.Error(), lora.ConfigFile) {
		t.Errorf("an empty folder: %v", err)
	}
}

// TestEncodersAreLeftOut reads of an adapter what is of the language model.
func TestEncodersAreLeftOut(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "adapter")
	all := []lora.Shape{{Name: "model.vision_tower.layers.0.q_proj", Out: 3, In: 3},
		{Name: "model.multi_modal_projector.linear_1", Out: 4, In: 3}}
	for _, s := range shapes {
		s.Name = strings.Replace(s.Name, "model.", "model.language_model.", 1)
		all = append(all, s)
	}
	if err := loratest.Write(dir, all, loratest.Options{Rank: 4, Width: 1}); err != nil {
		t.Fatal(err)
	}
	a, err := open(t, dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Fit(shapes, 4); err != nil || len(a.Modules) != len(shapes) {
		t.Errorf("%+v, %v", a, err)
	}
}

func TestFit(t *testing.T) {
	a, err := open(t, write(t, loratest.Options{Rank: 4, Width: 1}))
	if err != nil {
		t.Fatal(err)
	}
	for want, try := range map[string]struct {
		shapes []lora.Shape
		rank   int
	}{
		"above --max-lora-rank 3":                     {shapes, 3},
		`no module "model.layers.1.self_attn.q_proj"`: {shapes[:2], 4},
		"A [4 8], B [4 4]), the model's has 9 and 4": {[]lora.Shape{shapes[0],
			{Name: shapes[1].Name, Out: 4, In: 9}, shapes[2]}, 4},
	} {
		if err := a.Fit(try.shapes, try.rank); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// TestPEFT reads adapters that PEFT made.
func TestPEFT(t *testing.T) {
	root := filepath.Join(fixtures.Dir(t), "lora")
	for name, want := range map[string]struct {
		modules, rank int
		scale         float64
	}{
		"llama-tiny-all-r4":       {28, 4, 2},
		"qwen3-tiny-qv-r8-rslora": {8, 8, 12 / math.Sqrt(8)},
	} {
		if _, err := os.Stat(filepath.Join(root, name)); err != nil {
			t.Skip(err)
		}
		a, err := open(t, filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		if len(a.Modules) != want.modules || a.Rank() != want.rank ||
			math.Abs(float64(a.Modules[0].Scale)-want.scale) > 1e-6 {
			t.Errorf("%s: %d modules of rank %d, scale %v", name, len(a.Modules), a.Rank(),
				a.Modules[0].Scale)
		}
	}
}

// FuzzConfig reads configurations: a folder is refused, or every scale is a number.
func FuzzConfig(f *testing.F) {
	for _, seed := range []map[string]any{
		{"r": 4, "lora_alpha": 8}, {"rank_pattern": map[string]any{"a.*": 4}},
		{"alpha_pattern": map[string]any{"q_proj": 1e30}}, {"use_dora": true}, {"bias": 1},
		{"init_lora_weights": "olora"}, {"modules_to_save": []any{nil}},
	} {
		raw, err := json.Marshal(seed)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	dir := write(f, loratest.Options{Rank: 4, Width: 1})
	weights, err := os.ReadFile(filepath.Join(dir, lora.WeightsFile))
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, config []byte) {
		read(t, config, weights)
	})
}

// FuzzWeights reads files of tensors.
func FuzzWeights(f *testing.F) {
	dir := write(f, loratest.Options{Rank: 1, Width: 1})
	weights, err := os.ReadFile(filepath.Join(dir, lora.WeightsFile))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(weights)
	f.Add([]byte{2, 0, 0, 0, 0, 0, 0, 0, '{', '}'})
	config := []byte(`{"peft_type":"LORA","r":1,"lora_alpha":1}`)
	f.Fuzz(func(t *testing.T, weights []byte) { read(t, config, weights) })
}

func read(t *testing.T, config, weights []byte) {
	a, c, err := lora.Open(checkpoint.Embedded("fuzz", map[string][]byte{
		lora.ConfigFile: config, lora.WeightsFile: weights}))
	if err != nil {
		return
	}
	defer c.Close()
	if len(a.Modules) == 0 {
		t.Fatal("an adapter of nothing")
	}
	for _, m := range a.Modules {
		if s := float64(m.Scale); math.IsNaN(s) || math.IsInf(s, 0) || m.Rank < 1 || m.In < 1 ||
			m.Out < 1 || !c.Has(m.A) || !c.Has(m.B) {
			t.Fatalf("%+v", m)
		}
	}
	_ = a.Fit(shapes, 4)
}
