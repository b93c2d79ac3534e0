package model_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
	"github.com/eagleray/eagleray/internal/sys/fixtures"
)

// ggufs are models in GGUF: two of them are in the repository, the others beside it.
var ggufs = []string{"llama-Q4_K_M", "qwen3-Q4_0", "llama-F16", "llama-Q6_K", "llama-Q8_0",
	"qwen3-BF16", "qwen3-Q5_K_M", "go-std-tiny-Q4_K_M"}

// ggufModel is the file of a model, and the folder of its goldens.
func ggufModel(t *testing.T, name string) (fixture, string) {
	t.Helper()
	dir := filepath.Join("../../../testdata/gguf", name)
	if _, err := os.Stat(dir); err != nil {
		dir = filepath.Join(fixtures.Dir(t), "gguf", name)
	}
	golden, err := filepath.Abs(dir)
	if err != nil {
		t.Fatal(err)
	}
	return fixture{dir: filepath.Join(dir, name+".gguf"), config: "config.json"}, golden
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
					tolerance = 2 * g.BF16Error
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

// goldenPath is where the goldens of a fixture are, in testdata or at an absolute path.
func goldenPath(name string) string {
	if filepath.IsAbs(name) {
		return filepath.Join(name, "goldens.json")
	}
	return filepath.Join(models, name, "goldens.json")
}
