package model

import (
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// granite is GraniteForCausalLM: Llama's layers with multipliers of embeddings, scores, what blocks
// add, and logits. Defaults: configuration_granite.py.
func granite() *family {
	return &family{modelType: "granite", architecture: "GraniteForCausalLM",
		defaults: llama().defaults,
		read: func(f *checkpoint.Fields, c *Config, d Config) {
			c.Family = readMultipliers(f, c, d)
			readWindows(f, c, 0, noLayer)
			c.MLPBias = f.Flag("mlp_bias", false)
		},
		build: func(s *stage) (architecture, error) {
			return newDecoder(s, s.cfg.Family.(*multipliers).options())
		}}
}

// readMultipliers reads what Granite's families share.
func readMultipliers(f *checkpoint.Fields, c *Config, d Config) *multipliers {
	readBiasedAttention(f, c, d, 0)
	readRope(f, c)
	return &multipliers{Embedding: f.Number("embedding_multiplier", 1, 0),
		Attention: f.Number("attention_multiplier", 1, 0),
		Residual:  f.Number("residual_multiplier", 1, 0),
		Logits:    f.Number("logits_scaling", 1, 0)}
}

func (m *multipliers) options() decoderOptions {
	return decoderOptions{
		embeddingMultiplier: float32(m.Embedding), residualMultiplier: float32(m.Residual),
		attn:   func(_ int, o *layers.AttentionOptions) { o.Scale = float32(m.Attention) },
		logits: layers.HeadOptions{Multiplier: float32(1 / m.Logits)}}
}

// multipliers are Granite's. Logits are divided by theirs.
type multipliers struct{ Embedding, Attention, Residual, Logits float64 }
