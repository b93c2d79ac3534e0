package model_test

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu"
	"github.com/eagleray/eagleray/internal/compute/cpu/isa"
	"github.com/eagleray/eagleray/internal/rank/model"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

const encoders = "../../../testdata/encoders"

// encoderNames has a fixture of every encoder.
var encoderNames = []string{"bert-tiny", "xlm-roberta-tiny", "modernbert-tiny"}

func encoder(name string) fixture {
	return fixture{dir: filepath.Join(encoders, name), config: "config.json"}
}

// encoderGoldens are what transformers computes in float32 from the bfloat16 weights.
type encoderGoldens struct {
	Prompts []struct {
		IDs  []int32   `json:"ids"`
		CLS  []float64 `json:"cls"`
		Mean []float64 `json:"mean"`
	} `json:"prompts"`
	BF16Error float64 `json:"bf16_activation_max_error"`
}

// encode computes texts in one step, stage after stage, and returns the final states of all rows.
func encode(stages []*model.Model, b *compute.Batch) (*layers.Tensor, error) {
	for i, m := range stages {
		if i > 0 {
			before := stages[i-1].Hidden()
			copy(m.Receive(before.Rows).Floats(), before.Floats())
		} else if err := m.Embed(b); err != nil {
			return nil, err
		}
		if err := m.Layers(b, nil); err != nil {
			return nil, err
		}
	}
	rows := make([]int32, b.Rows())
	for i := range rows {
		rows[i] = int32(i)
	}
	return stages[len(stages)-1].Final(rows)
}

// hidden are the rows of one text that is computed alone by a whole model.
func hidden(t *testing.T, f fixture, opt cpu.Options, b *compute.Batch) [][]float32 {
	t.Helper()
	rows := encoderRanks(t, f, opt, 1, 1, b)
	return rows
}

// encoderRanks computes a batch with a model in stages of size ranks each.
func encoderRanks(t *testing.T, f fixture, opt cpu.Options, size, count int,
	b *compute.Batch) (rows [][]float32) {
	t.Helper()
	cfg, weights := f.open(t)
	ranks := make([][]*model.Model, size)
	for _, s := range cuts(cfg.Layers, count) {
		for r, g := range together(t, size) {
			d, err := cpu.New(opt)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(d.Close)
			m, err := model.Load(cfg, model.FromCheckpoint(weights), d, model.Options{Stage: s,
				Group: layers.Group{Rank: r, Size: size, Comm: layers.OnHost{Group: g}}})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(m.Close)
			ranks[r] = append(ranks[r], m)
		}
	}
	var wg sync.WaitGroup
	for r := range ranks {
		wg.Go(func() {
			x, err := encode(ranks[r], b)
			switch {
			case err != nil:
				t.Error(err)
			case r == 0:
				rows = slices.Collect(slices.Chunk(slices.Clone(x.Floats()), x.Width))
			}
		})
	}
	wg.Wait()
	return rows
}

// TestEncoderGoldens holds every encoder to transformers: in float32 each element of the pooled
// vectors, and of some texts of all states, within 1e-4 standard deviations; in bfloat16 within
// twice what rounding activations causes in the reference itself.
func TestEncoderGoldens(t *testing.T) {
	for i, name := range encoderNames {
		raw, err := os.ReadFile(filepath.Join(encoders, name, "goldens.json"))
		if err != nil {
			t.Fatal(err)
		}
		var g encoderGoldens
		if err := json.Unmarshal(raw, &g); err != nil {
			t.Fatal(err)
		}
		full := readFullHidden(t, name)
		for _, set := range isa.All() {
			for j, dtype := range []compute.DType{compute.Float32, compute.BFloat16} {
				if testing.Short() && set == isa.Portable && isa.Best() != set &&
					(dtype != compute.Float32 || name != encoderNames[0]) {
					continue // slow; as in TestGoldens
				}
				if testing.Short() && takesTurns(set) && (i+j+int(set))%2 == 0 {
					continue
				}
				t.Run(fmt.Sprintf("%s/%s/%s", name, set, dtype), func(t *testing.T) {
					tolerance := 1e-4
					if dtype == compute.BFloat16 {
						tolerance = 2 * g.BF16Error
					}
					opt, worst := cpu.Options{Threads: 2, ISA: set.String(), DType: dtype}, 0.0
					near := func(got []float32, want []float64) {
						if len(got) != len(want) {
							t.Fatalf("%d elements, not %d", len(got), len(want))
						}
						std := deviation(want)
						for i, w := range want {
							worst = max(worst, math.Abs(float64(got[i])-w)/std)
						}
					}
					for _, p := range g.Prompts {
						rows := hidden(t, encoder(name), opt, batch(piece{tokens: p.IDs}))
						near(rows[0], p.CLS)
						mean := make([]float32, len(p.Mean))
						for _, row := range rows {
							for i, x := range row {
								mean[i] += x / float32(len(rows))
							}
						}
						near(mean, p.Mean)
						want := full[len(p.IDs)]
						for i := 0; i < len(want); i++ {
							near(rows[i], want[i])
						}
					}
					t.Logf("largest error %.3g std (limit %.3g)", worst, tolerance)
					if worst > tolerance || math.IsNaN(worst) {
						t.Errorf("largest error is %.3g standard deviations, more than %.3g", worst,
							tolerance)
					}
				})
			}
		}
	}
}

