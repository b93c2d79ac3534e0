package model

import (
	"math"

	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// gpt2 is GPT2LMHeadModel (GPT-2, DistilGPT2): learned positions, layer norms before both blocks,
// fused projections, and weights stored [in][out]. Defaults: configuration_gpt2.py.
func gpt2() *family {
	return &family{modelType: "gpt2", architecture: "GPT2LMHeadModel",
		activationKey: "activation_function", renamed: gptNames,
		defaults: Config{VocabSize: 50257, HiddenSize: 768, Layers: 12, Heads: 12,
			MaxPositions: 1024, Activation: "gelu_new", TieEmbeddings: true, BOS: 50256, PAD: -1,
			EOS: []int{50256}},
		read: func(f *checkpoint.Fields, c *Config, _ Config) {
			readGPT(f, c)
			c.Family = &gpt{Unscaled: !f.Flag("scale_attn_weights", true),
				ByLayer: f.Flag("scale_attn_by_inverse_layer_idx", false)}
		},
		build: newGPT2, widths: gptWidths}
}

// gptNames are the names of fields that GPT-2 and its like have for the usual ones.
var gptNames = map[string]string{"n_embd": "hidden_size", "n_positions": "max_position_embeddings",
	"n_head": "num_attention_heads", "n_layer": "num_hidden_layers", "n_inner": "intermediate_size"}

func gptWidths(c *Config) []width { return []width{{"n_inner", c.IntermediateSize}} }

// readGPT reads what GPT-2 and its like have: heads of the hidden size together, biases everywhere.
func readGPT(f *checkpoint.Fields, c *Config) {
	c.KVHeads = c.Heads
	readHeadDim(f, c)
	c.IntermediateSize = f.Nullable("intermediate_size", 4*c.HiddenSize, 1, checkpoint.MaxDim)
	c.NormEps = f.Number("layer_norm_epsilon", 1e-5, 0)
	c.QKVBias, c.OutBias, c.MLPBias = true, true, true
	if f.Flag("add_cross_attention", false) {
		f.Fail(checkpoint.ErrUnsupported, "add_cross_attention", "is true")
	}
	readWindows(f, c, 0, noLayer)
}

// gpt is what only GPT-2 has: that scores are not divided by the root of the dimension, and that
// they are divided by the number of their layer.
type gpt struct{ Unscaled, ByLayer bool }

func newGPT2(s *stage) (architecture, error) {
	// llama.cpp's converter turns them.
	fused := s.Shape("transformer.h.0.attn.c_attn.weight")
	if len(fused) != 2 || fused[1] != s.cfg.HiddenSize {
		s.Conv1D()
	}
	return newDecoder(s, gptOptions(s.cfg))
}

// gptOptions are those of GPT-2's layers.
func gptOptions(c *Config) decoderOptions {
	own := c.Family.(*gpt)
	return decoderOptions{prefix: "transformer.", embedding: "wte", positions: "wpe", layers: "h",
		norm: "ln_f", newNorm: biasedNorm, attnNorm: "ln_1", mlpNorm: "ln_2", attention: "attn",
		output: "c_proj", qkv: layers.QKVOptions{Fused: "c_attn"},
		plainMLP: [...]string{"mlp.c_fc", "mlp.c_proj"},
		attn: func(layer int, o *layers.AttentionOptions) {
			o.Scale = 1
			if !own.Unscaled {
				o.Scale = float32(1 / math.Sqrt(float64(c.HeadDim)))
			}
			if own.ByLayer {
				o.Scale /= float32(layer + 1)
			}
		}}
}
