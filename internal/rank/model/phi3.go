package model

import (
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// phi3 is Phi3ForCausalLM (Phi 3, 3.5 and 4): Llama's layers with fused projections, of which a
// part of each head may be turned. Defaults: configuration_phi3.py.
func phi3() *family {
	return &family{modelType: "phi3", architecture: "Phi3ForCausalLM",
		defaults: Config{VocabSize: 32064, HiddenSize: 3072, IntermediateSize: 8192, Layers: 32,
			Heads: 32, MaxPositions: 4096, NormEps: 1e-5, Activation: "silu", BOS: 1, PAD: 32000,
			EOS: []int{32000}},
		read: func(f *checkpoint.Fields, c *Config, d Config) {
			readAttention(f, c, d, 0)
			refuseBias(f)
			c.partialRotary(1)
			readRope(f, c)
			readWindows(f, c, plainWindow(f, 0), everyLayer)
		},
		build: func(s *stage) (architecture, error) {
			return newDecoder(s, decoderOptions{qkv: layers.QKVOptions{Fused: "qkv_proj"},
				fusedMLP: "gate_up_proj"})
		}}
}
