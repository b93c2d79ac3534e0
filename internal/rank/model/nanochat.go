package model

import (
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// nanoChat is NanoChatForCausalLM: norms without weights, also of embeddings and of heads, which
// are turned the other way about, feed-forward blocks of two matrices, and capped logits. Defaults:
// configuration_nanochat.py.
func nanoChat() *family {
	return &family{modelType: "nanochat", architecture: "NanoChatForCausalLM",
		defaults: Config{VocabSize: 50304, HiddenSize: 768, IntermediateSize: 8192, Layers: 12,
			Heads: 6, MaxPositions: 2048, NormEps: 1e-6, Activation: "relu2", BOS: 0, PAD: 1,
			EOS: []int{1}},
		read: func(f *checkpoint.Fields, c *Config, d Config) {
			readBiasedAttention(f, c, d, 0)
			c.Family = &gemma{LogitCap: capOf(f, "final_logit_softcapping", 15)}
			readRope(f, c)
			readWindows(f, c, 0, noLayer)
		},
		build: func(s *stage) (architecture, error) {
			return newDecoder(s, decoderOptions{plainMLP: [...]string{"mlp.fc1", "mlp.fc2"},
				embedNorm: "norm", newNorm: func(s *stage, _ string) norm {
					return s.UnweightedRMSNorm(s.cfg.HiddenSize, float32(s.cfg.NormEps))
				},
				attn: func(_ int, o *layers.AttentionOptions) {
					o.HeadNorms, o.Unweighted = true, true
				},
				rotaries: turnedBack,
				logits:   layers.HeadOptions{Cap: float32(s.cfg.Family.(*gemma).LogitCap)}})
		}}
}

// turnedBack is the rotary embedding that Rope describes, by the opposite angles.
func turnedBack(s *stage) ([]*layers.Rotary, error) {
	frequencies, scale, err := s.cfg.RopeFrequencies()
	if err != nil {
		return nil, err
	}
	for i := range frequencies {
		frequencies[i] = -frequencies[i]
	}
	return []*layers.Rotary{s.Rotary(frequencies, scale, s.cfg.MaxPositions)}, nil
}
