package model

import (
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// hunYuan is HunYuanDenseV1ForCausalLM: Llama's layers, with heads that are normalised after they
// are turned. Defaults: configuration_hunyuan_v1_dense.py.
func hunYuan() *family {
	return &family{modelType: "hunyuan_v1_dense", architecture: "HunYuanDenseV1ForCausalLM",
		defaults: Config{VocabSize: 290943, HiddenSize: 4096, IntermediateSize: 11008, Layers: 32,
			Heads: 32, MaxPositions: 2048, NormEps: 1e-5, Activation: "silu", BOS: 1, PAD: 0,
			EOS: []int{2}},
		read: readHunYuan,
		build: func(s *stage) (architecture, error) {
			return newDecoder(s, decoderOptions{attn: normsLast})
		}}
}

// hunYuanMoE is HunYuanMoEV1ForCausalLM: the same with a mixture of experts beside one that all
// rows share. Defaults: configuration_hunyuan_v1_moe.py.
func hunYuanMoE() *family {
	fam := hunYuan()
	fam.modelType, fam.architecture = "hunyuan_v1_moe", "HunYuanMoEV1ForCausalLM"
	fam.widths = expertWidths
	fam.read = func(f *checkpoint.Fields, c *Config, d Config) {
		readHunYuan(f, c, d)
		e := &experts{Count: f.Integer("num_experts", 1, 1, 1<<16), Step: 1,
			Inner: c.IntermediateSize, Shared: c.IntermediateSize, Router: "gate.wg"}
		e.PerToken, e.Normalise = everyLayerHas(f, "moe_topk", 1), true
		e.check(f)
		everyLayerIs(f, "moe_intermediate_size", e.Inner)
		everyLayerIs(f, "num_shared_expert", 1)
		c.Family = e
	}
	fam.build = func(s *stage) (architecture, error) {
		return newDecoder(s, decoderOptions{attn: normsLast, mlp: hunYuanMixture})
	}
	return fam
}

// normsLast normalises heads after they are turned.
func normsLast(_ int, o *layers.AttentionOptions) {
	o.HeadNorms, o.TurnedFirst = true, true
	o.Norms = [2]string{"query_layernorm", "key_layernorm"}
}

func readHunYuan(f *checkpoint.Fields, c *Config, d Config) {
	readBiasedAttention(f, c, d, 0)
	readRope(f, c)
	readWindows(f, c, 0, noLayer)
	for key, want := range map[string]bool{"use_qk_norm": true, "use_rotary_pos_emb": true,
		"norm_topk_prob": true, "use_cla": false, "use_mla": false, "mlp_bias": false,
		"position_embedding_xdrope": false, "moe_drop_tokens": false} {
		if f.Flag(key, want) != want {
			f.Fail(checkpoint.ErrUnsupported, key, "is %v", !want)
		}
	}
	// What is for images, for classes, for training, and of what is switched off.
	for _, key := range []string{
		"add_classification_head", "attention_head_dim", "capacity_factor",
		"cla_share_factor", "class_num", "dense_list", "enable_lm_head_fp32",
		"group_limited_greedy", "im_end_id", "im_newline_id", "im_start_id", "kv_lora_rank",
		"mask_init_id", "max_seq_length", "moe_intermediate_size", "moe_layer_num_skipped",
		"moe_random_routing_dropped_token", "moe_topk", "n_group", "norm_type",
		"num_experts", "num_media_embeds", "num_shared_expert", "org_vocab_size", "pad_id",
		"pool_type", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim",
		"routed_scaling_factor", "text_end_id", "text_start_id", "topk_group",
		"unused_skip_list", "use_mixed_mlp_moe", "v_head_dim", "vit_config",
		"vit_mapping_type", "vit_norm_type", "vit_path", "vit_remove_prenorm", "vit_token",
		"vit_type", "vit_used_rms_norm", "xdrope_section",
	} {
		f.Has(key)
	}
}

// everyLayerHas reads a number that may be written for each layer.
func everyLayerHas(f *checkpoint.Fields, key string, def int) int {
	list := f.IDs(key, []int{def})
	for _, n := range list {
		if n != list[0] || n < 1 {
			f.Fail(checkpoint.ErrUnsupported, key, "differs from layer to layer: %s",
				f.Excerpt(key))
		}
	}
	if len(list) == 0 {
		return def
	}
	return list[0]
}

// everyLayerIs refuses a number other than one.
func everyLayerIs(f *checkpoint.Fields, key string, want int) {
	if n := everyLayerHas(f, key, want); n != want {
		f.Fail(checkpoint.ErrUnsupported, key, "is %d, not %d", n, want)
	}
}

// hunYuanMixture is the feed-forward block of a layer.
func hunYuanMixture(s *stage, _ int, prefix string) feedForward {
	e := routed(s.cfg)
	return s.Together(s.Mixture(prefix+"mlp.", s.cfg.HiddenSize, layers.MixtureOptions{
		Experts: e.Count, Inner: e.Inner, Routing: e.Routing, Router: e.Router,
		Stacked: stacked(s, prefix+"mlp.")}), s.gated(prefix+"mlp.shared_mlp.", e.Shared))
}

// hyV3 is HYV3ForCausalLM: Qwen3's attention with DeepSeek's mixture of experts. Defaults:
// configuration_hy_v3.py.
func hyV3() *family {
	return &family{modelType: "hy_v3", architecture: "HYV3ForCausalLM",
		defaults: Config{VocabSize: 120832, HiddenSize: 4096, IntermediateSize: 13312, Layers: 80,
			Heads: 64, KVHeads: 8, MaxPositions: 131072, NormEps: 1e-5, Activation: "silu", BOS: -1,
			PAD: -1},
		read: func(f *checkpoint.Fields, c *Config, d Config) {
			readBiasedAttention(f, c, d, 128)
			if f.Flag("mlp_bias", false) {
				f.Fail(checkpoint.ErrUnsupported, "mlp_bias", "is true")
			}
			for key, want := range map[string]bool{"qk_norm": true, "route_norm": true,
				"moe_router_use_sigmoid": true, "moe_router_enable_expert_bias": true} {
				if f.Flag(key, want) != want {
					f.Fail(checkpoint.ErrUnsupported, key, "is %v", !want)
				}
			}
			// Sums are always of float32; the others name what has other names, too.
			for _, key := range []string{"enable_moe_fp32_combine", "enable_lm_head_fp32",
				"enable_attention_fp32_softmax", "expert_hidden_dim", "use_grouped_mm"} {
				f.Has(key)
			}
			e := readMixture(f, c, experts{Count: 192, Routing: perToken(8), Inner: 1536,
				Shared: 1}, 1)
			e.Normalise, e.Sigmoid = true, true
			e.Factor = float32(f.Number("router_scaling_factor", 2.826, 0))
			c.Family = &glmExperts{e, true}
			readRope(f, c)
			readWindows(f, c, 0, noLayer)
		},
		build: func(s *stage) (architecture, error) {
			o := glmOptions(s.cfg)
			o.mlp = hyMixture
			return newDecoder(s, o)
		},
		widths: expertWidths}
}

// hyMixture is the feed-forward block of a layer.
func hyMixture(s *stage, layer int, prefix string) feedForward {
	c, e := s.cfg, routed(s.cfg)
	if !e.sparse(layer) {
		return s.gated(prefix+"mlp.", c.IntermediateSize)
	}
	o := layers.MixtureOptions{Experts: e.Count, Inner: e.Inner, Routing: e.Routing,
		Router: "router.gate", Correction: "expert_bias", Stacked: stacked(s, prefix+"mlp.")}
	stored, known := "mlp.shared_mlp.", "mlp.shared_experts."
	if s.Has(prefix + "mlp.gate.weight") { // as transformers computes them
		o.Router, o.Correction, stored = "gate", "e_score_correction_bias", known
	}
	return s.Together(s.Mixture(prefix+"mlp.", c.HiddenSize, o),
		s.gated(prefix+stored, e.Shared).AdaptedAs(prefix+known))
}
