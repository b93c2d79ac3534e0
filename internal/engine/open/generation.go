package open

import (
	"slices"

	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
)

// readGenerationConfig finds what the model's authors suggest for sampling, puts the flag's values
// over it, and finds the tokens that end an output: those of config.json where there is no
// generation_config.json. These are the model's, as in vLLM, where no sampling is taken from it
// too.
func (r *resolver) readGenerationConfig() error {
	g, folder := &checkpoint.GenerationConfig{EOS: r.Model.EOS}, r.folder
	where := r.Config.Model.GenerationConfig
	// As in vLLM, max_new_tokens that the server's flags bring bound every request, and those of
	// the model are for requests that set none.
	bounds := where != "auto" && where != "vllm"
	if bounds {
		var err error
		if folder, err = checkpoint.Dir(where); err != nil {
			return usage("--generation-config: %w", err)
		}
	}
	if slices.Contains(folder.Names(), "generation_config.json") {
		raw, err := folder.ReadFile("generation_config.json")
		if err != nil {
			return err
		}
		if g, err = checkpoint.ReadGenerationConfig(raw); err != nil {
			return err
		}
	}
	if where == "vllm" {
		g.Settings = sample.Settings{}
	}
	if raw := r.Config.Model.OverrideGenerationConfig; raw != "" {
		over, err := checkpoint.ReadGenerationConfig([]byte(raw))
		if err != nil {
			return usage("--override-generation-config: %w", err)
		}
		bounds = bounds || over.MaxTokens != nil
		g.Settings = over.Settings.Over(g.Settings)
		if over.EOS != nil {
			g.EOS = over.EOS
		}
	}
	r.Info.Generation = g.Settings
	if bounds && g.MaxTokens != nil {
		r.Info.MostTokens = *g.MaxTokens
	}
	r.findEnds(g.EOS)
	return nil
}

// findEnds finds the tokens that end an output: the tokenizer's end of a sequence, else the
// model's, and those of the generation config beside it.
func (r *resolver) findEnds(more []int) {
	r.Info.EOS = -1
	if len(r.Model.EOS) > 0 {
		r.Info.EOS = int32(r.Model.EOS[0])
	}
	if r.Info.Tokenizer != nil {
		if id, ok := r.Info.Tokenizer.ID(r.Info.Tokenizer.Config().EOSToken); ok {
			r.Info.EOS = id
		}
	}
	for _, id := range more {
		if t := int32(id); t != r.Info.EOS && !slices.Contains(r.Info.StopTokens, t) {
			r.Info.StopTokens = append(r.Info.StopTokens, t)
		}
	}
}
