package model_test

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu"
	"github.com/eagleray/eagleray/internal/rank/model"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
	"github.com/eagleray/eagleray/internal/rank/model/lora"
)

// tinyFamily is a family in testdata/adapters/families.json, which make.py beside it describes.
type tinyFamily struct {
	Config  json.RawMessage     `json:"config"`
	Modules map[string][][2]int `json:"modules"`
}

// tinyFamilies are all of them, with their configurations.
func tinyFamilies(t *testing.T) (names []string, all map[string]tinyFamily) {
	t.Helper()
	raw, err := os.ReadFile("../../../testdata/adapters/families.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &all); err != nil {
		t.Fatal(err)
	}
	for name, f := range all {
		if f.Config == nil {
			f.Config, err = os.ReadFile(filepath.Join("../../../testdata", name, "config.json"))
			if err != nil {
				t.Fatal(err)
			}
			all[name] = f
		}
	}
	return slices.Sorted(maps.Keys(all)), all
}

func (f *tinyFamily) config(t *testing.T) *model.Config {
	t.Helper()
	cfg, err := model.ReadConfig(f.Config)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// made is a checkpoint of random float32 weights of the model of c.
func made(t *testing.T, c *model.Config) layers.Source { return sourceOf(weightsOf(t, c)) }

func sourceOf(list []checkpoint.Tensor) layers.Source {
	return model.FromCheckpoint(checkpoint.InMemory("made", list, func() error { return nil }))
}

// weightsOf are random float32 weights of the model of c.
func weightsOf(t *testing.T, c *model.Config) (list []checkpoint.Tensor) {
	t.Helper()
	specs, err := model.Expected(c, model.Stage{})
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(3, 4))
	for _, s := range specs {
		n, middle, width := 1, 1., 0.3
		for _, dim := range s.Shape {
			n *= dim
		}
		if len(s.Shape) > 1 {
			middle, width = 0, 1.7/math.Sqrt(float64(s.Shape[len(s.Shape)-1]))
		}
		raw := make([]byte, 0, 4*n)
		for range n {
			raw = binary.LittleEndian.AppendUint32(raw,
				math.Float32bits(float32(middle+(2*rng.Float64()-1)*width)))
		}
		list = append(list, checkpoint.Tensor{Name: s.Name, DType: checkpoint.F32, Shape: s.Shape,
			Data: raw})
	}
	return list
}

// computed is a model of float32 weights of a source.
func computed(t *testing.T, cfg *model.Config, src layers.Source) *shard {
	t.Helper()
	d, err := cpu.New(cpu.Options{Threads: 1, DType: compute.Float32})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	m, err := model.Load(cfg, src, d, model.Options{Group: layers.Group{Size: 1}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	c, err := d.NewCache(compute.CacheShape{Layers: cfg.Cache(), Blocks: 64, BlockSize: blockSize,
		DType: compute.Float32, States: 8})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Free() })
	return &shard{model: m, cache: c, vocab: cfg.VocabSize}
}

var (
	layerNumber = regexp.MustCompile(`\.\d+(\.|$)`)
	// unadapted are the linear modules of language models that adapters are refused of: routers,
	// what latent attention has absorbed, what makes the rows of experts narrow, what is computed
	// of some rows alone, and what selects positions.
	unadapted = regexp.MustCompile(`\.(gate|router|wg|gate\.wg|router\.(proj|gate)|kv_b_proj|` +
		`fc[12]_latent_proj|project_out|indexer\.[a-z_]+)$`)
)

// TestEveryFamilyIsAdapted wants of each family that the modules that adapters may stand beside are
// the linear ones of transformers, of the same shapes, under the names that PEFT has, and that what
// an adapter of all of them computes is what the weights do to which it is added.
func TestEveryFamilyIsAdapted(t *testing.T) {
	names, all := tinyFamilies(t)
	seen := map[string]bool{}
	for _, name := range names {
		f := all[name]
		t.Run(name, func(t *testing.T) {
			cfg := f.config(t)
			seen[cfg.Architecture] = true
			checkAdaptable(t, cfg, f.Modules)
			a := newAdapter(t, cfg, 7, func(string) bool { return true })
			src := made(t, cfg)
			ids := promptOf(cfg)
			s := computed(t, cfg, src)
			base := s.forward(t, 0, piece{tokens: ids})
			a.load(t, s.model, 3)
			got := s.adapted(t, 0, adaptedPiece{piece{tokens: ids}, 3})
			want := computed(t, cfg, merged{src, a, cfg.ModelType == "gpt2"}).forward(t, 0,
				piece{tokens: ids})
			moved, off := distance(base, want), distance(got, want)
			t.Logf("the adapter moves logits by up to %.3g, they are off by %.3g", moved, off)
			if !(moved > 0.05 && off < 1e-3*moved) {
				t.Errorf("logits are off by %g where the adapter moves them by %g", off, moved)
			}
		})
	}
	for _, a := range model.Architectures() {
		if !seen[a] && !strings.HasSuffix(a, "Model") { // encoders have none
			t.Errorf("%s is not among the families", a)
		}
	}
}

