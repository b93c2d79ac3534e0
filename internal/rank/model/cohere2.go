package model

import (
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// cohere2 is Cohere2ForCausalLM (Command R7B, Command A): both blocks of a layer read one norm,
// heads are turned in pairs of neighbours in the layers with a window and not at all in the others.
// Defaults: configuration_cohere2.py.
func cohere2() *family {
	return &family{modelType: "cohere2", architecture: "Cohere2ForCausalLM",
		defaults: cohereDefaults(),
		read: func(f *checkpoint.Fields, c *Config, d Config) {
			readCohere2(f, c, d, 0)
			pattern := f.Integer("sliding_window_pattern", 4, 1, checkpoint.MaxDim)
			readWindows(f, c, plainWindow(f, 4096), func(i int) bool { return (i+1)%pattern != 0 })
		},
		build: func(s *stage) (architecture, error) {
			o := s.cfg.Family.(*cohere).options(s.cfg)
			o.rotaryOf = func(layer int) int { return localLayer(s.cfg, layer) - 1 }
			return newDecoder(s, o)
		}}
}

// cohere1 is CohereForCausalLM (Command R): as cohere2, without windows, heads being turned in all
// layers. Defaults: configuration_cohere.py.
func cohere1() *family {
	return &family{modelType: "cohere", architecture: "CohereForCausalLM",
		defaults: cohereDefaults(),
		read: func(f *checkpoint.Fields, c *Config, d Config) {
			readCohere(f, c, d, 0)
			readRope(f, c)
			readWindows(f, c, 0, noLayer)
		},
		build: func(s *stage) (architecture, error) {
			return newDecoder(s, s.cfg.Family.(*cohere).options(s.cfg))
		}}
}

func cohereDefaults() Config {
	return Config{VocabSize: 256000, HiddenSize: 8192, IntermediateSize: 22528, Layers: 40,
		Heads: 64, MaxPositions: 8192, Activation: "silu", TieEmbeddings: true, BOS: 5, PAD: 0,
		EOS: []int{255001}}
}

// readCohere2 reads what Cohere 2's models have beside windows.
func readCohere2(f *checkpoint.Fields, c *Config, d Config, headDim int) {
	readCohere(f, c, d, headDim)
	f.Only("position_embedding_type", "rope_gptj")
	if part := f.Number("rotary_pct", 1, 0); part != 1 {
		f.Fail(checkpoint.ErrUnsupported, "rotary_pct", "is %v", part)
	}
	readRope(f, c)
}

func readCohere(f *checkpoint.Fields, c *Config, d Config, headDim int) {
	readBiasedAttention(f, c, d, headDim)
	c.NormEps = f.Number("layer_norm_eps", 1e-5, 0)
	c.Family = &cohere{LogitScale: f.Number("logit_scale", 0.0625, 0)}
	if f.Flag("use_qk_norm", false) {
		f.Fail(checkpoint.ErrUnsupported, "use_qk_norm", "is true")
	}
}

func (y *cohere) options(c *Config) decoderOptions {
	return decoderOptions{attnNorm: "input_layernorm", parallel: true,
		newNorm: func(s *stage, module string) norm {
			return s.LayerNorm(module, c.HiddenSize, float32(c.NormEps), layers.WeightOnly)
		},
		qkv:    layers.QKVOptions{Interleaved: c.HeadDim},
		logits: layers.HeadOptions{Multiplier: float32(y.LogitScale)}}
}

// cohere is what only Cohere's models have.
type cohere struct{ LogitScale float64 }