func deviation(v []float64) float64 {
	var sum, squares float64
	for _, x := range v {
		sum += x
		squares += x * x
	}
	n := float64(len(v))
	return math.Sqrt(squares/n - sum/n*sum/n)
}

// readFullHidden are the states of all tokens of some prompts, by their length.
func readFullHidden(t *testing.T, name string) map[int][][]float64 {
	raw, err := os.ReadFile(filepath.Join(encoders, name, "full_hidden.st"))
	if err != nil {
		t.Fatal(err)
	}
	tensors, err := checkpoint.ParseFile(raw)
	if err != nil {
		t.Fatal(err)
	}
	out := map[int][][]float64{}
	for _, n := range []int{7, 33} {
		x := tensors[fmt.Sprintf("hidden_%d", n)]
		v := make([]float32, len(x.Data)/4)
		copy(unsafe.Slice((*byte)(unsafe.Pointer(&v[0])), len(x.Data)), x.Data)
		for row := range slices.Chunk(v, x.Shape[1]) {
			wide := make([]float64, len(row))
			for i, e := range row {
				wide[i] = float64(e)
			}
			out[n] = append(out[n], wide)
		}
	}
	return out
}

// TestEncoderSameBits computes one text alone and beside others, on one thread and two, by ranks
// that divide the layers and in stages, and wants the same bits.
func TestEncoderSameBits(t *testing.T) {
	for _, name := range encoderNames {
		for _, dtype := range []compute.DType{compute.BFloat16, compute.Float32} {
			t.Run(fmt.Sprintf("%s/%s", name, dtype), func(t *testing.T) {
				f, ids := encoder(name), prompt(70)
				one := cpu.Options{Threads: 1, DType: dtype}
				want := hidden(t, f, one, batch(piece{tokens: ids}))
				beside := batch(piece{seq: 0, tokens: prompt(33)[5:]}, piece{seq: 1, tokens: ids},
					piece{seq: 2, tokens: []int32{9}})
				cfg, _ := f.open(t)
				for _, size := range []int{1, 2, 4} {
					if model.CheckShard(cfg, size) != nil {
						continue
					}
					for count := 1; count <= 3; count++ {
						threads := 1 + count%2
						got := encoderRanks(t, f, cpu.Options{Threads: threads, DType: dtype}, size,
							count, beside)
						compareRows(t, fmt.Sprintf("%d stages of %d ranks of %d threads", count,
							size, threads), got[28:98], want)
					}
				}
			})
		}
	}
}

// TestTokenTypes: the type of a token changes what BERT computes, and is nothing to a model that
// knows one.
func TestTokenTypes(t *testing.T) {
	for name, matters := range map[string]bool{"bert-tiny": true, "xlm-roberta-tiny": false,
		"modernbert-tiny": false} {
		var got [2][][]float32
		for i := range got {
			b := batch(piece{tokens: prompt(9)})
			if i == 1 {
				b.Types = []int32{0, 0, 0, 0, 0, 1, 1, 1, 1}
			}
			got[i] = hidden(t, encoder(name), cpu.Options{Threads: 1, DType: compute.Float32}, b)
		}
		if differs := !slices.Equal(got[0][0], got[1][0]); differs != matters {
			t.Errorf("%s: states differ: %t", name, differs)
		}
	}
}

// TestEncoderConfigs reads what the classes of encoders have, and refuses by name what would be
// computed otherwise.
func TestEncoderConfigs(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{`{"model_type":"bert","position_embedding_type":"relative_key"}`,
			"position_embedding_type"},
		{`{"model_type":"bert","is_decoder":true}`, "is_decoder is true"},
		{`{"model_type":"roberta","add_cross_attention":true}`, "add_cross_attention is true"},
		{`{"model_type":"bert","num_attention_heads":7}`, "not a multiple of 7"},
		{`{"model_type":"bert","hidden_act":"mish"}`, "hidden_act"},
		{`{"model_type":"xlm-roberta","max_position_embeddings":2}`, "max_position_embeddings"},
		{`{"architectures":["ModernBertForSequenceClassification"],"classifier_pooling":"max"}`,
			"classifier_pooling"},
		{`{"model_type":"modernbert","rope_parameters":{"sliding_attention":{"rope_type":"yarn"}}}`,
			`rope_type is "yarn"`},
		{`{"architectures":["BertForTokenClassification"],"model_type":"bertx"}`,
			"BertForTokenClassification"},
	} {
		if _, err := model.ReadConfig([]byte(c.text)); err == nil ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.text, err, c.want)
		}
	}
	for class, want := range map[string]struct {
		architecture string
		classifies   bool
		positions    int
	}{
		"BertForMaskedLM":                     {"BertModel", false, 512},
		"BertForSequenceClassification":       {"BertModel", true, 512},
		"RobertaForSequenceClassification":    {"RobertaModel", true, 510},
		"XLMRobertaForMaskedLM":               {"XLMRobertaModel", false, 510},
		"XLMRobertaForSequenceClassification": {"XLMRobertaModel", true, 510},
		"ModernBertForSequenceClassification": {"ModernBertModel", true, 8192},
		"Qwen3ForSequenceClassification":      {"Qwen3ForCausalLM", true, 32768},
	} {
		c, err := model.ReadConfig(fmt.Appendf(nil, `{"architectures":[%q]}`, class))
		if err != nil || c.Architecture != want.architecture ||
			(c.Classifier != nil) != want.classifies || c.MaxPositions != want.positions {
			t.Errorf("%s: %+v, %v", class, c, err)
		}
	}
}
