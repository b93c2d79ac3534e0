package model

import (
	"math"

	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// miniCPM is MiniCPMForCausalLM (MiniCPM 1, 2 and 4): Llama's layers with multipliers of
// embeddings, what blocks add, and logits. transformers has no class: defaults are those of the
// checkpoints' own.
func miniCPM() *family {
	return &family{modelType: "minicpm", architecture: "MiniCPMForCausalLM",
		defaults: Config{VocabSize: 32000, HiddenSize: 4096, IntermediateSize: 11008, Layers: 32,
			Heads: 32, MaxPositions: 2048, NormEps: 1e-6, Activation: "silu", TieEmbeddings: true,
			BOS: 1, PAD: -1, EOS: []int{2}},
		read: func(f *checkpoint.Fields, c *Config, d Config) {
			readBiasedAttention(f, c, d, 0)
			c.Family = readScales(f, c, 1, 1, 1)
			readRope(f, c)
			readWindows(f, c, 0, noLayer)
		},
		build: func(s *stage) (architecture, error) {
			return newDecoder(s, s.cfg.Family.(*multipliers).options())
		}}
}

// readScales reads MiniCPM's multipliers, that of scores being none.
func readScales(f *checkpoint.Fields, c *Config, embedding, depth float64,
	base int) *multipliers {
	f.Has("mup_denominator") // of training alone
	m := &multipliers{Embedding: f.Number("scale_emb", embedding, 0), Residual: 1}
	if f.Has("scale_depth") && !f.Set("scale_depth") {
		depth = math.Sqrt(float64(c.Layers))
	}
	m.Residual = f.Number("scale_depth", depth, 0) / math.Sqrt(float64(c.Layers))
	if f.Has("dim_model_base") && !f.Set("dim_model_base") {
		base = c.HiddenSize
	}
	base = f.Nullable("dim_model_base", base, 1, checkpoint.MaxDim)
	m.Logits = float64(c.HiddenSize) / float64(base)
	return m
}

// miniCPM3 is MiniCPM3ForCausalLM: the same with latent attention. Defaults:
// configuration_minicpm3.py.
func miniCPM3() *family {
	return &family{modelType: "minicpm3", architecture: "MiniCPM3ForCausalLM",
		defaults: Config{VocabSize: 73448, HiddenSize: 2560, IntermediateSize: 6400, Layers: 62,
			Heads: 40, MaxPositions: 32768, NormEps: 1e-5, Activation: "silu", TieEmbeddings: true,
			BOS: 1, PAD: -1, EOS: []int{2}},
		read: func(f *checkpoint.Fields, c *Config, d Config) {
			readLatent(f, c, d, layers.LatentOptions{Query: 768, Latent: 256, Plain: 64,
				Turned: 32, Value: c.HiddenSize / c.Heads}, &experts{})
			c.Family.(*deepSeek).scales = readScales(f, c, 12, 1.4, 256)
			refuseFlag(f, "mlp_bias", false)
		},
		build: func(s *stage) (architecture, error) {
			opt, scaled := deepSeekOptions(s.cfg), s.cfg.Family.(*deepSeek).scales.options()
			opt.mlp = nil
			opt.embeddingMultiplier = scaled.embeddingMultiplier
			opt.residualMultiplier, opt.logits = scaled.residualMultiplier, scaled.logits
			return newDecoder(s, opt)
		}, cache: latentCache}
}
