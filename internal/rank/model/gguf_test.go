package model_test

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu"
	"github.com/eagleray/eagleray/internal/rank/model"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
	"github.com/eagleray/eagleray/internal/sys/fixtures"
)

const ggufFolder = "../../../testdata/gguf"

// ggufs are models in GGUF: two of them are in the repository, the others beside it.
var ggufs = []string{"llama-Q4_K_M", "qwen3-Q4_0", "llama-F16", "llama-Q6_K", "llama-Q8_0",
	"qwen3-BF16", "qwen3-Q5_K_M", "go-std-tiny-Q4_K_M"}

// ggufModel is the file of a model, and the folder of its goldens.
func ggufModel(t *testing.T, name string) (f fixture, golden string) {
	t.Helper()
	dir := filepath.Join(ggufFolder, name)
	if _, err := os.Stat(dir); err != nil {
		dir = filepath.Join(fixtures.Dir(t), "gguf", name)
	}
	golden, err := filepath.Abs(dir)
	if err != nil {
		t.Fatal(err)
	}
	return fixture{dir: filepath.Join(dir, name+".gguf"), config: "config.json"}, golden
}

// goldenPath is where the goldens of a fixture are, in testdata or at an absolute path.
func goldenPath(name string) string {
	if filepath.IsAbs(name) {
		return filepath.Join(name, "goldens.json")
	}
	return filepath.Join(models, name, "goldens.json")
}

// TestGGUF holds models in GGUF to what transformers computes of the numbers that the gguf package
// makes of them, as TestGoldens does.
func TestGGUF(t *testing.T) {
	for _, name := range ggufs {
		t.Run(name, func(t *testing.T) {
			f, golden := ggufModel(t, name)
			g := readGoldens(t, golden)
			for _, dtype := range []compute.DType{compute.Float32, compute.BFloat16} {
				tolerance := 1e-4
				if dtype == compute.BFloat16 {
					tolerance = 3 * g.BF16Error // inputs are rounded to int8
				}
				s := loadShard(t, f, cpu.Options{Threads: 2, DType: dtype}, layers.Group{Size: 1})
				checkGoldens(t, s, g, nil, tolerance, dtype == compute.Float32)
			}
		})
	}
}

// TestGGUFSameBits divides rows and columns of blocks among ranks.
func TestGGUFSameBits(t *testing.T) {
	for _, name := range ggufs[:2] {
		f, _ := ggufModel(t, name)
		for _, dtype := range []compute.DType{compute.BFloat16, compute.Float32} {
			checkSameBits(t, f, dtype, prompt(70), 2, 4)
		}
	}
}

// TestGGUFFamilies reads headers that llama.cpp's converter wrote of the fixtures of all families
// that both know. It wants the configuration that their config.json has, and that a model of it
// finds every tensor, in its shape, and leaves none over.
func TestGGUFFamilies(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(ggufFolder, "converted", "*.gguf"))
	if err != nil || len(files) < 20 {
		t.Fatalf("%d headers, %v", len(files), err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".gguf")
		t.Run(name, func(t *testing.T) {
			got, c := converted(t, file, name).open(t)
			of := shipped(name)
			if _, err := os.Stat(filepath.Join(variants, name)); err == nil {
				of = variant(name)
			}
			want, _ := of.open(t)
			lost(name, want)
			if got.Rope.Type != want.Rope.Type { // Llama 3's four numbers have become a list
				x, scaleX, err := got.RopeFrequencies()
				y, scaleY, err2 := want.RopeFrequencies()
				if err != nil || err2 != nil || !alike(t, x, y) || scaleX != scaleY {
					t.Errorf("frequencies are %v times %v, not %v times %v", x, scaleX, y, scaleY)
				}
				want.Rope = got.Rope
			}
			for _, key := range []string{"Architecture", "ModelType", "VocabSize", "HiddenSize",
				"IntermediateSize", "Layers", "Heads", "KVHeads", "HeadDim", "MaxPositions",
				"NormEps", "Activation", "TieEmbeddings", "RopeTheta", "LocalTheta", "Rope",
				"RotaryDim", "Temperature", "SlidingWindow", "Windows", "QKVBias", "OutBias",
				"MLPBias", "Family"} {
				x := reflect.ValueOf(*got).FieldByName(key).Interface()
				y := reflect.ValueOf(*want).FieldByName(key).Interface()
				if !alike(t, x, y) {
					t.Errorf("%s is %+v, not %+v", key, x, y)
				}
			}
			src := &asked{Source: model.FromCheckpoint(c), names: map[string]bool{}}
			if _, err := model.ReadBytes(got, src, layers.Group{Size: 1},
				model.Stage{}); err != nil {
				t.Error(err)
			}
			for _, name := range c.Names() {
				if !src.names[name] && !strings.HasPrefix(name, "rope_") {
					t.Errorf("no module has tensor %s", name)
				}
			}
		})
	}
}

