package model

import (
	"fmt"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// modernBERT is ModernBertModel: norms before each block, gated feed-forward blocks, rotary
// embeddings with a base of their own in the layers that see only what is near. Defaults:
// configuration_modernbert.py.
func modernBERT() *family {
	return &family{modelType: "modernbert", architecture: "ModernBertModel", encoder: true,
		activationKey: "hidden_activation",
		defaults: Config{VocabSize: 50368, HiddenSize: 768, IntermediateSize: 1152, Layers: 22,
			Heads: 12, MaxPositions: 8192, NormEps: 1e-5, Activation: "gelu", BOS: 50281,
			PAD: 50283, EOS: []int{50282}},
		read: readModernBERT, build: newModernBERT, head: modernBERTHead}
}

// modernBERTConfig is what only ModernBERT has.
type modernBERTConfig struct {
	NormBias bool
	// HeadActivation and HeadBias are of the layer before a classifier's classes.
	HeadActivation string
	HeadBias       bool
}

func readModernBERT(f *checkpoint.Fields, c *Config, d Config) {
	refuseDecoder(f)
	encoderHeads(f, c)
	c.IntermediateSize = f.Integer("intermediate_size", d.IntermediateSize, 1, checkpoint.MaxDim)
	c.NormEps = f.Number("norm_eps", d.NormEps, 0)
	c.QKVBias = f.Flag("attention_bias", false)
	c.OutBias, c.MLPBias = c.QKVBias, f.Flag("mlp_bias", false)
	own := &modernBERTConfig{NormBias: f.Flag("norm_bias", false),
		HeadActivation: readActivation(f, "classifier_activation", "gelu"),
		HeadBias:       f.Flag("classifier_bias", false)}
	c.Family = own
	if c.Classifier != nil {
		pools := f.Text("classifier_pooling", "cls")
		if pools != "cls" && pools != "mean" {
			f.Fail(checkpoint.ErrUnsupported, "classifier_pooling", "is %s",
				checkpoint.Short(pools))
		}
		c.Classifier.Pooling = pools
	}
	c.RopeTheta = f.Number("global_rope_theta", 160000, 1)
	c.LocalTheta = f.Number("local_rope_theta", 10000, 1)
	c.Rope.Type = "default"
	readRopeOfLayers(f, c)
	every := f.Integer("global_attn_every_n_layers", 3, 1, checkpoint.MaxDim)
	readWindows(f, c, f.Integer("local_attention", 128, 2, checkpoint.MaxDim),
		func(i int) bool { return i%every != 0 })
}

func newModernBERT(s *stage) (architecture, error) {
	c, own := s.cfg, s.cfg.Family.(*modernBERTConfig)
	activation, err := plainActivation(c)
	if err != nil {
		return nil, err
	}
	if activation == compute.ReLU {
		return nil, fmt.Errorf("hidden_activation %q is not supported (gelu, gelu_tanh)",
			c.Activation)
	}
	affine := layers.WeightOnly
	if own.NormBias {
		affine = layers.WeightAndBias
	}
	norm := func(module string) *layers.LayerNorm {
		return s.LayerNorm(module, c.HiddenSize, float32(c.NormEps), affine)
	}
	m := &encoder{stage: s, before: true}
	if m.rotary, err = globalAndLocal(s); err != nil {
		return nil, fmt.Errorf("rope: %w", err)
	}
	if s.first() {
		m.tokens = s.Embedding("model.embeddings.tok_embeddings", c.VocabSize, c.HiddenSize)
		m.embedNorm = norm("model.embeddings.norm")
	}
	if s.last() {
		m.finalNorm = norm("model.final_norm")
	}
	heads := layers.Heads{Query: c.Heads, KV: c.Heads, Dim: c.HeadDim}
	for i := s.From; i < s.To; i++ {
		at := fmt.Sprintf("model.layers.%d.", i)
		y := encoderBlock{
			qkv: s.QKV(at+"attn.", heads, c.HiddenSize, layers.QKVOptions{Bias: c.QKVBias,
				Fused: "Wqkv"}),
			// local_attention counts both sides.
			attn:    s.TwoWayAttention(heads, c.Windows[i]/2, m.rotary[localLayer(c, i)]),
			out:     s.Row(at+"attn.Wo", c.HiddenSize, c.HiddenSize, c.OutBias),
			mlpNorm: norm(at + "mlp_norm"),
			mlp: s.GatedMLP(at+"mlp.", c.HiddenSize, c.IntermediateSize, layers.GatedMLPOptions{
				Activation: activation, Bias: c.MLPBias, Fused: "Wi", Down: "Wo"}),
		}
		if i > 0 { // the embeddings are normalised
			y.attnNorm = norm(at + "attn_norm")
		}
		m.blocks = append(m.blocks, y)
	}
	return m, s.Err()
}

func modernBERTHead(c *Config) []HeadLayer {
	own := c.Family.(*modernBERTConfig)
	return []HeadLayer{
		{Module: "head.dense", Out: c.HiddenSize, In: c.HiddenSize, Bias: own.HeadBias,
			Activation: own.HeadActivation, Norm: "head.norm", NormBias: own.NormBias,
			NormEps: c.NormEps},
		{Module: "classifier", Out: len(c.Classifier.Labels), In: c.HiddenSize, Bias: true}}
}
