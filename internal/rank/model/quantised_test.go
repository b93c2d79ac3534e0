package model_test

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu"
	"github.com/eagleray/eagleray/internal/rank/model"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint/checkpointtest"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// TestMadeAtLoad compares logits with those of the weights as they are stored, which random weights
// of bytes move by a few hundredths of their spread, and of four bits by some tenths, and wants the
// same bits however the model is divided.
func TestMadeAtLoad(t *testing.T) {
	for _, tc := range []struct {
		quantization string
		limit        float64
		names        []string
	}{
		{"int8", 0.05, []string{"llama-tiny", "qwen3-tiny", "gemma3-tiny", "qwen3moe-tiny",
			"qwen3next-tiny"}},
		{"int4", 0.7, []string{"llama-tiny", "qwen3-tiny", "gemma3-tiny", "granitemoe-tiny",
			"gpt-oss-tiny", "deepseek-v3-tiny"}},
		{"int4_g128", 0.4, []string{"llama-tiny", "cohere2-tiny"}},
	} {
		for _, name := range tc.names {
			t.Run(tc.quantization+"/"+name, func(t *testing.T) {
				f := shipped(name)
				f.quantization = tc.quantization
				checkSameBits(t, f, compute.BFloat16, prompt(40), 2, 4)
				g := readGoldens(t, name)
				opt := cpu.Options{Threads: 2, DType: compute.Float32}
				s := loadShard(t, f, opt, layers.Group{Size: 1})
				p := g.Prompts[0]
				rows := s.forward(t, 0, piece{tokens: p.IDs})
				last, sum := rows[len(rows)-1], 0.0
				for _, top := range p.Top {
					off := (float64(last[int(top[0])]) - top[1]) / p.Std
					sum += off * off
				}
				off := math.Sqrt(sum / float64(len(p.Top)))
				t.Logf("logits are off by %.3g of their spread", off)
				if !(off < tc.limit) || off == 0 {
					t.Errorf("logits are off by %.3g of their spread", off)
				}
			})
		}
	}
}

// TestQuantisedDummy computes with random weights in every layout.
func TestQuantisedDummy(t *testing.T) {
	for _, name := range append(quantisedNames, "gpt-oss-mxfp4-tiny") {
		cfg, _ := shipped(name).open(t)
		d := newDevice(t)
		m, err := model.Load(cfg, model.Dummy(1), d, model.Options{Group: layers.Group{Size: 1}})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		s := &shard{model: m, vocab: cfg.VocabSize}
		s.cache, err = d.NewCache(compute.CacheShape{
			Layers: cfg.Cache(), Blocks: 64, BlockSize: blockSize})
		if err != nil {
			t.Fatal(err)
		}
		row := s.forward(t, 0, piece{tokens: prompt(5)})[4]
		if v := row[argmax(row)]; math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) || v == 0 {
			t.Errorf("%s: largest logit %v", name, v)
		}
		s.cache.Free()
		m.Close()
	}
}

// TestInt8Footprint wants a byte for each weight of the layers.
func TestInt8Footprint(t *testing.T) {
	weigh := func(quantization string) model.Footprint {
		f := shipped("llama-tiny")
		f.quantization = quantization
		cfg, weights := f.open(t)
		m, err := model.Weigh(cfg, model.FromCheckpoint(weights), model.Use{
			Planner: cpu.Planner{DType: compute.BFloat16}, Rows: 8, MaxLen: 64})
		if err != nil {
			t.Fatal(err)
		}
		head, err := cpu.Planner{}.PackedBytes(1, compute.Source{Rows: cfg.VocabSize,
			Cols: cfg.HiddenSize, RowHi: cfg.VocabSize, ColHi: cfg.HiddenSize})
		if err != nil {
			t.Fatal(err)
		}
		m.Packed -= head
		return m
	}
	plain, bytes := weigh(""), weigh("int8_per_channel_weight_only")
	if share := float64(bytes.Packed) / float64(plain.Packed); share < 0.45 || share > 0.75 {
		t.Errorf("weights take %d bytes, %.2f of %d", bytes.Packed, share, plain.Packed)
	}
}

// quantisedNames are the fixtures that are stored quantised.
var quantisedNames = []string{"gptq-g128-tiny", "gptq-actorder-g32-tiny", "awq-g64-tiny",
	"ct-w4a16-tiny", "ct-w8a8-tiny", "ct-fp8-dynamic-tiny", "fp8-block-tiny", "fp8-static-tiny",
	"bnb-nf4-tiny"}

// integers tells whether the codes of a fixture stand for integers.
func integers(name string) bool {
	return !strings.Contains(name, "fp8") && !strings.Contains(name, "nf4")
}

// allNames are those and the others.
var allNames = slices.Concat(fixtureNames, quantisedNames)

// TestQuantisedGoldens holds every layout to the forward pass of exactly dequantised weights: in
// float32 within 1e-4 standard deviations and each greedy token equal, in bfloat16 within twice
// what rounding inputs causes in the reference itself, thrice where they are rounded to int8. Where
// the layout's own kernels round inputs to fewer bits, it is also within twice what that causes of
// what they compute.
func TestQuantisedGoldens(t *testing.T) {
	for _, name := range quantisedNames {
		raw, err := os.ReadFile(filepath.Join(models, name, "goldens.json"))
		if err != nil {
			t.Fatal(err)
		}
		var rounded struct {
			Emulated *goldens `json:"emulated"`
			Error    float64  `json:"activation_quant_max_error"`
		}
		if err := json.Unmarshal(raw, &rounded); err != nil {
			t.Fatal(err)
		}
		g := readGoldens(t, name)
		full := readFullLogits(t, name)
		for _, dtype := range []compute.DType{compute.Float32, compute.BFloat16} {
			t.Run(fmt.Sprintf("%s/%s", name, dtype), func(t *testing.T) {
				tolerance := 1e-4
				if dtype == compute.BFloat16 {
					tolerance = 2 * g.BF16Error
					if integers(name) {
						tolerance = 3 * g.BF16Error
					}
				}
				s := loadShard(t, shipped(name), cpu.Options{Threads: 2, DType: dtype},
					layers.Group{Size: 1})
				checkGoldens(t, s, g, full, tolerance, dtype == compute.Float32)
				if rounded.Emulated != nil {
					checkGoldens(t, s, rounded.Emulated, nil, 2*rounded.Error, false)
				}
			})
		}
	}
}

// TestInvertedScale reads one scale of each module under the name that transformers has for scales
// of blocks.
func TestInvertedScale(t *testing.T) {
	const name = "fp8-static-tiny"
	dir := checkpointtest.Copy(t, filepath.Join(models, name), `.weight_scale"`,
		`.weight_scale_inv"`)
	s := loadShard(t, fixture{dir: dir, config: "config.json"},
		cpu.Options{Threads: 1, DType: compute.Float32}, layers.Group{Size: 1})
	checkGoldens(t, s, readGoldens(t, name), readFullLogits(t, name), 1e-4, true)
}

// TestQuantisedSameBits wants the same bits however a quantised model is divided.
func TestQuantisedSameBits(t *testing.T) {
	for i, name := range quantisedNames {
		for j, dtype := range []compute.DType{compute.BFloat16, compute.Float32} {
			if testing.Short() && i%2 != j {
				continue // the models take turns
			}
			t.Run(fmt.Sprintf("%s/%s", name, dtype), func(t *testing.T) {
				checkSameBits(t, shipped(name), dtype, prompt(70), 2, 4)
			})
		}
	}
}
