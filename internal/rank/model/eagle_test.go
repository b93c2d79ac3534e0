package model_test

import (
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
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
	"github.com/eagleray/eagleray/internal/rank/model/predictortest"
)

// eagleTaps are the layers of the fixture before which the head is given the hidden states.
var eagleTaps = []int{1, 2, 3}

// eagleReference is a head of EAGLE-3 in float64, row by row, as its paper and vLLM have it.
type eagleReference struct {
	cfg          *model.Config
	of           func(name string) []float64
	keys, values [][]float64 // of each position
}

// times is a module's product with x.
func (e *eagleReference) times(module string, x []float64) []float64 {
	w := e.of(module + ".weight")
	y := make([]float64, len(w)/len(x))
	for i := range y {
		for j, v := range x {
			y[i] += w[i*len(x)+j] * v
		}
	}
	return y
}

func (e *eagleReference) norm(module string, x []float64) []float64 {
	return new(predictorForm).normalised(x, e.of(module+".weight"), e.cfg.NormEps)
}

// turn turns the halves of each head of x.
func (e *eagleReference) turn(x []float64, pos int) {
	dim := e.cfg.HeadDim
	for head := 0; head < len(x); head += dim {
		for i := range dim / 2 {
			angle := float64(pos) * math.Pow(e.cfg.RopeTheta, -2*float64(i)/float64(dim))
			a, b := x[head+i], x[head+i+dim/2]
			x[head+i] = a*math.Cos(angle) - b*math.Sin(angle)
			x[head+i+dim/2] = b*math.Cos(angle) + a*math.Sin(angle)
		}
	}
}

// forward computes the next position of a token after it and of a hidden state.
func (e *eagleReference) forward(token int32, hidden []float64) (logits, next []float64) {
	c, width, pos := e.cfg, len(hidden), len(e.keys)
	embedding := e.of("embed_tokens.weight")[int(token)*width : int(token+1)*width]
	both := append(e.norm("midlayer.input_layernorm", embedding),
		e.norm("midlayer.hidden_norm", hidden)...)
	q, k := e.times("midlayer.self_attn.q_proj", both), e.times("midlayer.self_attn.k_proj", both)
	e.turn(q, pos)
	e.turn(k, pos)
	e.keys, e.values = append(e.keys, k), append(e.values,
		e.times("midlayer.self_attn.v_proj", both))
	found := make([]float64, len(q))
	for head := range c.Heads {
		at, from := head*c.HeadDim, head*c.KVHeads/c.Heads*c.HeadDim
		weights, sum := make([]float64, pos+1), 0.0
		for p := range weights {
			for i := range c.HeadDim {
				weights[p] += q[at+i] * e.keys[p][from+i]
			}
			weights[p] = math.Exp(weights[p] / math.Sqrt(float64(c.HeadDim)))
			sum += weights[p]
		}
		for p, w := range weights {
			for i := range c.HeadDim {
				found[at+i] += w / sum * e.values[p][from+i]
			}
		}
	}
	add := func(x, y []float64) []float64 {
		z := slices.Clone(x)
		for i, v := range y {
			z[i] += v
		}
		return z
	}
	next = add(hidden, e.times("midlayer.self_attn.o_proj", found))
	read := e.norm("midlayer.post_attention_layernorm", next)
	gate, up := e.times("midlayer.mlp.gate_proj", read), e.times("midlayer.mlp.up_proj", read)
	for i, g := range gate {
		up[i] *= g / (1 + math.Exp(-g))
	}
	next = add(next, e.times("midlayer.mlp.down_proj", up))
	return e.times("lm_head", e.norm("norm", next)), next
}

// TestEagle3 holds a head, and what it is given of a model, to the published formula.
func TestEagle3(t *testing.T) {
	t.Run("CPU", func(t *testing.T) {
		d, err := cpu.New(cpu.Options{Threads: 1, DType: compute.Float32})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(d.Close)
		testEagle3(t, d, compute.Float32, 1e-4)
	})
	t.Run("CUDA", func(t *testing.T) {
		testEagle3(t, openCUDA(t, onMachine, false), compute.BFloat16, 0.03)
	})
}

