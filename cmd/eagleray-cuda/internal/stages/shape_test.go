package stages

import (
	"math"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/rank/model"
)

// TestShapes wants the matrices that models of the shapes have, and their caches.
func TestShapes(t *testing.T) {
	for _, s := range measured() {
		cfg, err := s.config()
		if err != nil {
			t.Fatal(err)
		}
		specs, err := model.Expected(cfg, model.Stage{To: cfg.Layers})
		if err != nil {
			t.Fatal(err)
		}
		numbers := 0.0
		for _, y := range specs {
			if len(y.Shape) == 2 && strings.Contains(y.Name, "layers.") {
				numbers += float64(y.Shape[0] * y.Shape[1])
			}
		}
		if want := s.layerNumbers(s.all()); numbers != want {
			t.Errorf("%s: layers have %.0f numbers, not %.0f", s.Name, numbers, want)
		}
		for _, l := range cfg.Cache() {
			if l != s.layer() {
				t.Errorf("%s: layers keep %v, not %v", s.Name, l, s.layer())
			}
		}
	}
}

// TestWork holds floors to those that were computed by hand for an H200 of 4.3 TB/s and 780
// TFLOP/s.
func TestWork(t *testing.T) {
	const bandwidth, operations = 4.3e12, 780e12
	shapes := map[string]Shape{}
	for _, s := range measured() {
		shapes[s.Name] = s
	}
	for _, c := range []struct {
		shape          string
		batch, prefill int
		want           float64
	}{
		{"qwen3-8b", 1, 0, 3.56}, {"qwen3-8b", 16, 0, 4.08},
		{"qwen3-8b", 64, 0, 5.77}, {"qwen3-8b", 256, 0, 13.96},
		{"qwen3-0.6b", 1, 0, 0.305}, {"qwen3-0.6b", 64, 0, 2.03},
		{"qwen3-8b", 0, 2048, 38.1}, {"qwen3-8b", 0, 8192, 171},
		{"qwen3-30b-a3b of 4 layers", 1, 0, 0.2525},
		{"qwen3-30b-a3b of 4 layers", 0, 2048, 1.479},
		{"deepseek-v2-lite of 4 layers", 1, 0, 0.2532},
		{"deepseek-v2-lite of 4 layers", 0, 2048, 1.856},
	} {
		s := shapes[c.shape]
		w := s.prefilling(c.prefill)
		if c.batch > 0 {
			w = s.decoding(c.batch, 1024)
		}
		got := w.Milliseconds(bandwidth, operations)
		if math.Abs(got/c.want-1) > 0.02 {
			t.Errorf("%s, batch %d, prefill %d: %.3f ms, not %.3f", c.shape, c.batch, c.prefill,
				got, c.want)
		}
	}
}
