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
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
	"github.com/eagleray/eagleray/internal/rank/model/predictortest"
)

// predictorForm is how a family's checkpoints have the layer that predicts a token more.
type predictorForm struct {
	fixture, block                    string
	tokenNorm, hiddenNorm, join, norm string
	// shifted says that norms have weights without the 1, copies that the layer has an embedding
	// and a head of its own; only is what config.json says of a model of the layer alone.
	shifted, copies bool
	only            map[string]any
}

var predictorForms = []predictorForm{
	{fixture: "deepseek-v3-tiny", block: "model.layers.4.", tokenNorm: "model.layers.4.enorm",
		hiddenNorm: "model.layers.4.hnorm", join: "model.layers.4.eh_proj",
		norm: "model.layers.4.shared_head.norm", copies: true,
		only: map[string]any{"first_k_dense_replace": 0}},
	{fixture: "glm4moe-tiny", block: "model.layers.4.", tokenNorm: "model.layers.4.enorm",
		hiddenNorm: "model.layers.4.hnorm", join: "model.layers.4.eh_proj",
		norm: "model.layers.4.shared_head.norm", only: map[string]any{"first_k_dense_replace": 0}},
	{fixture: "qwen3next-tiny", block: "mtp.layers.0.", tokenNorm: "mtp.pre_fc_norm_embedding",
		hiddenNorm: "mtp.pre_fc_norm_hidden", join: "mtp.fc", norm: "mtp.norm", shifted: true,
		only: map[string]any{"full_attention_interval": 1}},
}

// tensorOf reads a tensor as float64.
func tensorOf(t *testing.T, c *checkpoint.Checkpoint, name string) (v []float64, shape []int) {
	t.Helper()
	x, err := c.Tensor(name)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Release(x)
	wide := x.DType == checkpoint.F32
	for i := 0; i < len(x.Data); i += x.DType.Size() {
		bits := uint32(x.Data[i]) | uint32(x.Data[i+1])<<8
		if wide {
			bits |= uint32(x.Data[i+2])<<16 | uint32(x.Data[i+3])<<24
		} else {
			bits <<= 16
		}
		v = append(v, float64(math.Float32frombits(bits)))
	}
	return v, x.Shape
}

// normalised is x by its root mean square and a norm's weight.
func (f *predictorForm) normalised(x, weight []float64, eps float64) []float64 {
	squares := 0.0
	for _, v := range x {
		squares += v * v
	}
	y := make([]float64, len(x))
	for i, v := range x {
		w := weight[i]
		if f.shifted {
			w++
		}
		y[i] = v / math.Sqrt(squares/float64(len(x))+eps) * w
	}
	return y
}

// TestPredictor computes the layer that predicts a token more twice: as it is, in pieces, and as
// the only layer of a model whose embedding is what the published formula makes of each row's
// hidden state and of the token after it. What models compute of an embedding is held by
// TestGoldens.
func TestPredictor(t *testing.T) {
	for i, f := range predictorForms {
		t.Run(f.fixture, func(t *testing.T) {
			d, err := cpu.New(cpu.Options{Threads: 1, DType: compute.Float32})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(d.Close)
			f.test(t, d, compute.Float32, 2e-5)
		})
		if testing.Short() && i > 0 {
			continue
		}
		t.Run(f.fixture+" on CUDA", func(t *testing.T) {
			f.test(t, openCUDA(t, onMachine, false), compute.BFloat16, 0.02)
		})
	}
}

// test computes the layer on a device, which runs it in a type, and wants logits within a bound.
func (f *predictorForm) test(t *testing.T, d layers.Device, dtype compute.DType, bound float64) {
	dir := t.TempDir()
	if err := predictortest.Extend(dir, filepath.Join(models, f.fixture),
		predictortest.Options{Seed: 1, Copies: f.copies}); err != nil {
		t.Fatal(err)
	}
	extended := fixture{dir: dir, config: "config.json"}
	opt := cpu.Options{Threads: 1, DType: compute.Float32}
	whole := loadShard(t, extended, opt, layers.Group{Size: 1})
	cfg, weights := extended.open(t)
	var ids []int32
	for _, p := range readGoldens(t, f.fixture).Prompts {
		ids = append(append(ids, p.IDs...), p.Greedy...)
	}
	ids = ids[:min(24, len(ids))]
	n := len(ids) - 1 // the token after the last row is not known

	if err := forward(whole.model, batch(piece{0, 0, ids[:n]}), whole.cache); err != nil {
		t.Fatal(err)
	}
	rows := make([]int32, n)
	for i := range rows {
		rows[i] = int32(i)
	}
	final, err := whole.model.Final(rows)
	if err != nil {
		t.Fatal(err)
	}
	hidden := slices.Clone(final.Floats())

	predictor, cache := f.load(t, cfg, weights, d, dtype)
	width := cfg.HiddenSize
	got := [][]float32{} // logits
	var own []float32    // the hidden states that it goes on from
	for _, cut := range [][2]int{{0, 9}, {9, 10}, {10, n}} {
		logits, state := predict(t, predictor, cache, cut[0], ids[cut[0]+1:cut[1]+1],
			hidden[cut[0]*width:cut[1]*width])
		got, own = append(got, logits...), append(own, state...)
	}
	// Guesses more, from its own hidden state: as many as make them a graph's on a GPU.
	tokens := slices.Clone(ids[1:])
	for range 5 {
		last := got[len(got)-1]
		next := int32(slices.Index(last, slices.Max(last)))
		tokens, hidden = append(tokens, next), append(hidden, own[len(own)-width:]...)
		logits, state := predict(t, predictor, cache, len(tokens)-1, tokens[len(tokens)-1:],
			hidden[len(hidden)-width:])
		got, own = append(got, logits...), append(own, state...)
	}

	alone := f.alone(t, cfg, weights, tokens, hidden)
	inputs := make([]int32, len(tokens))
	for i := range inputs {
		inputs[i] = int32(i)
	}
	reference := loadShard(t, fixture{dir: alone, config: "config.json"}, opt,
		layers.Group{Size: 1})
	want := reference.forward(t, 0, piece{0, 0, inputs})
	for i := range want {
		for j := range want[i] {
			if d := math.Abs(float64(want[i][j] - got[i][j])); !(d < bound) {
				t.Fatalf("row %d: logit %d is %v, want %v", i, j, got[i][j], want[i][j])
			}
		}
	}
}

