package open

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/rank/builtin"
	"github.com/eagleray/eagleray/internal/rank/model/predictortest"
	"github.com/eagleray/eagleray/internal/sys/memory"
)

// TestDraftModels refuses draft models that cannot guess for a model, as mistakes of the caller's,
// and has others know as many positions as both models do.
func TestDraftModels(t *testing.T) {
	folder := func(name string) string {
		if name == builtin.Name {
			return name
		}
		return filepath.Join("..", "..", "..", "testdata", name)
	}
	for _, c := range []struct {
		model, draft string
		says         string // the error; "" for none
		maxLen       int    // of the draft model
	}{
		{"", builtin.Name, "", 2048},
		{"models/go-std-tiny", builtin.Name, "", 2048},
		{"models/mixtral-tiny", "models/gpt-oss-tiny", "", 512},
		{"", "models/llama-tiny", "vocabulary has 1024 tokens, that of", 0},
		{"models/llama-tiny", "models/mixtral-tiny", "has 512 tokens, that of", 0},
		{"models/phi3-tiny", "models/mixtral-tiny", "sliding window", 0},
		{"models/mixtral-tiny", "models/qwen3next-tiny", "keeps a state", 0},
		{"models/mixtral-tiny", "encoders/bert-tiny", "it generates nothing", 0},
		{"", "no/such", "no/such", 0},
	} {
		cfg := config.Default()
		cfg.Model.Tokenizer = folder("models/go-std-tiny")
		if c.model != "" {
			cfg.Model.Path = folder(c.model)
		}
		cfg.Speculative = config.Speculative{Method: config.DraftModel, Tokens: 4,
			Model: folder(c.draft)}
		s, err := Resolve(t.Context(), Options{Config: &cfg,
			Bounds: func() memory.Bounds { return has(8<<30, 8<<30) }})
		if c.says == "" {
			if err != nil || s.draft.maxLen != c.maxLen {
				t.Errorf("%q with %q: %v, %+v", c.model, c.draft, err, s)
				continue
			}
			if err := s.Files.Release(); err != nil {
				t.Error(err)
			}
			continue
		}
		var mistake *config.UsageError
		if err == nil || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(),
			"--speculative-config: draft model") ||
			errors.As(err, &mistake) != (c.draft != "no/such") {
			t.Errorf("%q with %q: %v, want %q", c.model, c.draft, err, c.says)
		}
	}
}

// TestPredictors refuses models that predict one token at a time, and heads of other models.
func TestPredictors(t *testing.T) {
	models := filepath.Join("..", "..", "..", "testdata", "models")
	extended := t.TempDir()
	if err := predictortest.Extend(extended, filepath.Join(models, "glm4moe-tiny"),
		predictortest.Options{}); err != nil {
		t.Fatal(err)
	}
	head := t.TempDir()
	if err := predictortest.Eagle3(head, filepath.Join(models, "llama-tiny"), 1,
		[]int{1, 2, 3}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		model, format, head, says string
	}{
		{extended, "auto", "", ""},
		{filepath.Join(models, "glm4moe-tiny"), "dummy", "", ""},
		{filepath.Join(models, "glm4moe-tiny"), "auto", "", `"model.layers.4.`},
		{filepath.Join(models, "llama-tiny"), "dummy", "",
			"LlamaForCausalLM has no layer that predicts a token more"},
		{filepath.Join(models, "llama-tiny"), "auto", head, ""},
		{filepath.Join(models, "llama-tiny"), "dummy", head, ""},
		{filepath.Join(models, "glm4moe-tiny"), "auto", head,
			"hidden_size is 128, that of the model is 72"},
		{filepath.Join(models, "llama-tiny"), "auto", filepath.Join(models, "llama-tiny"),
			"num_hidden_layers is 4, not 1"},
	} {
		cfg := config.Default()
		cfg.Model.Path, cfg.Model.LoadFormat = c.model, c.format
		cfg.Model.Tokenizer = filepath.Join(models, "go-std-tiny")
		cfg.Speculative = config.Speculative{Method: config.MTP, Tokens: 4}
		if c.head != "" {
			cfg.Speculative.Method, cfg.Speculative.Model = config.Eagle3, c.head
		}
		s, err := Resolve(t.Context(), Options{Config: &cfg,
			Bounds: func() memory.Bounds { return has(8<<30, 8<<30) }})
		if c.says == "" {
			if err != nil || s.draftNeed.Draft == 0 || s.draftNeed.Block == 0 {
				t.Errorf("%q: %v, %+v", c.model, err, s)
				continue
			}
			if err := s.Files.Release(); err != nil {
				t.Error(err)
			}
			continue
		}
		var mistake *config.UsageError
		if err == nil || !strings.Contains(err.Error(), c.says) || !errors.As(err, &mistake) {
			t.Errorf("%q: %v, want %q", c.model, err, c.says)
		}
	}
}
