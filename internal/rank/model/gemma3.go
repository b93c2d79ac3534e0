package model

import (
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// gemma3 is Gemma3ForCausalLM, the text model: Gemma 2's layers with normalised heads in the place
// of capped scores, a window in five layers of six, and another rotary base in those. Defaults:
// configuration_gemma3.py.
func gemma3() *family {
	return &family{modelType: "gemma3_text", architecture: "Gemma3ForCausalLM",
		activationKey: "hidden_activation",
		defaults: Config{VocabSize: 262208, HiddenSize: 2304, IntermediateSize: 9216, Layers: 26,
			Heads: 8, KVHeads: 4, MaxPositions: 131072, NormEps: 1e-6,
			Activation: "gelu_pytorch_tanh", TieEmbeddings: true, BOS: 2, PAD: 0, EOS: []int{1},
			RopeTheta: 1e6},
		read: readGemma3, build: newGemma3}
}

func readGemma3(f *checkpoint.Fields, c *Config, d Config) {
	readAttention(f, c, d, 256)
	refuseBias(f)
	c.Family = readGemma(f, 0, 0)
	c.LocalTheta = f.Number("rope_local_base_freq", 10000, 1)
	if !readRopeOfLayers(f, c) {
		readRope(f, c)
	}
	pattern := f.Integer("sliding_window_pattern", 6, 1, checkpoint.MaxDim)
	readWindows(f, c, plainWindow(f, 4096), func(i int) bool { return (i+1)%pattern != 0 })
}

func newGemma3(s *stage) (architecture, error) {
	c, opt := s.cfg, gemmaOptions(s)
	scores := opt.attn
	opt.attn = func(layer int, o *layers.AttentionOptions) {
		scores(layer, o)
		o.HeadNorms, o.Shifted = true, true
	}
	opt.rotaries = globalAndLocal
	opt.rotaryOf = func(layer int) int { return localLayer(c, layer) }
	return newDecoder(s, opt)
}

// globalAndLocal are the rotary embedding that Rope describes, and the one of layers with a window:
// not scaled, with a base of its own.
func globalAndLocal(s *stage) ([]*layers.Rotary, error) {
	return rotariesOf(s, s.cfg, localRope(s.cfg))
}

// localRope is a configuration whose rotary embedding is that of layers with a window.
func localRope(c *Config) *Config {
	local := *c
	local.RopeTheta, local.Rope = local.LocalTheta, Rope{Type: "default"}
	return &local
}

// localLayer is 1 for a layer with a window, else 0.
func localLayer(c *Config, layer int) int {
	if c.Windows[layer] > 0 {
		return 1
	}
	return 0
}
