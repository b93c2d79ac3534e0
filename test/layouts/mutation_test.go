package layouts

import (
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/engine"
)

// TestMutationsAreFound changes what a cell computes in ways as small as can be, and wants each to
// be found: a suite that cannot fail holds nothing.
func TestMutationsAreFound(t *testing.T) {
	original := func() *workload { return drawOn(2, tiny()) }
	want := reference(t, original())
	found := func(w *workload) string {
		got, _, err := run(t.Context(), w, plain, func(s *submission) { s.abort = 0 })
		if err != nil {
			t.Fatal(err)
		}
		return firstDifference(got, want)
	}
	if d := found(original()); d != "" {
		t.Fatalf("without a mutation %s", d)
	}
	for name, mutate := range map[string]func(w *workload){
		"one bit of one weight": func(w *workload) {
			w.model.folder = flipped(t,
				w.model.path())
		},
		"another type of weights": func(w *workload) { w.model.dtype = "float16" },
		"another type of cache":   func(w *workload) { w.model.cacheDType = "fp8_e4m3" },
		"a token of a prompt": func(w *workload) {
			p := w.submissions[0].requests[0].Prompt
			p[0] = 3 + (p[0]-2)%(w.model.vocab-3)
		},
		"a seed": func(w *workload) {
			for _, s := range w.submissions {
				if p := &s.requests[0].Params; p.Temperature > 0.3 && p.MaxTokens > 4 {
					p.Seed++
					return
				}
			}
			t.Fatal("no request is sampled")
		},
	} {
		w := original()
		mutate(w)
		d := found(w)
		if d == "" {
			t.Errorf("%s: no difference is found", name)
		}
		t.Logf("%s: %s", name, d)
	}
}

// tiny is a model that is not drawn.
func tiny() modelUnderTest {
	m := models[0]
	m.dtype, m.cacheDType = "bfloat16", "int8"
	return m
}

// flipped is a copy of a model's folder with the least bit of its last weight flipped.
func flipped(t *testing.T, folder string) string {
	t.Helper()
	to := t.TempDir()
	if err := os.CopyFS(to, os.DirFS(folder)); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(to, "model.safetensors")
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	raw[len(raw)-2] ^= 1 // bfloat16, little-endian
	if err := os.WriteFile(file, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	return to
}

// TestDifferences changes each part of an outcome.
func TestDifferences(t *testing.T) {
	r := engine.NewRequest([]int32{5, 6, 7, 8}, sample.Params{TopP: 1, RepetitionPenalty: 1,
		Logprobs: 3, PromptLogprobs: 2, MaxTokens: 6, EOS: -1})
	w := &workload{model: tiny(), submissions: []submission{{requests: []*engine.Request{r}}}}
	got, want := reference(t, w), reference(t, w)
	bit := func(x *float32) { *x = math.Float32frombits(math.Float32bits(*x) ^ 1) }
	for name, change := range map[string]func(o *outcome){
		"token":            func(o *outcome) { o.tokens[3]++ },
		"offset":           func(o *outcome) { o.offsets[2]++ },
		"one token more":   func(o *outcome) { o.tokens = append(o.tokens, 1) },
		"text":             func(o *outcome) { o.text += "x" },
		"log-probability":  func(o *outcome) { bit(&o.logprobs[5].Sampled.Logprob) },
		"rank":             func(o *outcome) { o.logprobs[5].Sampled.Rank++ },
		"alternative":      func(o *outcome) { bit(&o.logprobs[0].Top[2].Logprob) },
		"fewer":            func(o *outcome) { o.logprobs = o.logprobs[:5] },
		"fewer of a place": func(o *outcome) { o.logprobs[0].Top = o.logprobs[0].Top[:2] },
		"of the prompt":    func(o *outcome) { bit(&o.prompt[len(o.prompt)-1].Sampled.Logprob) },
		"fewer there":      func(o *outcome) { o.prompt = o.prompt[1:] },
		"finish":           func(o *outcome) { o.finish = sample.FinishStop },
		"stop token":       func(o *outcome) { o.stopToken = 7 },
		"stop string":      func(o *outcome) { o.stopString = "x" },
		"count":            func(o *outcome) { o.outputTokens++ },
	} {
		o := &got[0][0]
		change(o)
		if d := o.difference(&want[0][0]); d == "" {
			t.Errorf("%s: no difference is found", name)
		}
		got[0][0] = clone(&want[0][0])
		if d := got[0][0].difference(&want[0][0]); d != "" {
			t.Fatalf("a copy: %s", d)
		}
	}
	// Of a request that was given up, a beginning is the same.
	o := &got[0][0]
	o.tokens, o.offsets, o.logprobs, o.finish = o.tokens[:2], o.offsets[:2], o.logprobs[:2], 0
	if d := o.difference(&want[0][0]); d != "" {
		t.Errorf("a beginning: %s", d)
	}
}

// TestCellsAreParsed undoes String for what is drawn.
func TestCellsAreParsed(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for range 100 {
		c := plain.vary(rng)
		c.TP, c.PP, c.Backend = 1+rng.IntN(4), 1+rng.IntN(4), "mp"
		if got, err := parseCell(c.String()); err != nil || got != c {
			t.Fatalf("%v is parsed as %v, %v", c, got, err)
		}
	}
	for _, wrong := range []string{"tp", "tp=x", "color=red", "async=2", ""} {
		if _, err := parseCell(wrong); err == nil {
			t.Errorf("%q is taken", wrong)
		}
	}
}