// load loads the predictor.
func (f *predictorForm) load(t *testing.T, cfg *model.Config, weights *checkpoint.Checkpoint,
	d layers.Device, dtype compute.DType) (*model.Model, compute.Cache) {
	stage := model.PredictorStage(cfg)
	if err := model.CheckWeights(cfg, model.FromCheckpoint(weights), stage, true); err != nil {
		t.Fatal(err)
	}
	m, err := model.Load(cfg, model.FromCheckpoint(weights), d,
		model.Options{Group: layers.Group{Size: 1}, Stage: stage})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	cache, err := d.NewCache(compute.CacheShape{Layers: model.CacheLayers(cfg, stage.From, stage.To,
		1), Blocks: 64, BlockSize: blockSize, DType: dtype, States: 8})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cache.Free() })
	return m, cache
}

// predict computes positions from start on, and returns the logits and hidden state of each.
func predict(t *testing.T, m *model.Model, cache compute.Cache, start int, tokens []int32,
	hidden []float32) (logits [][]float32, state []float32) {
	t.Helper()
	x := m.Receive(len(tokens))
	copy(x.Floats(), hidden)
	x.Memory.Filled()
	if err := m.Layers(batch(piece{0, start, tokens}), cache); err != nil {
		t.Fatal(err)
	}
	state = slices.Clone(m.Hidden().Floats())
	for i := range tokens {
		l, err := m.Logits([]int32{int32(i)})
		if err != nil {
			t.Fatal(err)
		}
		logits = append(logits, slices.Clone(l.Floats()))
	}
	return logits, state
}

// alone makes the folder of a model of the layer alone: token i of it has the embedding that the
// formula makes of row i.
func (f *predictorForm) alone(t *testing.T, cfg *model.Config, weights *checkpoint.Checkpoint,
	tokens []int32, hidden []float32) string {
	width := cfg.HiddenSize
	all := map[string]predictortest.Tensor{}
	add := func(name, from string) {
		v, shape := tensorOf(t, weights, from)
		x := predictortest.Tensor{Shape: shape}
		for _, y := range v {
			x.Values = append(x.Values, float32(y))
		}
		all[name] = x
	}
	first := func(names ...string) string {
		return names[slices.IndexFunc(names, weights.Has)]
	}
	for _, name := range weights.Names() {
		if rest, ok := strings.CutPrefix(name, f.block); ok {
			add("model.layers.0."+rest, name)
		}
	}
	add("model.norm.weight", f.norm+".weight")
	add("lm_head.weight", first(f.block+"shared_head.head.weight", "lm_head.weight"))
	embedding, shape := tensorOf(t, weights, first(f.block+"embed_tokens.weight",
		"model.embed_tokens.weight"))
	join, _ := tensorOf(t, weights, f.join+".weight")
	tokenNorm, _ := tensorOf(t, weights, f.tokenNorm+".weight")
	hiddenNorm, _ := tensorOf(t, weights, f.hiddenNorm+".weight")
	x := predictortest.Tensor{Shape: shape, Values: make([]float32, shape[0]*shape[1])}
	for i, token := range tokens {
		state := make([]float64, width)
		for j, v := range hidden[i*width : (i+1)*width] {
			state[j] = float64(v)
		}
		both := append(f.normalised(embedding[int(token)*width:int(token+1)*width], tokenNorm,
			cfg.NormEps), f.normalised(state, hiddenNorm, cfg.NormEps)...)
		for row := range width {
			sum := 0.0
			for k, v := range both {
				sum += join[row*2*width+k] * v
			}
			x.Values[i*width+row] = float32(sum)
		}
	}
	all["model.embed_tokens.weight"] = x
	dir := t.TempDir()
	if err := predictortest.Write(filepath.Join(dir, "model.safetensors"), all); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(filepath.Join(models, f.fixture, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	config := map[string]any{}
	if err := json.Unmarshal(raw, &config); err != nil {
		t.Fatal(err)
	}
	config["num_hidden_layers"] = 1
	for key, v := range f.only {
		config[key] = v
	}
	if raw, err = json.Marshal(config); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), raw, 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestNoPredictor wants models without such a layer to be refused by what is missing.
func TestNoPredictor(t *testing.T) {
	for name, says := range map[string]string{
		"llama-tiny":       "LlamaForCausalLM has no layer that predicts a token more",
		"deepseek-v3-tiny": `model.layers.4.`,
	} {
		cfg, weights := shipped(name).open(t)
		err := model.CheckWeights(cfg, model.FromCheckpoint(weights), model.PredictorStage(cfg),
			false)
		if !strings.Contains(fmt.Sprint(err), says) {
			t.Errorf("%s: %v, want %q", name, err, says)
		}
	}
}
