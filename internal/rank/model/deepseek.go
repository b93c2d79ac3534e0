package model

import (
	"cmp"
	"math"
	"strings"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// deepSeek is a mixture of experts beside latent attention.
type deepSeek struct {
	*experts
	latent layers.LatentOptions
	scales *multipliers // MiniCPM's
}

// deepSeekV3 is DeepseekV3ForCausalLM (V3, R1, V3.1): latent attention, and experts chosen in
// groups by logistic scores with a correction. Defaults: configuration_deepseek_v3.py.
func deepSeekV3() *family {
	return &family{modelType: "deepseek_v3", architecture: "DeepseekV3ForCausalLM",
		defaults: Config{VocabSize: 129280, HiddenSize: 7168, IntermediateSize: 18432, Layers: 61,
			Heads: 128, MaxPositions: 4096, NormEps: 1e-6, Activation: "silu", BOS: 0,
			PAD: -1, EOS: []int{1}},
		read: readV3, build: buildDeepSeek, widths: expertWidths, cache: latentCache,
		predict: predictDeepSeek}
}

func readV3(f *checkpoint.Fields, c *Config, d Config) {
	readDeepSeekV3(f, c, d, layers.LatentOptions{Query: 1536, Latent: 512, Plain: 128, Turned: 64,
		Value: 128}, experts{Count: 256, Inner: 2048, Routing: compute.Routing{PerToken: 8,
		Groups: 8, TopGroups: 4, Factor: 2.5}}, 3)
}

func predictDeepSeek(s *stage) (architecture, error) {
	return newPredictor(s, deepSeekOptions(s.cfg), nextModules(s))
}

// glm4MoELite is Glm4MoeLiteForCausalLM (GLM-4.7-Flash): DeepSeek V3's layers in other sizes.
// Defaults: configuration_glm4_moe_lite.py.
func glm4MoELite() *family {
	fam := deepSeekV3()
	fam.modelType, fam.architecture = "glm4_moe_lite", "Glm4MoeLiteForCausalLM"
	fam.defaults = Config{VocabSize: 154880, HiddenSize: 2048, IntermediateSize: 10240, Layers: 47,
		Heads: 20, MaxPositions: 202752, NormEps: 1e-5, Activation: "silu", BOS: 0, PAD: -1,
		EOS: []int{1}}
	fam.read = func(f *checkpoint.Fields, c *Config, d Config) {
		readDeepSeekV3(f, c, d, layers.LatentOptions{Query: 768, Latent: 512, Plain: 192,
			Turned: 64, Value: 256}, experts{Count: 64, Inner: 1536,
			Routing: compute.Routing{PerToken: 4, Factor: 1.8}}, 1)
	}
	return fam
}

// deepSeekV32 is DeepseekV32ForCausalLM (V3.2): as V3, whose attention selects positions by an
// indexer, all of contexts up to index_topk: as far as these it is computed. Defaults:
// configuration_deepseek_v32.py.
func deepSeekV32() *family {
	fam := deepSeekV3()
	fam.modelType, fam.architecture = "deepseek_v32", "DeepseekV32ForCausalLM"
	fam.defaults.MaxPositions = 163840
	fam.read = func(f *checkpoint.Fields, c *Config, d Config) {
		readIndexer(f, c)
		readV3(f, c, d)
	}
	return fam
}

// glmMoEDSA is GlmMoeDsaForCausalLM (GLM-5): DeepSeek V3.2's layers in other sizes, of which some
// attend to what one before has selected. Defaults: configuration_glm_moe_dsa.py.
func glmMoEDSA() *family {
	fam := deepSeekV3()
	fam.modelType, fam.architecture = "glm_moe_dsa", "GlmMoeDsaForCausalLM"
	fam.defaults = Config{VocabSize: 154880, HiddenSize: 6144, IntermediateSize: 12288, Layers: 78,
		Heads: 64, MaxPositions: 202752, NormEps: 1e-5, Activation: "silu", BOS: 0, PAD: -1,
		EOS: []int{1}}
	fam.read = func(f *checkpoint.Fields, c *Config, d Config) {
		readIndexer(f, c)
		readDeepSeekV3(f, c, d, layers.LatentOptions{Query: 2048, Latent: 512, Plain: 192,
			Turned: 64, Value: 256}, experts{Count: 256, Inner: 2048,
			Routing: compute.Routing{PerToken: 8, Factor: 2.5}}, 3)
	}
	return fam
}

// readIndexer reads how many positions attention selects. Nothing else of the indexer is of use
// here, and its weights are not read.
func readIndexer(f *checkpoint.Fields, c *Config) {
	c.Selected = f.Integer("index_topk", 2048, 1, checkpoint.MaxDim)
	for _, key := range f.Keys() {
		if strings.HasPrefix(key, "index") {
			f.Has(key)
		}
	}
}

// readDeepSeekV3 reads V3's attention and experts, behind some layers without; o, e and dense have
// their defaults.
func readDeepSeekV3(f *checkpoint.Fields, c *Config, d Config, o layers.LatentOptions, e experts,
	dense int) {
	o.Interleaved = f.Flag("rope_interleave", true)
	readLatent(f, c, d, o, readDeepSeekExperts(f, c, e, dense))
	f.Only("scoring_func", "sigmoid")
	f.Only("topk_method", "noaux_tc")
}

// deepSeekV2 is DeepseekV2ForCausalLM (V2, V2-Lite, Coder-V2): as V3, with experts chosen by the
// softmax of their scores. Defaults: configuration_deepseek_v2.py.
func deepSeekV2() *family {
	return &family{modelType: "deepseek_v2", architecture: "DeepseekV2ForCausalLM",
		defaults: Config{VocabSize: 32000, HiddenSize: 4096, IntermediateSize: 11008, Layers: 32,
			Heads: 32, MaxPositions: 2048, NormEps: 1e-6, Activation: "silu", BOS: 1,
			PAD: -1, EOS: []int{2}},
		read: func(f *checkpoint.Fields, c *Config, d Config) {
			e := readMixture(f, c, experts{Count: 64, Routing: perToken(8), Inner: 1407, Shared: 2},
				0)
			readGroups(f, e, 1, 1)
			e.Normalise = f.Flag("norm_topk_prob", false)
			if e.Normalise && e.Factor != 1 {
				f.Fail(checkpoint.ErrUnsupported, "norm_topk_prob",
					"is true, with a routed_scaling_factor of %v", e.Factor)
			}
			f.Only("scoring_func", "softmax")
			if f.Text("topk_method", "greedy") == "greedy" {
				e.Groups, e.TopGroups = 0, 0
			} else {
				f.Only("topk_method", "group_limited_greedy")
			}
			readLatent(f, c, d, layers.LatentOptions{Query: 1536, Latent: 512, Plain: 128,
				Turned: 64,
				Value:  128, Interleaved: true}, e)
		},
		build: buildDeepSeek, widths: expertWidths, cache: latentCache}
}

func buildDeepSeek(s *stage) (architecture, error) {
	return newDecoder(s, deepSeekOptions(s.cfg))
}

func deepSeekOptions(c *Config) decoderOptions {
	d := c.Family.(*deepSeek)
	return decoderOptions{mlp: deepSeekMixture, mixer: func(s *stage, layer int,
		prefix string, o layers.AttentionOptions) mixer {
		latent, prefix := d.latent, prefix+"self_attn."
		latent.Rotary, latent.Temperature = o.Rotary, o.Temperature
		return mixer{attention: s.LatentAttention(prefix, s.cached(layer), s.cfg.HiddenSize,
			latent), output: prefix + "o_proj", width: s.cfg.Heads * latent.Value,
			bias: s.cfg.OutBias}
	}}
}

// latentCache is what a layer keeps.
func latentCache(c *Config, _ int) []compute.CacheLayer {
	return []compute.CacheLayer{c.Family.(*deepSeek).latent.CacheLayer()}
}

// readLatent reads latent attention; o has its defaults.
func readLatent(f *checkpoint.Fields, c *Config, d Config, o layers.LatentOptions, e *experts) {
	c.IntermediateSize = f.Integer("intermediate_size", d.IntermediateSize, 1, checkpoint.MaxDim)
	c.NormEps = f.Number("rms_norm_eps", d.NormEps, 0)
	o.Heads, o.Eps = c.Heads, 1e-6 // whatever rms_norm_eps is: the class's default
	if f.Has("q_lora_rank") {
		o.Query = f.Nullable("q_lora_rank", 0, 1, checkpoint.MaxDim)
	}
	o.Latent = f.Integer("kv_lora_rank", o.Latent, 1, checkpoint.MaxDim)
	o.Plain = f.Integer("qk_nope_head_dim", o.Plain, 1, checkpoint.MaxDim)
	o.Turned = f.Integer("qk_rope_head_dim", o.Turned, 1, checkpoint.MaxDim)
	o.Value = f.Integer("v_head_dim", o.Value, 1, checkpoint.MaxDim)
	o.Bias = f.Flag("attention_bias", false)
	c.OutBias = o.Bias
	c.KVHeads, c.HeadDim, c.RotaryDim = c.Heads, o.Plain+o.Turned, o.Turned
	readRope(f, c)
	if c.RotaryDim != o.Turned && c.RotaryDim != c.HeadDim {
		f.Fail(checkpoint.ErrUnsupported, "partial_rotary_factor", "is not 1")
	}
	c.RotaryDim = o.Turned // all of what is turned
	readWindows(f, c, 0, noLayer)
	if o.Turned%2 != 0 || o.Latent%2 != 0 {
		f.Fail(checkpoint.ErrMalformed, "qk_rope_head_dim",
			"is %d with a kv_lora_rank of %d: both must be even", o.Turned, o.Latent)
	}
	// Longer contexts sharpen the softmax: yarn's mscale, squared.
	scale := 1 / math.Sqrt(float64(o.Plain+o.Turned))
	if r := &c.Rope; r.Type == "yarn" && r.MScaleAllDim != 0 {
		m := r.mscale(r.MScaleAllDim)
		scale *= m * m
	}
	o.Scale = float32(scale)
	c.Family = &deepSeek{experts: e, latent: o}
}

// readMixture reads a mixture as DeepSeek has it, behind layers that have none; d has the defaults,
// Shared being a number of experts.
func readMixture(f *checkpoint.Fields, c *Config, d experts, dense int) *experts {
	e := &experts{Count: f.Integer(firstOf(f, "n_routed_experts", "num_experts",
		"num_local_experts"), d.Count, 1, 1<<16),
		Inner: f.Integer("moe_intermediate_size", d.Inner, 1, checkpoint.MaxDim), Step: 1}
	e.PerToken = f.Integer("num_experts_per_tok", d.PerToken, 1, 1<<16)
	e.Shared = e.Inner * f.Nullable(firstOf(f, "n_shared_experts", "num_shared_experts"), d.Shared,
		0, 1<<10)
	if f.Integer("moe_layer_freq", 1, 1, 1<<16) != 1 {
		f.Fail(checkpoint.ErrUnsupported, "moe_layer_freq", "is %s", f.Excerpt("moe_layer_freq"))
	}
	dense = f.Integer("first_k_dense_replace", dense, 0, 1<<16)
	types := textOfLayers(f, c, "mlp_layer_types")
	for i := range c.Layers {
		if f.Err() == nil && (types == nil && i < dense || types != nil && types[i] == "dense") {
			e.Dense = append(e.Dense, i)
		}
	}
	e.check(f)
	return e
}

// firstOf is the first of some keys that is there, else the first.
func firstOf(f *checkpoint.Fields, keys ...string) string {
	for _, key := range keys {
		if f.Has(key) {
			return key
		}
	}
	return keys[0]
}

// readGroups reads the groups in which experts are chosen, by so many of the best of each.
func readGroups(f *checkpoint.Fields, e *experts, best int, factor float64) {
	r := &e.Routing
	r.Groups, r.TopGroups = f.Nullable("n_group", max(r.Groups, 1), 1, 1<<16),
		f.Nullable("topk_group", max(r.TopGroups, 1), 1, 1<<16)
	r.Best, r.Factor = best, float32(f.Number("routed_scaling_factor", factor, 0))
	switch {
	case f.Err() != nil:
	case e.Count%r.Groups != 0 || e.Count/r.Groups < best && r.Groups > 1:
		f.Fail(checkpoint.ErrMalformed, "n_group", "is %d for %d experts", r.Groups, e.Count)
	case r.TopGroups > r.Groups || e.PerToken > e.Count/r.Groups*r.TopGroups:
		f.Fail(checkpoint.ErrMalformed, "topk_group", "is %d of %d groups, for %d experts of a row",
			r.TopGroups, r.Groups, e.PerToken)
	}
}

// readDeepSeekExperts reads a mixture as DeepSeek V3 has it: logistic scores with a correction, in
// groups, behind some layers that have none.
func readDeepSeekExperts(f *checkpoint.Fields, c *Config, d experts, dense int) *experts {
	d.Shared = 1
	e := readMixture(f, c, d, dense)
	e.Groups, e.TopGroups = d.Groups, d.TopGroups
	readGroups(f, e, 2, cmp.Or(float64(d.Factor), 1))
	e.Normalise, e.Sigmoid = f.Flag("norm_topk_prob", true), true
	return e
}

// deepSeekMixture is the feed-forward block of a layer.
func deepSeekMixture(s *stage, layer int, prefix string) feedForward {
	c, e := s.cfg, routed(s.cfg)
	if !e.sparse(layer) {
		return s.gated(prefix+"mlp.", c.IntermediateSize)
	}
	o := layers.MixtureOptions{Experts: e.Count, Inner: e.Inner, Routing: e.Routing,
		Router: e.Router, Correction: e.Correction, Stacked: stacked(s, prefix+"mlp.")}
	if o.Sigmoid && o.Correction == "" {
		o.Correction = "gate.e_score_correction_bias"
		if own := "e_score_correction_bias"; s.Has(prefix + "mlp." + own) { // K-EXAONE
			o.Correction = own
		}
	}
	routed := s.Mixture(prefix+"mlp.", c.HiddenSize, o)
	if e.Shared == 0 {
		return routed
	}
	return s.Together(routed, s.gated(prefix+"mlp.shared_experts.", e.Shared))
}
