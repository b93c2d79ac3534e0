package model

import (
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// optPositionOffset is where OPT's table of learned positions begins.
const optPositionOffset = 2

// opt is OPTForCausalLM: learned positions, layer norms before or after each block, a two-matrix
// feed-forward block, and in some sizes embeddings narrower than the layers. Defaults:
// configuration_opt.py.
func opt() *family {
	return &family{modelType: "opt", architecture: "OPTForCausalLM",
		activationKey: "activation_function",
		defaults: Config{VocabSize: 50272, HiddenSize: 768, Layers: 12, Heads: 12,
			MaxPositions: 2048, Activation: "relu", TieEmbeddings: true, BOS: 2, PAD: 1,
			EOS: []int{2}},
		read: readOPT, build: newOPT,
		widths: func(c *Config) []width { return []width{{"ffn_dim", c.IntermediateSize}} }}
}

// optConfig is what only OPT has.
type optConfig struct {
	EmbeddingDim         int // width of the embeddings
	NormBefore           bool
	RemoveFinalLayerNorm bool
	ElementwiseAffine    bool
}

func (o *optConfig) stateSize() int { return o.EmbeddingDim }

// readOPT reads OPTConfig. The epsilon of its LayerNorms is PyTorch's default: the class has no
// field for it.
func readOPT(f *checkpoint.Fields, c *Config, _ Config) {
	c.NormEps = 1e-5
	c.KVHeads = c.Heads
	if c.HiddenSize%c.Heads != 0 {
		f.Fail(checkpoint.ErrMalformed, "hidden_size",
			"is %d, not a multiple of %d attention heads", c.HiddenSize, c.Heads)
	}
	c.HeadDim = c.HiddenSize / c.Heads
	c.IntermediateSize = f.Integer("ffn_dim", 3072, 1, checkpoint.MaxDim)
	c.QKVBias = f.Flag("enable_bias", true)
	c.OutBias, c.MLPBias = c.QKVBias, c.QKVBias
	c.Family = &optConfig{
		EmbeddingDim:         f.Nullable("word_embed_proj_dim", c.HiddenSize, 1, checkpoint.MaxDim),
		NormBefore:           f.Flag("do_layer_norm_before", true),
		RemoveFinalLayerNorm: f.Flag("_remove_final_layer_norm", false),
		ElementwiseAffine:    f.Flag("layer_norm_elementwise_affine", true)}
	readWindows(f, c, 0, noLayer)
}

func newOPT(s *stage) (architecture, error) {
	o := s.cfg.Family.(*optConfig)
	opt := decoderOptions{prefix: "model.decoder.", positions: "embed_positions",
		offset: optPositionOffset, narrow: o.EmbeddingDim, norm: "final_layer_norm",
		unnormed: !o.NormBefore || o.RemoveFinalLayerNorm,
		newNorm: func(s *stage, module string) norm {
			affine := layers.NotAffine
			if o.ElementwiseAffine {
				affine = layers.WeightAndBias
			}
			return s.LayerNorm(module, s.cfg.HiddenSize, float32(s.cfg.NormEps), affine)
		},
		output: "out_proj", plainMLP: [...]string{"fc1", "fc2"}}
	const attn, mlp = "self_attn_layer_norm", "final_layer_norm"
	if o.NormBefore {
		opt.attnNorm, opt.mlpNorm = attn, mlp
	} else {
		opt.attnPost, opt.mlpPost, opt.sums = attn, mlp, true
	}
	return newDecoder(s, opt)
}
