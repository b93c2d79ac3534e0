package model

import (
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// nemotron is NemotronForCausalLM (Nemotron-4, Minitron): layer norms whose weights lack a 1,
// feed-forward blocks of two matrices, and a part of each head turned. Defaults:
// configuration_nemotron.py.
func nemotron() *family {
	return &family{modelType: "nemotron", architecture: "NemotronForCausalLM",
		defaults: Config{VocabSize: 256000, HiddenSize: 6144, IntermediateSize: 24576, Layers: 32,
			Heads: 48, MaxPositions: 4096, Activation: "relu2", BOS: 2, PAD: -1, EOS: []int{3}},
		read: func(f *checkpoint.Fields, c *Config, d Config) {
			readPlain(f, c, d)
			c.NormEps = f.Number("norm_eps", 1e-5, 0)
			c.partialRotary(0.5)
			readRope(f, c)
		},
		build: func(s *stage) (architecture, error) {
			return newDecoder(s, decoderOptions{plainMLP: upDown,
				newNorm: func(s *stage, module string) norm {
					return s.LayerNorm(module, s.cfg.HiddenSize, float32(s.cfg.NormEps),
						layers.ShiftedAndBias)
				}})
		}}
}

// upDown are the modules of feed-forward blocks like Llama's without their gate.
var upDown = [...]string{"mlp.up_proj", "mlp.down_proj"}

// readPlain reads what families with such blocks share.
func readPlain(f *checkpoint.Fields, c *Config, d Config) {
	readBiasedAttention(f, c, d, 0)
	c.MLPBias = f.Flag("mlp_bias", false)
	readWindows(f, c, 0, noLayer)
}