// testEagle3 computes a head on a device, which runs it in a type, and wants logits within a bound.
func testEagle3(t *testing.T, d layers.Device, dtype compute.DType, bound float64) {
	dir, base := t.TempDir(), filepath.Join(models, "llama-tiny")
	if err := predictortest.Eagle3(dir, base, 1, eagleTaps); err != nil {
		t.Fatal(err)
	}
	cfg, weights := shipped("llama-tiny").open(t)
	raw, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	headConfig, err := model.ReadEagle3(raw, cfg)
	if err != nil {
		t.Fatal(err)
	}
	folder, err := checkpoint.Dir(dir)
	if err != nil {
		t.Fatal(err)
	}
	own, err := checkpoint.Open(folder)
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	one := layers.Group{Size: 1}
	whole, err := model.Load(cfg, model.FromCheckpoint(weights), d,
		model.Options{Group: one, Taps: headConfig.Taps()})
	if err != nil {
		t.Fatal(err)
	}
	defer whole.Close()
	src := model.WithEmbedding(model.FromCheckpoint(own), model.FromCheckpoint(weights))
	stage := model.PredictorStage(headConfig)
	if err := model.CheckWeights(headConfig, src, stage, true); err != nil {
		t.Fatal(err)
	}
	head, err := model.Load(headConfig, src, d, model.Options{Group: one, Stage: stage})
	if err != nil {
		t.Fatal(err)
	}
	defer head.Close()
	cache := func(c *model.Config, s model.Stage) compute.Cache {
		made, err := d.NewCache(compute.CacheShape{Layers: model.CacheLayers(c, s.From, s.To, 1),
			Blocks: 64, BlockSize: blockSize, DType: dtype})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { made.Free() })
		return made
	}

	ids := readGoldens(t, "llama-tiny").Prompts[0].IDs
	ids = append(slices.Clone(ids), readGoldens(t, "llama-tiny").Prompts[0].Greedy...)
	n := min(20, len(ids)-1)
	kept := cache(cfg, model.Stage{To: cfg.Layers})
	if err := forward(whole, batch(piece{0, 0, ids[:n]}), kept); err != nil {
		t.Fatal(err)
	}
	rows := make([]int32, n)
	for i := range rows {
		rows[i] = int32(i)
	}
	features, err := whole.Features(rows)
	if err != nil {
		t.Fatal(err)
	}
	states := slices.Clone(features.Floats())
	// What stages hand on is the hidden state before their layers.
	for at, layer := range eagleTaps {
		part, err := model.Load(cfg, model.FromCheckpoint(weights), d,
			model.Options{Group: one, Stage: model.Stage{To: layer}})
		if err != nil {
			t.Fatal(err)
		}
		defer part.Close()
		if err := forward(part, batch(piece{0, 0, ids[:n]}),
			cache(cfg, model.Stage{To: layer})); err != nil {
			t.Fatal(err)
		}
		for i := range n {
			given := features.Row(i)[at*cfg.HiddenSize:][:cfg.HiddenSize]
			if !slices.Equal(part.Hidden().Row(i), given) {
				t.Fatalf("row %d: another hidden state before layer %d", i, layer)
			}
		}
	}

	hidden := slices.Clone(head.Reduce(features).Floats())
	headCache := cache(headConfig, stage)
	got, _ := predict(t, head, headCache, 0, ids[1:8], hidden[:7*cfg.HiddenSize])
	more, own2 := predict(t, head, headCache, 7, ids[8:n+1], hidden[7*cfg.HiddenSize:])
	got = append(got, more...)
	last := own2[len(own2)-cfg.HiddenSize:]
	again, _ := predict(t, head, headCache, n, []int32{11}, last)
	got = append(got, again...)

	read := map[string][]float64{}
	ref := &eagleReference{cfg: headConfig, of: func(name string) []float64 {
		if read[name] == nil {
			from, tensor := own, name
			if name == "embed_tokens.weight" {
				from, tensor = weights, "model."+name
			}
			read[name], _ = tensorOf(t, from, tensor)
		}
		return read[name]
	}}
	width := len(eagleTaps) * cfg.HiddenSize
	var state []float64
	for i := range got {
		token := int32(11)
		if i < n {
			three := make([]float64, width)
			for j, v := range states[i*width : (i+1)*width] {
				three[j] = float64(v)
			}
			token, state = ids[i+1], ref.times("fc", three)
		}
		var want []float64
		want, state = ref.forward(token, state)
		for j, v := range got[i] {
			// The head's token j is the model's 3j+2.
			switch k := (j - 2) / 3; {
			case j%3 != 2 || k >= len(want):
				if !math.IsInf(float64(v), -1) {
					t.Fatalf("row %d: token %d has logit %v", i, j, v)
				}
			case !(math.Abs(want[k]-float64(v)) < bound):
				t.Fatalf("row %d: logit %d is %v, want %v", i, j, v, want[k])
			}
		}
	}
}

// TestNoEagle3 refuses heads of other models and of other kinds.
func TestNoEagle3(t *testing.T) {
	cfg, _ := shipped("llama-tiny").open(t)
	dir := t.TempDir()
	if err := predictortest.Eagle3(dir, filepath.Join(models, "llama-tiny"), 1,
		eagleTaps); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ from, to, says string }{
		{`"hidden_size":128`, `"hidden_size":64`, "hidden_size is 64, that of the model is 128"},
		{`"vocab_size":1024`, `"vocab_size":1000`, "vocab_size is 1000, that of the model is 1024"},
		{`[1,2,3]`, `[1,2,4]`, "are [1 2 4] of a model of 4 layers"},
		{`"eagle_config":`, `"mlp_bias":false,"norm_before_residual":true,"eagle_config":`,
			"norm_before_residual is true"},
		{`"num_hidden_layers":1`, `"num_hidden_layers":2`, "num_hidden_layers is 2"},
		{`LlamaForCausalLMEagle3`, `Qwen3ForCausalLM`, "are no head of EAGLE-3"},
	} {
		_, err := model.ReadEagle3([]byte(strings.Replace(string(raw), c.from, c.to, 1)), cfg)
		if !strings.Contains(fmt.Sprint(err), c.says) {
			t.Errorf("%s: %v, want %q", c.to, err, c.says)
		}
	}
}
