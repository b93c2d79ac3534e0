package model

import "github.com/eagleray/eagleray/internal/rank/model/checkpoint"

// smollm3 is SmolLM3ForCausalLM: Llama's layers, of which some turn no heads. Defaults:
// configuration_smollm3.py.
func smollm3() *family {
	return &family{modelType: "smollm3", architecture: "SmolLM3ForCausalLM",
		defaults: Config{VocabSize: 128256, HiddenSize: 2048, IntermediateSize: 11008, Layers: 36,
			Heads: 16, KVHeads: 4, MaxPositions: 32768, NormEps: 1e-6, Activation: "silu",
			TieEmbeddings: true, BOS: 128000, PAD: 128004, EOS: []int{128001}, RopeTheta: 2e6},
		read: func(f *checkpoint.Fields, c *Config, d Config) {
			readBiasedAttention(f, c, d, 0)
			c.MLPBias = f.Flag("mlp_bias", false)
			turned := readTurned(f, c)
			c.Family = turned
			readRope(f, c)
			window := 0
			if f.Flag("use_sliding_window", false) {
				window = plainWindow(f, 0)
			}
			readWindows(f, c, window, func(i int) bool { return window > 0 && turned[i] == 0 })
		},
		build: func(s *stage) (architecture, error) {
			turned := s.cfg.Family.([]int)
			return newDecoder(s, decoderOptions{rotaryOf: func(layer int) int {
				return turned[layer] - 1
			}})
		}}
}

// readTurned reads no_rope_layers, which has a 1 for each layer that does turn its heads.
func readTurned(f *checkpoint.Fields, c *Config) []int {
	turned := make([]int, c.Layers)
	interval := f.Integer("no_rope_layer_interval", 4, 1, checkpoint.MaxDim)
	for i := range turned {
		if (i+1)%interval != 0 {
			turned[i] = 1
		}
	}
	list := f.IDs("no_rope_layers", nil)
	if len(list) == 0 {
		return turned
	}
	if len(list) != c.Layers {
		f.Fail(checkpoint.ErrMalformed, "no_rope_layers", "has %d entries for %d layers", len(list),
			c.Layers)
		return turned
	}
	for i, v := range list {
		turned[i] = min(v, 1)
	}
	return turned
}
