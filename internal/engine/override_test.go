package engine_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/ops/config"
)

// TestOverrides: what --hf-overrides says of positions is as if config.json said it, in all ranks.
func TestOverrides(t *testing.T) {
	t.Parallel()
	const overrides = `{"rope_scaling":{"rope_type":"yarn","factor":4.0,` +
		`"original_max_position_embeddings":512},"architectures":["Other"]}`
	from, err := filepath.Abs("../../testdata/models/qwen3-tiny")
	if err != nil {
		t.Fatal(err)
	}
	changed := t.TempDir()
	text, err := os.ReadFile(filepath.Join(from, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	text = bytes.Replace(text, []byte(`"rope_type": "default"`),
		[]byte(`"rope_type":"yarn","factor":4,"original_max_position_embeddings":512`), 1)
	if err := os.WriteFile(filepath.Join(changed, "config.json"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"model.safetensors", "generation_config.json"} {
		if err := os.Symlink(filepath.Join(from, name),
			filepath.Join(changed, name)); err != nil {
			t.Fatal(err)
		}
	}
	var prompt []int32
	for i := range int32(700) { // more than the 512 positions of the file
		prompt = append(prompt, 3+i*i%900)
	}
	say := func(dir, overrides string, ranks, length int) []int32 {
		e := openEngine(t, func(c *config.Config) {
			c.Model.Path, c.Model.SkipTokenizerInit = dir, true
			c.Model.HFOverrides, c.Parallel.TensorParallelSize = overrides, ranks
		})
		if n := e.Info().MaxModelLen; n != length {
			t.Errorf("the longest request has %d tokens, want %d", n, length)
		}
		return mustAsk(t, e, engine.NewRequest(prompt[:min(len(prompt), length-20)],
			params(e, 20))).tokens
	}
	want := say(changed, "", 1, 2048)
	for _, ranks := range []int{1, 2} {
		t.Run(fmt.Sprintf("tp=%d", ranks), func(t *testing.T) {
			if got := say(from, overrides, ranks, 2048); !slices.Equal(got, want) {
				t.Errorf("overridden it says %d, with the file changed %d", got, want)
			}
		})
	}
	// The comparison sees a difference.
	longer := say(from, `{"max_position_embeddings":2048}`, 1, 2048)
	if slices.Equal(longer, want) {
		t.Errorf("without the scaling it says the same: %d", longer)
	}
	for text, message := range map[string]string{
		`{"hidden_size":1}`:      "--hf-overrides: hidden_size",
		`{"is_matryoshka":true}`: "is for --runner pooling",
		`[]`:                     "is not a JSON object",
		`{"rope_scaling":{"rope_type":"spiral"}}`: "with --hf-overrides: config.json: not " +
			"supported: rope_parameters.rope_type is \"spiral\"",
	} {
		c := config.Default()
		c.Model.Path, c.Model.SkipTokenizerInit, c.Model.HFOverrides = from, true, text
		_, _, err := engine.Open(t.Context(), engine.Options{Config: c})
		if err == nil || !bytes.Contains([]byte(err.Error()), []byte(message)) {
			t.Errorf("%s: error %v, want %q", text, err, message)
		}
	}
}
