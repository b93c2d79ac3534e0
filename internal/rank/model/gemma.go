package model

import (
	"math"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
)

// gemma1 is GemmaForCausalLM: Llama's layers with norms whose weights lack a 1, scaled embeddings
// and GELU, which its configurations give another name. Defaults: configuration_gemma.py.
func gemma1() *family {
	return &family{modelType: "gemma", architecture: "GemmaForCausalLM",
		activationKey: "hidden_activation",
		defaults: Config{VocabSize: 256000, HiddenSize: 3072, IntermediateSize: 24576, Layers: 28,
			Heads: 16, KVHeads: 16, MaxPositions: 8192, NormEps: 1e-6,
			Activation: "gelu_pytorch_tanh", TieEmbeddings: true, BOS: 2, PAD: 0, EOS: []int{1}},
		read: func(f *checkpoint.Fields, c *Config, d Config) {
			readAttention(f, c, d, 256)
			refuseBias(f)
			readRope(f, c)
			readWindows(f, c, 0, noLayer)
		},
		build: func(s *stage) (architecture, error) {
			return newDecoder(s, decoderOptions{newNorm: shiftedNorm, activation: compute.GELUTanh,
				embeddingMultiplier: float32(math.Sqrt(float64(s.cfg.HiddenSize)))})
		}}
}