// converted is a file with a header, and with zeros for tensors but those that scale rotary
// embeddings.
func converted(t *testing.T, header, name string) fixture {
	t.Helper()
	raw, err := os.ReadFile(header)
	if err != nil {
		t.Fatal(err)
	}
	const size = 16 << 20 // more than any of them has
	file := append(raw, make([]byte, size-len(raw))...)
	raw, err = os.ReadFile(filepath.Join(filepath.Dir(header), "rope.json"))
	var rope map[string][]struct {
		At    int
		Bytes []byte
	}
	if err == nil {
		err = json.Unmarshal(raw, &rope)
	}
	for _, r := range rope[name] {
		copy(file[r.At:], r.Bytes)
	}
	path := filepath.Join(t.TempDir(), name+".gguf")
	if err == nil {
		err = os.WriteFile(path, file, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return fixture{dir: path, config: "config.json"}
}

// lost puts into a fixture's configuration what llama.cpp knows by itself, and files do not say:
// scores of Gemma are divided by what heads of its published models have, StarCoder 2 and dots1
// have no window, GLM-4.7-Flash is a DeepSeek V3, and GPT-2 divides the scores of all layers alike.
func lost(name string, c *model.Config) {
	set := func(field string, v any) {
		reflect.ValueOf(c.Family).Elem().FieldByName(field).Set(reflect.ValueOf(v))
	}
	switch name {
	case "gemma2-tiny", "gemma3-tiny":
		set("QueryScalar", float64(c.HeadDim))
	case "glm4-moe-lite":
		c.ModelType, c.Architecture = "deepseek_v3", "DeepseekV3ForCausalLM"
	case "falcon": // all are that long
		c.MaxPositions = 2048
	case "gpt2":
		set("ByLayer", false)
	case "starcoder2-tiny", "dots1":
		c.SlidingWindow, c.Windows = 0, make([]int, c.Layers)
	}
}

// alike compares values as JSON has them, numbers to five digits: files have 32 bits of each.
func alike(t *testing.T, x, y any) bool {
	t.Helper()
	return reflect.DeepEqual(rounded(t, x), rounded(t, y))
}

func rounded(t *testing.T, x any) any {
	t.Helper()
	raw, err := json.Marshal(x)
	if err != nil {
		t.Fatal(err)
	}
	var v any
	if err := json.Unmarshal(raw, &v); err != nil {
		t.Fatal(err)
	}
	var round func(v any) any
	round = func(v any) any {
		switch v := v.(type) {
		case float64:
			if v == 0 {
				return v
			}
			digits := math.Pow(10, 5-math.Ceil(math.Log10(math.Abs(v))))
			return math.Round(v*digits) / digits
		case []any:
			for i := range v {
				v[i] = round(v[i])
			}
		case map[string]any:
			for key := range v {
				v[key] = round(v[key])
			}
		}
		return v
	}
	return round(v)
}

// asked notes the tensors that are asked for.
type asked struct {
	layers.Source
	names map[string]bool
}

func (a *asked) Tensor(name string, shape ...int) (checkpoint.Tensor, error) {
	a.names[name] = true
	return a.Source.Tensor(name, shape...)
}
