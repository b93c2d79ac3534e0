package stages

import (
	"encoding/json"
	"fmt"
	"math"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/rank/model"
)

// Shape is a model of Qwen3's architecture, or of DeepSeek's, with dummy weights.
type Shape struct {
	Name                                  string
	Hidden, Inner, Layers, Heads, KVHeads int
	HeadDim, Vocabulary                   int
	Tied                                  bool
	// Experts are those of each layer, of which rows have PerToken; 0 for none, and all rows
	// Shared ones besides. Inner is one's.
	Experts, PerToken, Shared int
	// Latent is how many dimensions the keys and values of all heads have together, and Turned how
	// many more of keys positions turn; 0 of a model without latents.
	Latent, Turned int
	// Quantization is what weights are made as they are loaded, "" for what they are, Cache what
	// keys and values are stored in.
	Quantization string
	Cache        compute.DType

	context           int
	batches, prefills []int
}

// measured are the shapes that bench knows.
func measured() []Shape {
	batches, prefills := []int{1, 16, 64, 256}, []int{2048, 8192}
	return []Shape{
		{Name: "qwen3-0.6b", Hidden: 1024, Inner: 3072, Layers: 28, Heads: 16, KVHeads: 8,
			HeadDim: 128, Vocabulary: 151936, Tied: true, context: 1024, batches: batches,
			prefills: prefills},
		{Name: "qwen3-8b", Hidden: 4096, Inner: 12288, Layers: 36, Heads: 32, KVHeads: 8,
			HeadDim: 128, Vocabulary: 151936, context: 1024, batches: batches,
			prefills: prefills},
		{Name: "qwen3-8b int4", Hidden: 4096, Inner: 12288, Layers: 36, Heads: 32, KVHeads: 8,
			HeadDim: 128, Vocabulary: 151936, Quantization: "int4_g128", context: 1024,
			batches: []int{1, 16, 64}, prefills: []int{2048}},
		{Name: "qwen3-30b-a3b of 4 layers", Hidden: 2048, Inner: 768, Layers: 4, Heads: 32,
			KVHeads: 4, HeadDim: 128, Vocabulary: 151936, Experts: 128, PerToken: 8, context: 1024,
			batches: []int{1, 16, 64}, prefills: prefills},
		{Name: "qwen3-8b fp8 cache", Hidden: 4096, Inner: 12288, Layers: 36, Heads: 32, KVHeads: 8,
			HeadDim: 128, Vocabulary: 151936, Cache: compute.E4M3, context: 1024,
			batches: batches, prefills: prefills},
		{Name: "heads of 256", Hidden: 3584, Inner: 14336, Layers: 28, Heads: 16, KVHeads: 8,
			HeadDim: 256, Vocabulary: 151936, context: 1024, batches: batches,
			prefills: prefills},
		{Name: "deepseek-v2-lite of 4 layers", Hidden: 2048, Inner: 1408, Layers: 4, Heads: 16,
			HeadDim: 128, Latent: 512, Turned: 64, Vocabulary: 102400, Experts: 64, PerToken: 6,
			Shared: 2, context: 1024, batches: batches, prefills: prefills},
	}
}

// tinyShape is a shape for a machine for PTX.
func tinyShape(headDim int) Shape {
	return Shape{Name: "tiny", Hidden: 64, Inner: 96, Layers: 2, Heads: 4, KVHeads: 2,
		HeadDim: headDim, Vocabulary: 256, Tied: true, context: 72, batches: []int{3},
		prefills: []int{48}}
}

// ShapeNames are those of the shapes that bench measures on a GPU.
func ShapeNames() (names []string) {
	for _, s := range measured() {
		names = append(names, s.Name)
	}
	return names
}

// config is the shape's configuration.
func (s *Shape) config() (*model.Config, error) {
	config := map[string]any{
		"architectures": []string{"Qwen3ForCausalLM"}, "model_type": "qwen3",
		"hidden_size": s.Hidden, "intermediate_size": s.Inner, "num_hidden_layers": s.Layers,
		"num_attention_heads": s.Heads, "num_key_value_heads": s.KVHeads, "head_dim": s.HeadDim,
		"vocab_size": s.Vocabulary, "tie_word_embeddings": s.Tied, "hidden_act": "silu",
		"rms_norm_eps": 1e-6, "rope_theta": 1e6, "max_position_embeddings": 40960,
		"attention_bias": false, "torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2,
	}
	if s.Experts > 0 {
		config["num_experts_per_tok"], config["moe_intermediate_size"] = s.PerToken, s.Inner
	}
	switch {
	case s.Latent > 0:
		config["architectures"], config["model_type"] = []string{"DeepseekV2ForCausalLM"},
			"deepseek_v2"
		config["num_key_value_heads"], config["q_lora_rank"] = s.Heads, nil
		config["kv_lora_rank"], config["qk_rope_head_dim"] = s.Latent, s.Turned
		config["qk_nope_head_dim"], config["v_head_dim"] = s.HeadDim, s.HeadDim
		config["n_routed_experts"], config["n_shared_experts"] = s.Experts, s.Shared
	case s.Experts > 0:
		config["architectures"], config["model_type"] = []string{"Qwen3MoeForCausalLM"}, "qwen3_moe"
		config["num_experts"], config["norm_topk_prob"] = s.Experts, true
		config["decoder_sparse_step"], config["mlp_only_layers"] = 1, []int{}
	}
	raw, err := json.Marshal(config)
	if err != nil {
		return nil, err
	}
	c, err := model.ReadConfig(raw)
	if err != nil {
		return nil, err
	}
	return c, c.Quantise(s.Quantization)
}

