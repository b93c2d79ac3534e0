package model_test

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu"
	"github.com/eagleray/eagleray/internal/compute/cpu/isa"
	"github.com/eagleray/eagleray/internal/rank/model"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint/checkpointtest"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
	"github.com/eagleray/eagleray/internal/rank/model/predictortest"
)

const variants = "../../../testdata/variants"

// variantNames lists the folders that testdata/variants/make.py writes; what each is about is said
// there.
func variantNames(t *testing.T) []string {
	t.Helper()
	entries, err := os.ReadDir(variants)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	if len(names) < 13 {
		t.Fatalf("only %d variants: %v", len(names), names)
	}
	return names
}

// variantGoldens is a variant's goldens.json: the fixtures' fields and the errors that rounding
// everything to a type of 16 bits causes in the reference; 0 where the variant is to be compared in
// float32 only.
type variantGoldens struct {
	goldens
	BF16 float64 `json:"bf16_max_error"`
	FP16 float64 `json:"fp16_max_error"`
}

// readVariant returns the goldens and the logits of all positions of the one prompt.
func readVariant(t *testing.T, name string) (*variantGoldens, map[int][]float32) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(variants, name, "goldens.json"))
	if err != nil {
		t.Fatal(err)
	}
	g := new(variantGoldens)
	if err := json.Unmarshal(raw, g); err != nil {
		t.Fatal(err)
	}
	raw, err = os.ReadFile(filepath.Join(variants, name, "full_logits.st"))
	if err != nil {
		t.Fatal(err)
	}
	tensors, err := checkpoint.ParseFile(raw)
	if err != nil {
		t.Fatal(err)
	}
	data := tensors["logits"].Data
	full := make([]float32, len(data)/4)
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&full[0])), len(data)), data)
	return g, map[int][]float32{len(g.Prompts[0].IDs): full}
}

func variant(name string) fixture {
	return fixture{dir: filepath.Join(variants, name), config: "config.json"}
}

// TestVariants holds the rarer shapes of each architecture to transformers: in float32 each logit
// within 1e-4 standard deviations and each greedy token equal; in 16 bits within twice what
// rounding weights, activations, keys and values causes in the reference itself.
func TestVariants(t *testing.T) {
	for _, name := range variantNames(t) {
		g, full := readVariant(t, name)
		for _, set := range []isa.ISA{isa.Portable, isa.Best()} {
			for dtype, limit := range map[compute.DType]float64{compute.Float32: 1e-4,
				compute.BFloat16: 2 * g.BF16, compute.Float16: 2 * g.FP16} {
				if limit == 0 {
					continue
				}
				t.Run(fmt.Sprintf("%s/%s/%s", name, set, dtype), func(t *testing.T) {
					opt := cpu.Options{Threads: 1, ISA: set.String(), DType: dtype}
					s := loadShard(t, variant(name), opt, layers.Group{Size: 1})
					checkGoldens(t, s, &g.goldens, full, limit, dtype == compute.Float32)
				})
			}
		}
	}
}

// TestVariantsSameBits wants the same bits of the logits in any layout, in any tensor parallel size
// that the shapes allow.
func TestVariantsSameBits(t *testing.T) {
	for i, name := range variantNames(t) {
		f := variant(name)
		g, _ := readVariant(t, name)
		cfg, _ := f.open(t)
		var sizes []int
		for _, size := range []int{2, 4, 8} {
			if model.CheckShard(cfg, size) == nil {
				sizes = append(sizes, size)
			}
		}
		if len(sizes) == 0 {
			t.Errorf("%s cannot be divided at all", name)
		}
		for j, dtype := range []compute.DType{compute.BFloat16, compute.Float16, compute.Float32} {
			if testing.Short() && i%3 == j {
				continue // the variants take turns
			}
			t.Run(fmt.Sprintf("%s/%s/%v", name, dtype, sizes), func(t *testing.T) {
				checkSameBits(t, f, dtype, g.Prompts[0].IDs, sizes...)
			})
		}
	}
}

// TestConfigVersions wants the same bits from the configuration as transformers 4 writes it and as
// 5 does, of families that both have.
func TestConfigVersions(t *testing.T) {
	for _, name := range variantNames(t) {
		if _, err := os.Stat(filepath.Join(variants, name, "config.v4.json")); err != nil {
			continue
		}
		g, _ := readVariant(t, name)
		opt := cpu.Options{Threads: 1, DType: compute.Float32}
		old := fixture{dir: filepath.Join(variants, name), config: "config.v4.json"}
		all, group := piece{tokens: g.Prompts[0].IDs}, layers.Group{Size: 1}
		want := loadShard(t, variant(name), opt, group).forward(t, 0, all)
		got := loadShard(t, old, opt, group).forward(t, 0, all)
		compareRows(t, name, got, want)
		if len(got) == 0 || math.IsNaN(float64(got[0][0])) {
			t.Errorf("%s: %d rows", name, len(got))
		}
	}
}

// TestBareNames reads GPT-2's tensors by the names that published checkpoints have.
func TestBareNames(t *testing.T) {
	const name = "gpt2"
	dir := checkpointtest.Copy(t, variant(name).dir, `"transformer.`, `"`)
	g, full := readVariant(t, name)
	opt := cpu.Options{Threads: 1, DType: compute.Float32}
	s := loadShard(t, fixture{dir: dir, config: "config.json"}, opt, layers.Group{Size: 1})
	checkGoldens(t, s, &g.goldens, full, 1e-4, true)
}

// TestTurnedExperts reads Qwen3-VL's experts as transformers 4 stored them, each matrix turned.
func TestTurnedExperts(t *testing.T) {
	const name = "qwen3-vl-moe"
	_, stored := variant(name).open(t)
	turned := map[string]predictortest.Tensor{}
	for _, n := range stored.Names() {
		v, shape := tensorOf(t, stored, n)
		w := predictortest.Tensor{Shape: shape}
		for _, x := range v {
			w.Values = append(w.Values, float32(x))
		}
		if strings.Contains(n, ".mlp.experts.") {
			w = turnedTensor(w)
		}
		turned[n] = w
	}
	dir := t.TempDir()
	if err := predictortest.Write(filepath.Join(dir, "model.safetensors"), turned); err != nil {
		t.Fatal(err)
	}
	config, err := os.ReadFile(filepath.Join(variants, name, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), config, 0o600); err != nil {
		t.Fatal(err)
	}
	g, full := readVariant(t, name)
	opt := cpu.Options{Threads: 1, DType: compute.Float32}
	s := loadShard(t, fixture{dir: dir, config: "config.json"}, opt, layers.Group{Size: 1})
	checkGoldens(t, s, &g.goldens, full, 1e-4, true)
}

// turnedTensor is a stack of matrices, each of them turned.
func turnedTensor(t predictortest.Tensor) predictortest.Tensor {
	rows, cols := t.Shape[1], t.Shape[2]
	turned := predictortest.Tensor{Shape: []int{t.Shape[0], cols, rows}}
	for m := range t.Shape[0] {
		for c := range cols {
			for r := range rows {
				turned.Values = append(turned.Values, t.Values[(m*rows+r)*cols+c])
			}
		}
	}
	return turned
}
