package model

import (
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// gptNeoX is GPTNeoXForCausalLM (Pythia, GPT-NeoX-20B): layer norms, projections fused head by
// head, a part of each head turned, and both blocks of a layer reading the residual stream before
// it. Defaults: configuration_gpt_neox.py.
func gptNeoX() *family {
	return &family{modelType: "gpt_neox", architecture: "GPTNeoXForCausalLM",
		defaults: Config{VocabSize: 50432, HiddenSize: 6144, IntermediateSize: 24576, Layers: 44,
			Heads: 64, MaxPositions: 2048, Activation: "gelu", BOS: 0, PAD: -1, EOS: []int{2}},
		read: readGPTNeoX, build: newGPTNeoX}
}

// neoX is what GPT-NeoX and its like choose. HeadNorms says that there are layer norms of heads.
type neoX struct{ Parallel, HeadNorms bool }

// attention completes the options of attention with norms that all heads share.
func (y *neoX) attention(_ int, o *layers.AttentionOptions) { o.LayerNorms = y.HeadNorms }

func readGPTNeoX(f *checkpoint.Fields, c *Config, d Config) {
	c.IntermediateSize = f.Integer("intermediate_size", d.IntermediateSize, 1, checkpoint.MaxDim)
	c.NormEps = f.Number("layer_norm_eps", 1e-5, 0)
	c.KVHeads = c.Heads
	readHeadDim(f, c)
	c.QKVBias = f.Flag("attention_bias", true)
	c.OutBias, c.MLPBias = c.QKVBias, true
	c.Family = &neoX{Parallel: f.Flag("use_parallel_residual", true)}
	c.partialRotary(f.Number("rotary_pct", 0.25, 0))
	c.RopeTheta = f.Number("rotary_emb_base", 10000, 1)
	if c.RotaryDim < 2 || c.RotaryDim > c.HeadDim || c.RotaryDim%2 != 0 {
		f.Fail(checkpoint.ErrMalformed, "rotary_pct", "gives %d of %d dimensions, which cannot be "+
			"turned", c.RotaryDim, c.HeadDim)
	}
	readRope(f, c)
	readWindows(f, c, 0, noLayer)
}

func newGPTNeoX(s *stage) (architecture, error) {
	return newDecoder(s, decoderOptions{prefix: "gpt_neox.", embedding: "embed_in",
		norm: "final_layer_norm", head: "embed_out", attention: "attention", output: "dense",
		newNorm: biasedNorm, parallel: s.cfg.Family.(*neoX).Parallel,
		qkv:      layers.QKVOptions{Fused: "query_key_value", Grouped: true},
		attnNorm: "input_layernorm", mlpNorm: "post_attention_layernorm",
		plainMLP: [...]string{"mlp.dense_h_to_4h", "mlp.dense_4h_to_h"}})
}