// promptOf is a prompt of tokens that the model has.
func promptOf(c *model.Config) []int32 {
	ids := prompt(20)
	for i := range ids {
		ids[i] %= int32(c.VocabSize)
	}
	return ids
}

// checkAdaptable compares the modules that may be adapted with those of transformers.
func checkAdaptable(t *testing.T, cfg *model.Config, modules map[string][][2]int) {
	t.Helper()
	shapes, err := model.Adaptable(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if modules == nil { // transformers has no class
		return
	}
	found := map[string]bool{}
	for _, s := range shapes {
		name := layerNumber.ReplaceAllString(s.Name, ".N$1")
		found[name] = true
		ok := false
		for module, list := range modules {
			ok = ok || checkpoint.LanguageModel(module) == name &&
				slices.Contains(list, [2]int{s.Out, s.In})
		}
		if !ok {
			t.Errorf("transformers has no module %s of %d by %d", s.Name, s.Out, s.In)
		}
	}
	for module := range modules {
		name := checkpoint.LanguageModel(module)
		if !found[name] && !unadapted.MatchString(name) && !checkpoint.OfEncoder(name) {
			t.Errorf("%s cannot be adapted", module)
		}
	}
}

// renamed is a source that has some tensors under other names.
type renamed struct {
	layers.Source
	stored func(name string) (rows int, in string)
}

// Has implements layers.Source.
func (s renamed) Has(name string) bool {
	rows, _ := s.stored(name)
	return rows > 0 || s.Source.Has(name)
}

// Tensor implements layers.Source.
func (s renamed) Tensor(name string, shape ...int) (checkpoint.Tensor, error) {
	rows, in := s.stored(name)
	if rows == 0 {
		return s.Source.Tensor(name, shape...)
	}
	w, err := s.Source.Tensor(in, rows, shape[1])
	w.Name, w.Shape, w.Data = name, shape, w.Data[:4*shape[0]*shape[1]]
	return w, err
}

// TestAdapterOfOtherRows refuses to adapt a module whose weights are stored as other ones.
func TestAdapterOfOtherRows(t *testing.T) {
	_, all := tinyFamilies(t)
	f := all["models/granitemoeshared-tiny"]
	cfg := f.config(t)
	a := newAdapter(t, cfg, 7, func(module string) bool {
		return strings.HasSuffix(module, "shared_mlp.input_linear")
	})
	src := renamed{made(t, cfg), func(name string) (int, string) {
		for _, half := range []string{"gate_proj", "up_proj"} {
			if before, ok := strings.CutSuffix(name, "shared_mlp."+half+".weight"); ok {
				return a.Modules[0].Out, before + "shared_mlp.input_linear.weight"
			}
		}
		if before, ok := strings.CutSuffix(name, "shared_mlp.down_proj.weight"); ok {
			return cfg.HiddenSize, before + "shared_mlp.output_linear.weight"
		}
		return 0, ""
	}}
	y := computed(t, cfg, src).model.Adapt(1, a.Adapter, a.src)
	if done, err := y.Step(1000); done || err == nil ||
		!strings.Contains(err.Error(), "shared_mlp.input_linear is adapted") {
		t.Errorf("%t, %v", done, err)
	}
}

// TestAdapterNames fits an adapter under the names that its modules have elsewhere.
func TestAdapterNames(t *testing.T) {
	fits := func(model []lora.Shape, names ...string) error {
		a := &lora.Adapter{}
		for _, name := range names {
			a.Modules = append(a.Modules, lora.Module{Name: name, Rank: 1, In: 1, Out: 1})
		}
		err := a.Fit(model, 1)
		for i := range a.Modules {
			if err == nil && a.Modules[i].Name != model[0].Name {
				err = fmt.Errorf("%s is %s", names[i], a.Modules[i].Name)
			}
		}
		return err
	}
	for module, names := range map[string][]string{
		"model.layers.0.mixer.in_proj": {"model.layers.0.mixer.in_proj",
			"layers.0.mixer.in_proj", "backbone.layers.0.mixer.in_proj"},
		"transformer.h.0.attn.c_attn": {"h.0.attn.c_attn"},
	} {
		if err := fits([]lora.Shape{{Name: module, Out: 1, In: 1}}, names...); err != nil {
			t.Error(err)
		}
	}
}
