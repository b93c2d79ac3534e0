package model

import (
	"cmp"

	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// mistral is MistralForCausalLM: Llama's layers without biases, each attending to a sliding window
// when the config has one. Defaults: configuration_mistral.py.
func mistral() *family {
	return &family{modelType: "mistral", architecture: "MistralForCausalLM",
		defaults: Config{VocabSize: 32000, HiddenSize: 4096, IntermediateSize: 14336, Layers: 32,
			Heads: 32, KVHeads: 8, MaxPositions: 131072, NormEps: 1e-6, Activation: "silu", BOS: 1,
			PAD: -1, EOS: []int{2}},
		read: func(f *checkpoint.Fields, c *Config, d Config) {
			readAttention(f, c, d, 0)
			readRope(f, c)
			readWindows(f, c, plainWindow(f, 4096), everyLayer)
		},
		build: func(s *stage) (architecture, error) { return newDecoder(s, decoderOptions{}) }}
}

// ministral3 is Ministral3ForCausalLM: Mistral's layers, with queries that grow with their position
// beyond the pre-training length. Defaults: configuration_ministral3.py.
func ministral3() *family {
	return &family{modelType: "ministral3", architecture: "Ministral3ForCausalLM",
		defaults: Config{VocabSize: 131072, HiddenSize: 4096, IntermediateSize: 14336, Layers: 34,
			Heads: 32, KVHeads: 8, MaxPositions: 262144, NormEps: 1e-5, Activation: "silu", BOS: 1,
			PAD: 11, EOS: []int{2}},
		read: func(f *checkpoint.Fields, c *Config, d Config) {
			readAttention(f, c, d, 128)
			readRope(f, c)
			readTemperature(f, c)
			readWindows(f, c, plainWindow(f, 0), everyLayer)
		},
		build: func(s *stage) (architecture, error) { return newDecoder(s, decoderOptions{}) }}
}

// mistral4 is Mistral4ForCausalLM: DeepSeek V3's attention, with queries that grow with their
// position as Ministral 3's, and experts chosen by the softmax of their scores. Defaults:
// configuration_mistral4.py.
func mistral4() *family {
	return &family{modelType: "mistral4", architecture: "Mistral4ForCausalLM",
		defaults: Config{VocabSize: 131072, HiddenSize: 4096, IntermediateSize: 12288, Layers: 36,
			Heads: 32, MaxPositions: 1048576, NormEps: 1e-6, Activation: "silu", BOS: 1, PAD: 11,
			EOS: []int{2}},
		read: func(f *checkpoint.Fields, c *Config, d Config) {
			e := readMixture(f, c, experts{Count: 128, Routing: perToken(4), Inner: 2048,
				Shared: 1}, 0)
			readGroups(f, e, 2, 1)
			e.Normalise = f.Flag("norm_topk_prob", true)
			readLatent(f, c, d, layers.LatentOptions{Query: 1024, Latent: 256, Plain: 64,
				Turned: 64, Value: 128, Interleaved: f.Flag("rope_interleave", true)}, e)
			readTemperature(f, c)
		},
		build: buildDeepSeek, widths: expertWidths, cache: latentCache}
}

// readTemperature reads what queries beyond the pre-training length are multiplied by.
func readTemperature(f *checkpoint.Fields, c *Config) {
	r := f.Object("rope_scaling")
	if r == nil {
		r = f.Object("rope_parameters")
	}
	if r == nil {
		f.Fail(checkpoint.ErrMalformed, "rope_parameters", "is missing")
		return
	}
	c.Temperature = Temperature{Rise: r.Number("llama_4_scaling_beta", 0, -1),
		Step: cmp.Or(c.Rope.OriginalMaxPositions, c.MaxPositions)}
	f.Adopt(r)
}
