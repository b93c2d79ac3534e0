package model

import (
	"fmt"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// starcoder2 is Starcoder2ForCausalLM: layer norms, a feed-forward block of two matrices, biases
// everywhere. Defaults: configuration_starcoder2.py.
func starcoder2() *family {
	return &family{modelType: "starcoder2", architecture: "Starcoder2ForCausalLM",
		defaults: Config{VocabSize: 49152, HiddenSize: 3072, IntermediateSize: 12288, Layers: 30,
			Heads: 24, KVHeads: 2, MaxPositions: 4096, Activation: "gelu_pytorch_tanh",
			TieEmbeddings: true, BOS: 50256, PAD: -1, EOS: []int{50256}},
		read: func(f *checkpoint.Fields, c *Config, d Config) {
			readAttention(f, c, d, 0)
			c.NormEps = f.Number("norm_epsilon", 1e-5, 0)
			c.QKVBias = f.Flag("use_bias", true)
			c.OutBias, c.MLPBias = c.QKVBias, c.QKVBias
			f.Only("norm_type", "layer_norm")
			f.Only("mlp_type", "default")
			readRope(f, c)
			readWindows(f, c, plainWindow(f, 0), everyLayer)
		},
		build: func(s *stage) (architecture, error) {
			activation, err := plainActivation(s.cfg)
			if err != nil {
				return nil, err
			}
			return newDecoder(s, decoderOptions{newNorm: biasedNorm, ungated: true,
				mlp: func(s *stage, _ int, prefix string) feedForward {
					return s.MLP(prefix+"mlp.c_fc", prefix+"mlp.c_proj", s.cfg.HiddenSize,
						s.cfg.IntermediateSize, activation, s.cfg.MLPBias)
				}})
		}}
}

// biasedNorm is a LayerNorm with weight and bias.
func biasedNorm(s *stage, module string) norm {
	return s.LayerNorm(module, s.cfg.HiddenSize, float32(s.cfg.NormEps), layers.WeightAndBias)
}

// plainActivation is that of a feed-forward block without a gate.
func plainActivation(c *Config) (compute.Activation, error) {
	switch c.Activation {
	case "relu":
		return compute.ReLU, nil
	case "gelu":
		return compute.GELU, nil
	case "gelu_tanh":
		return compute.GELUTanh, nil
	case "relu2":
		return compute.ReLU2, nil
	}
	return 0, fmt.Errorf("activation %q is not supported (relu, relu2, gelu, gelu_tanh)",
		c.Activation)
}
