package open

import (
	"cmp"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/rank/builtin"
	"github.com/eagleray/eagleray/internal/rank/model"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
)

// TestResolveMakesFoldersAbsolute: ranks that Ray starts have another working folder.
func TestResolveMakesFoldersAbsolute(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.Mkdir("tiny", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("tiny/config.json", []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := &config.Config{}
	cfg.Model.Path = "./tiny"
	b := newResolver(t.Context(), &Options{Config: cfg})
	if err := b.resolve(); err != nil {
		t.Fatal(err)
	}
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	if want := filepath.Join(here, "tiny"); b.dir != want || b.fromHub || b.Info.Root != "./tiny" {
		t.Errorf("folder %s (from the Hub: %v), served as %s; want %s", b.dir, b.fromHub,
			b.Info.Root, want)
	}
}

// TestBuiltinByName: its name is that of a model like any other, and that of a folder where there
// is one.
func TestBuiltinByName(t *testing.T) {
	t.Chdir(t.TempDir())
	opt := Options{Config: &config.Config{}}
	opt.Config.Model.Path = builtin.Name
	b := newResolver(t.Context(), &opt)
	if err := b.resolve(); err != nil {
		t.Fatal(err)
	}
	if b.dir != "" || b.Info.Root != builtin.Name {
		t.Errorf("without a folder: folder %q, served as %s", b.dir, b.Info.Root)
	}
	if err := os.Mkdir(builtin.Name, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(builtin.Name, "config.json"), []byte("{}"),
		0o600); err != nil {
		t.Fatal(err)
	}
	opt.Config.Model.Path = builtin.Name
	b = newResolver(t.Context(), &opt)
	if err := b.resolve(); err != nil {
		t.Fatal(err)
	}
	if filepath.Base(b.dir) != builtin.Name {
		t.Errorf("beside a folder: folder %q", b.dir)
	}
}

// TestMostTokens: max_new_tokens of the model are for requests that set none, those that the flags
// bring bound all.
func TestMostTokens(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "generation_config.json"),
		[]byte(`{"max_new_tokens":24}`), 0o600); err != nil {
		t.Fatal(err)
	}
	folder, err := checkpoint.Dir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		where, override string
		suggested, most int
	}{
		{"auto", "", 24, 0},
		{"auto", `{"top_p":0.5}`, 24, 0},
		{"auto", `{"max_new_tokens":7}`, 7, 7},
		{"vllm", `{"max_new_tokens":7}`, 7, 7},
		{dir, "", 24, 24},
		{dir, `{"max_new_tokens":7}`, 7, 7},
	} {
		cfg := &config.Config{}
		cfg.Model.GenerationConfig, cfg.Model.OverrideGenerationConfig = c.where, c.override
		b := newResolver(t.Context(), &Options{Config: cfg})
		b.folder, b.Model = folder, &model.Config{}
		if err := b.readGenerationConfig(); err != nil {
			t.Fatal(err)
		}
		if got := b.Info.Generation.MaxTokens; got == nil || *got != c.suggested ||
			b.Info.MostTokens != c.most {
			t.Errorf("%s with %s: %v suggested, at most %d", c.where, c.override, got,
				b.Info.MostTokens)
		}
	}
}

// TestSelected serves a model whose attention selects positions of longer contexts as far as it
// selects all, and says so.
func TestSelected(t *testing.T) {
	for asked, want := range map[int]string{0: "max_model_len=64", 63: "",
		65: "selects 64 positions", 129: "selects 64 positions"} {
		cfg := config.Default()
		cfg.Model.Path, cfg.Model.MaxModelLen = "../../../testdata/variants/glm-moe-dsa", asked
		var log strings.Builder
		r := newResolver(t.Context(), &Options{Config: &cfg,
			Log: slog.New(slog.NewTextHandler(&log, nil))})
		err := r.resolve()
		if err == nil {
			err = r.readModel()
		}
		if asked > 64 == (err == nil) || !strings.Contains(fmt.Sprint(log.String(), err), want) {
			t.Errorf("%d positions: %v\n%s", asked, err, &log)
		}
		if served := r.Info.MaxModelLen; err == nil && served != cmp.Or(asked, 64) {
			t.Errorf("%d positions are served of %d", served, asked)
		}
	}
}

// TestMaxContext: scaling makes sequences longer than the positions that there are, but for models
// that count scaled ones.
func TestMaxContext(t *testing.T) {
	for rest, want := range map[string]int{
		`"model_type":"llama"`: 4096,
		`"model_type":"llama","rope_scaling":{"rope_type":"linear","factor":4}`: 16384,
		`"model_type":"qwen3","rope_scaling":{"rope_type":"yarn","factor":4,` +
			`"original_max_position_embeddings":2048}`: 8192,
		`"model_type":"llama","rope_scaling":{"rope_type":"llama3","factor":8,` +
			`"low_freq_factor":1,"high_freq_factor":4}`: 4096,
		`"model_type":"gemma3_text","rope_scaling":{"rope_type":"linear","factor":8}`: 4096,
	} {
		c, err := model.ReadConfig([]byte(`{"max_position_embeddings":4096,` + rest + `}`))
		if err != nil {
			t.Fatal(err)
		}
		if got := maxContext(c); got != want {
			t.Errorf("%s: %d positions, want %d", rest, got, want)
		}
	}
}
