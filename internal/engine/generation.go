package engine

import (
	"fmt"
	"slices"

	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
)

// readGenerationConfig finds what the model's authors suggest for sampling, puts the flag's values
// over it, and finds the tokens that end an output.
func (b *opening) readGenerationConfig() error {
	g := &checkpoint.GenerationConfig{}
	if where := b.cfg.Model.GenerationConfig; where != "vllm" {
		folder := b.folder
		if where != "auto" {
			var err error
			if folder, err = checkpoint.Dir(where); err != nil {
				return fmt.Errorf("--generation-config: %w", err)
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
	}
	if raw := b.cfg.Model.OverrideGenerationConfig; raw != "" {
		over, err := checkpoint.ReadGenerationConfig([]byte(raw))
		if err != nil {
			return fmt.Errorf("--override-generation-config: %w", err)
		}
		g.Settings = over.Settings.Over(g.Settings)
		if over.EOS != nil {
			g.EOS = over.EOS
		}
	}
	b.info.Generation = g.Settings
	b.findEnds(g.EOS)
	return nil
}

// findEnds finds the tokens that end an output: the tokenizer's end of a sequence, else the
// model's, and those of the generation config beside it.
func (b *opening) findEnds(more []int) {
	b.info.EOS = -1
	if len(b.model.EOS) > 0 {
		b.info.EOS = int32(b.model.EOS[0])
	}
	if b.info.Tokenizer != nil {
		if id, ok := b.info.Tokenizer.ID(b.info.Tokenizer.Config().EOSToken); ok {
			b.info.EOS = id
		}
	}
	for _, id := range more {
		if t := int32(id); t != b.info.EOS && !slices.Contains(b.info.StopTokens, t) {
			b.info.StopTokens = append(b.info.StopTokens, t)
		}
	}
}