// layerNumbers is how many numbers the matrices of all layers have, of so many experts;
// headNumbers those of the output head.
func (s *Shape) layerNumbers(experts float64) float64 {
	attention := s.Hidden * s.HeadDim * (2*s.Heads + 2*s.KVHeads)
	if s.Latent > 0 {
		attention = s.Hidden*(s.Heads*(2*s.HeadDim+s.Turned)+s.Latent+s.Turned) +
			s.Latent*s.Heads*2*s.HeadDim
	}
	return float64(s.Layers) * (float64(attention+s.Hidden*s.Experts) +
		(experts+float64(s.Shared))*float64(3*s.Hidden*s.Inner))
}

// had are the experts that so many rows have at all where their choices are even; one of a layer
// that has none.
func (s *Shape) had(rows float64) float64 {
	if s.Experts == 0 {
		return 1
	}
	all := float64(s.Experts)
	return all * (1 - math.Pow(1-float64(s.PerToken)/all, rows))
}

// each is how many experts a row has.
func (s *Shape) each() float64 { return float64(max(s.PerToken, 1)) }

// all is how many experts a layer has.
func (s *Shape) all() float64 { return float64(max(s.Experts, 1)) }

// layerBytes are those of the matrices of all layers that so many rows read: of numbers of 16 bits,
// or of codes of 4 with a scale for each 128.
func (s *Shape) layerBytes(rows float64) float64 {
	if s.Quantization != "" {
		return s.layerNumbers(s.had(rows)) * (4.0/8 + 4.0/128)
	}
	return 2 * s.layerNumbers(s.had(rows))
}

func (s *Shape) headNumbers() float64 { return float64(s.Hidden) * float64(s.Vocabulary) }

// layer is what the cache has of each layer.
func (s *Shape) layer() compute.CacheLayer {
	if s.Latent > 0 {
		return compute.CacheLayer{Kind: compute.Latent, Heads: 1, Dim: s.Latent + s.Turned,
			Values: s.Latent}
	}
	return compute.CacheLayer{Heads: s.KVHeads, Dim: s.HeadDim}
}

// positionBytes is what the cache has of a position.
func (s *Shape) positionBytes() float64 {
	return float64(s.Layers * s.layer().Bytes(1, s.Cache))
}

// Work is what a step cannot do without: each weight is read once, and the keys and values of each
// sequence, and each product of numbers is two operations.
type Work struct {
	// Weights and Cache are bytes; Linear are operations of products by weights, Attention those of
	// attention.
	Weights, Cache, Linear, Attention float64
}

// decoding is the work of a step of so many sequences, a row each, of so many positions.
func (s *Shape) decoding(sequences, positions int) Work {
	n, l := float64(sequences), s.layer()
	numbers := s.layerNumbers(s.each()) + s.headNumbers()
	return Work{Weights: s.layerBytes(n) + 2*s.headNumbers(),
		Cache:     n * float64(positions) * s.positionBytes(),
		Linear:    2 * n * numbers,
		Attention: 2 * n * float64(s.Layers*s.Heads*(l.Dim+l.ValueDim())) * float64(positions)}
}

// prefilling is the work of a prompt of so many tokens, with the logits of the last one: no latent
// is in the cache before, so that attention may be of the heads' own dimensions.
func (s *Shape) prefilling(n int) Work {
	rows := float64(n)
	return Work{Weights: s.layerBytes(rows) + 2*s.headNumbers(),
		Cache:     rows * s.positionBytes(),
		Linear:    2*rows*s.layerNumbers(s.each()) + 2*s.headNumbers(),
		Attention: rows * rows * float64(s.Layers*s.Heads*(2*s.HeadDim+s.Turned))}
}

// Bytes is what the step reads at least.
func (w Work) Bytes() float64 { return w.Weights + w.Cache }

// Milliseconds is how long the step takes at least with a memory of so many bytes a second and, if
// that is known, so many operations a second: weights, and keys and values, are read while they are
// multiplied by.
func (w Work) Milliseconds(bandwidth, operations float64) float64 {
	weights, cache := w.Weights/bandwidth, w.Cache/bandwidth
	if operations > 0 {
		weights = max(weights, w.Linear/operations)
		cache = max(cache, w.Attention/operations)
	}
	return 1000 * (weights + cache)
}

// decodeName and prefillName are how figures are called, ours and peers'.
func (s *Shape) decodeName(sequences int) string {
	return fmt.Sprintf("%s decode %d at %d", s.Name, sequences, s.context)
}

func (s *Shape) prefillName(n int) string { return fmt.Sprintf("%s prefill %d", s.Name, n) }
