package open

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/rank/model"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
)

// TestEnds: the tokens that end an output are those of generation_config.json, whatever
// --generation-config takes of it, and those of config.json in a folder without one.
func TestEnds(t *testing.T) {
	for name, tt := range map[string]struct {
		file, from string
		stop       []int32
		sampled    bool
	}{
		"of the file":           {`{"eos_token_id":[4,5],"top_k":3}`, "auto", []int32{4, 5}, true},
		"without its sampling":  {`{"eos_token_id":[4,5],"top_k":3}`, "vllm", []int32{4, 5}, false},
		"of config.json":        {"", "auto", []int32{8, 9}, false},
		"of config.json, too":   {"", "vllm", []int32{8, 9}, false},
		"none beside the first": {`{"eos_token_id":7}`, "auto", nil, false},
	} {
		dir := t.TempDir()
		if tt.file != "" {
			if err := os.WriteFile(filepath.Join(dir, "generation_config.json"), []byte(tt.file),
				0o600); err != nil {
				t.Fatal(err)
			}
		}
		c := config.Default()
		c.Model.GenerationConfig = tt.from
		r := newResolver(t.Context(), &Options{Config: &c})
		var err error
		if r.folder, err = checkpoint.Dir(dir); err != nil {
			t.Fatal(err)
		}
		r.Model, err = model.ReadConfig([]byte(`{"model_type":"llama","eos_token_id":[7,8,9]}`))
		if err == nil {
			err = r.readGenerationConfig()
		}
		if err != nil || r.Info.EOS != 7 || !slices.Equal(r.Info.StopTokens, tt.stop) ||
			(r.Info.Generation.TopK != nil) != tt.sampled {
			t.Errorf("%s: %v, ends %d and %d, want 7 and %d; top_k %v", name, err, r.Info.EOS,
				r.Info.StopTokens, tt.stop, r.Info.Generation.TopK)
		}
	}
}
