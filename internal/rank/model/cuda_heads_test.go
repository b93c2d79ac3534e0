package model_test

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu"
	"github.com/eagleray/eagleray/internal/compute/cuda/kernels"
	"github.com/eagleray/eagleray/internal/rank/model"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
	"github.com/eagleray/eagleray/internal/rank/model/predictortest"
)

// wide are models of two layers with random weights whose attention is of heads of 80, 96 or 256,
// or of latents of 576: that of published ones, which kernels are made for.
func wide(t *testing.T) (list []fixture) {
	for _, y := range []struct {
		name   string
		change map[string]any
	}{
		{"gemma2-tiny", map[string]any{"head_dim": 256, "query_pre_attn_scalar": 256}},
		{"deepseekv2-tiny", map[string]any{"kv_lora_rank": 512, "qk_rope_head_dim": 64}},
		{"gptneox-tiny", map[string]any{"hidden_size": 160, "num_attention_heads": 2}},
		{"phi3-tiny", map[string]any{"hidden_size": 384, "num_attention_heads": 4}},
	} {
		raw, err := os.ReadFile(filepath.Join(models, y.name, "config.json"))
		if err != nil {
			t.Fatal(err)
		}
		config := map[string]any{}
		if err := json.Unmarshal(raw, &config); err != nil {
			t.Fatal(err)
		}
		config["num_hidden_layers"], config["vocab_size"] = 2, 128
		for key, v := range y.change {
			config[key] = v
		}
		if raw, err = json.Marshal(config); err != nil {
			t.Fatal(err)
		}
		dir := filepath.Join(t.TempDir(), y.name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "config.json"), raw, 0o644); err != nil {
			t.Fatal(err)
		}
		writeRandom(t, dir, raw)
		list = append(list, fixture{dir: dir, config: "config.json"})
	}
	return list
}

// writeRandom writes weights of a configuration.
func writeRandom(t *testing.T, dir string, raw []byte) {
	c, err := model.ReadConfig(raw)
	if err != nil {
		t.Fatal(err)
	}
	specs, err := model.Expected(c, model.Stage{To: c.Layers})
	if err != nil {
		t.Fatal(err)
	}
	r, all := rand.New(rand.NewPCG(1, 2)), map[string]predictortest.Tensor{}
	for _, s := range specs {
		n, in := 1, s.Shape[len(s.Shape)-1]
		for _, dim := range s.Shape {
			n *= dim
		}
		y := predictortest.Tensor{Shape: s.Shape, Values: make([]float32, n)}
		for i := range y.Values {
			v := r.NormFloat64() * 1.5 / math.Sqrt(float64(in))
			if strings.HasSuffix(s.Name, "norm.weight") {
				v += 0.7
			}
			const bf16 = 0xffff0000
			y.Values[i] = math.Float32frombits(math.Float32bits(float32(v)) & bf16)
		}
		all[s.Name] = y
	}
	if err := predictortest.Write(filepath.Join(dir, "model.safetensors"), all); err != nil {
		t.Fatal(err)
	}
}

// TestCUDAHeads holds models with wide heads and with latents of 576 to CPUs in float32: greedy
// tokens are equal, but where the best two are near, and logits are within three times of what CPUs
// in bfloat16 are off by, which round neither queries nor a softmax's weights.
func TestCUDAHeads(t *testing.T) {
	for _, f := range wide(t) {
		t.Run(filepath.Base(f.dir), func(t *testing.T) {
			on := func(dtype compute.DType) *shard {
				return loadShard(t, f, cpu.Options{Threads: 1, DType: dtype}, layers.Group{Size: 1})
			}
			exact, rounded := on(compute.Float32), on(compute.BFloat16)
			s, d := loadCUDA(t, f, onMachine, layers.Group{Size: 1})
			ids := prompt(70)
			for i := range ids {
				ids[i] %= int32(s.vocab)
			}
			at := piece{tokens: ids}
			worst, limit := 0.0, 0.0
			for range 10 {
				want := exact.forward(t, 0, at)
				got := s.forward(t, 0, at)
				limit = max(limit, 3*distance(rounded.forward(t, 0, at), want))
				worst = max(worst, distance(got, want))
				last := want[len(want)-1]
				token := argmax(last)
				if n := argmax(got[len(got)-1]); n != token &&
					float64(last[token]-last[n]) > 2*limit {
					t.Errorf("token %d is %d, not %d", len(ids), n, token)
				}
				ids = append(ids, token)
				at = piece{start: len(ids) - 1, tokens: ids[len(ids)-1:]}
			}
			if !(worst <= limit) {
				t.Errorf("logits are off by %.3g, more than %.3g", worst, limit)
			}
			t.Logf("logits are off by %.3g of %.3g, %d replays", worst, limit, d.Replays())
			if l := d.Launches(); l[kernels.SplitBF16]+l[kernels.SplitLatentBF16] == 0 {
				t.Error("attention was computed by another kernel")
			}
		})
	}
}
