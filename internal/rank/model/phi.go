package model

import (
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// phi is PhiForCausalLM (Phi 1, 1.5 and 2): both blocks of a layer read one layer norm, a part of
// each head is turned, and there are biases everywhere. Defaults: configuration_phi.py.
func phi() *family {
	return &family{modelType: "phi", architecture: "PhiForCausalLM",
		defaults: Config{VocabSize: 51200, HiddenSize: 2048, IntermediateSize: 8192, Layers: 24,
			Heads: 32, MaxPositions: 2048, Activation: "gelu_new", BOS: 1, PAD: -1, EOS: []int{2}},
		read: func(f *checkpoint.Fields, c *Config, d Config) {
			readAttention(f, c, d, 0)
			c.NormEps = f.Number("layer_norm_eps", 1e-5, 0)
			c.QKVBias, c.OutBias, c.MLPBias = true, true, true
			c.Family = &neoX{Parallel: true, HeadNorms: f.Flag("qk_layernorm", false)}
			c.partialRotary(0.5)
			readRope(f, c)
			readWindows(f, c, 0, noLayer)
		},
		build: func(s *stage) (architecture, error) {
			return newDecoder(s, decoderOptions{norm: "final_layernorm", newNorm: biasedNorm,
				attnNorm: "input_layernorm", parallel: true, output: "dense",
				plainMLP: [...]string{"mlp.fc1", "mlp.fc2"}, attn: s.cfg.Family.(*neoX).attention,
				logits: layers.HeadOptions{Bias: "lm_head"}})
		}}
}

// refuseFlag refuses an option that is on, unless no published model can do without it.
func refuseFlag(f *checkpoint.Fields, key string, def bool) {
	if f.Flag(key, def) {
		f.Fail(checkpoint.ErrUnsupported, key, "is true")
	}
}
