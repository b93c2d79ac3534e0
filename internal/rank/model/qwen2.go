package model

import "github.com/eagleray/eagleray/internal/rank/model/checkpoint"

// qwen2 is Qwen2ForCausalLM (Qwen 2 and 2.5): query, key and value projections have biases.
// Defaults: configuration_qwen2.py.
func qwen2() *family {
	return &family{modelType: "qwen2", architecture: "Qwen2ForCausalLM", defaults: qwenDefaults(),
		read: func(f *checkpoint.Fields, c *Config, d Config) {
			readAttention(f, c, d, 0)
			c.QKVBias = true
			readRope(f, c)
			readWindows(f, c, qwenWindow(f), upperLayers(f))
		},
		build: func(s *stage) (architecture, error) { return newDecoder(s, decoderOptions{}) }}
}

// qwenDefaults are those of Qwen2Config, which Qwen3Config shares.
func qwenDefaults() Config {
	return Config{VocabSize: 151936, HiddenSize: 4096, IntermediateSize: 22016, Layers: 32,
		Heads: 32, KVHeads: 32, MaxPositions: 32768, NormEps: 1e-6, Activation: "silu", BOS: -1,
		PAD: -1}
}
