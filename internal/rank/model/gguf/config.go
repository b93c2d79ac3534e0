package gguf

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

// dialect is an architecture of llama.cpp: what transformers has in its place. The rules are those
// of llama.cpp's converter (conversion/ and convert_hf_to_gguf.py), undone.
type dialect struct {
	// model and class are model_type and the class of config.json.
	model, class string
	// modules are those whose names differ from the usual ones: of a layer, which is under layers,
	// "" is model.layers, and outside.
	modules map[string]string
	layers  string
	// experts is what the modules of experts are under, "" is mlp.experts; names are those of an
	// expert's, nil is gate_proj, up_proj and down_proj.
	experts string
	names   map[string]string
	// shifted says that the converter adds 1 to the weights of norms, but for that of a recurrence.
	shifted bool
	// gated says that queries have gates beside them.
	gated bool
	// layerNorm says that norms are LayerNorm, whose epsilon has this key in config.json.
	layerNorm string
	// fields sets what the architecture has beside the usual.
	fields func(c *config)
}

// dialects are the architectures by their names in general.architecture.
func dialects() map[string]*dialect {
	gemmaNorms := map[string]string{"post_attention_norm": "post_attention_layernorm",
		"ffn_norm": "pre_feedforward_layernorm", "post_ffw_norm": "post_feedforward_layernorm"}
	postNorms := map[string]string{"post_attention_norm": "post_attention_layernorm",
		"post_ffw_norm": "post_feedforward_layernorm"}
	sharedExperts := map[string]string{"ffn_gate_shexp": "mlp.shared_experts.gate_proj",
		"ffn_up_shexp":   "mlp.shared_experts.up_proj",
		"ffn_down_shexp": "mlp.shared_experts.down_proj"}
	convolutions := map[string]string{"attn_norm": "operator_norm", "ffn_norm": "ffn_norm",
		"shortconv.conv": "conv.conv", "shortconv.in_proj": "conv.in_proj",
		"shortconv.out_proj": "conv.out_proj", "attn_q_norm": "self_attn.q_layernorm",
		"attn_k_norm": "self_attn.k_layernorm", "attn_output": "self_attn.out_proj",
		"ffn_gate": "feed_forward.w1", "ffn_up": "feed_forward.w3",
		"ffn_down": "feed_forward.w2", "ffn_gate_inp": "feed_forward.gate",
		"exp_probs_b": "feed_forward.expert_bias"}
	recurrent := map[string]string{"post_attention_norm": "post_attention_layernorm",
		"attn_qkv": "linear_attn.in_proj_qkv", "attn_gate": "linear_attn.in_proj_z",
		"ssm_in": "linear_attn.in_proj_qkvz", "ssm_ba": "linear_attn.in_proj_ba",
		"ssm_beta": "linear_attn.in_proj_b", "ssm_alpha": "linear_attn.in_proj_a",
		"ssm_conv1d": "linear_attn.conv1d", "ssm_norm": "linear_attn.norm",
		"ssm_out": "linear_attn.out_proj"}
	all := map[string]*dialect{
		"lfm2": {model: "lfm2", class: "Lfm2ForCausalLM", modules: convolutions,
			fields: (*config).convolutions},
		"lfm2moe": {model: "lfm2_moe", class: "Lfm2MoeForCausalLM", modules: convolutions,
			experts: "feed_forward.experts.", names: mixtralNames, fields: func(c *config) {
				c.convolutions()
				c.qwenExperts(true)
				c.set("num_dense_layers", c.orDefault("leading_dense_block_count", 0))
				c.copy("routed_scaling_factor", "expert_weights_scale")
			}},
		"qwen3next": {model: "qwen3_next", class: "Qwen3NextForCausalLM", modules: recurrent,
			shifted: true, gated: true, fields: func(c *config) {
				c.recurrence()
				c.qwenExperts(true)
				c.sharedWidth()
			}},
		"qwen35": {model: "qwen3_5_text", class: "Qwen3_5ForCausalLM", modules: recurrent,
			shifted: true, gated: true, fields: (*config).groupedRecurrence},
		"qwen35moe": {model: "qwen3_5_moe_text", class: "Qwen3_5MoeForCausalLM",
			modules: recurrent, shifted: true, gated: true, fields: func(c *config) {
				c.groupedRecurrence()
				c.qwenExperts(true)
				c.sharedWidth()
			}},
		"chatglm": {model: "glm", class: "GlmForCausalLM",
			modules: map[string]string{"ffn_up": "mlp.gate_up_proj"}, fields: func(c *config) {
				c.biases()
				c.partial()
			}},
		"glm4moe": {model: "glm4_moe", class: "Glm4MoeForCausalLM",
			modules: with(sharedExperts, "post_attention_norm", "post_attention_layernorm"),
			fields: func(c *config) {
				c.biases()
				c.partial()
				c.deepSeekExperts()
				c.set("use_qk_norm", c.has("blk.0.attn_q_norm.weight"))
			}},
		"minimax-m2": {model: "minimax_m2", class: "MiniMaxM2ForCausalLM",
			modules: map[string]string{"ffn_gate_inp": "block_sparse_moe.gate",
				"exp_probs_b": "block_sparse_moe.e_score_correction_bias"},
			experts: "block_sparse_moe.experts.", names: mixtralNames, fields: func(c *config) {
				c.experts("num_local_experts")
				c.set("intermediate_size",
					c.expertWidth("expert_feed_forward_length", "ffn_up_exps", 1))
				c.set("rotary_dim", c.required("rope.dimension_count"))
			}},
		"llama": {model: "llama", class: "LlamaForCausalLM", fields: llamaFields},
		"qwen2": {model: "qwen2", class: "Qwen2ForCausalLM", fields: func(*config) {}},
		"qwen3": {model: "qwen3", class: "Qwen3ForCausalLM", fields: (*config).biases},
		"qwen2moe": {model: "qwen2_moe", class: "Qwen2MoeForCausalLM", fields: func(c *config) {
			c.qwenExperts(false)
			c.sharedWidth()
		}},
		"qwen3moe": {model: "qwen3_moe", class: "Qwen3MoeForCausalLM", fields: func(c *config) {
			c.biases()
			c.qwenExperts(true)
		}},
		"gemma": {model: "gemma", class: "GemmaForCausalLM", shifted: true,
			fields: func(*config) {}},
		"gemma2": {model: "gemma2", class: "Gemma2ForCausalLM", modules: gemmaNorms, shifted: true,
			fields: func(c *config) {
				c.copy("attn_logit_softcapping", "attn_logit_softcapping")
				c.copy("final_logit_softcapping", "final_logit_softcapping")
				c.copy("sliding_window", "attention.sliding_window")
				c.gemmaScale(46)
			}},
		"gemma3": {model: "gemma3_text", class: "Gemma3ForCausalLM", modules: gemmaNorms,
			shifted: true, fields: func(c *config) {
				c.set("sliding_window", nil)
				c.copy("sliding_window", "attention.sliding_window")
				c.copy("rope_local_base_freq", "rope.freq_base_swa")
				c.copy("final_logit_softcapping", "final_logit_softcapping")
				c.gemmaScale(62)
			}},
		"phi3": {model: "phi3", class: "Phi3ForCausalLM",
			modules: map[string]string{"ffn_up": "mlp.gate_up_proj"},
			fields: func(c *config) {
				c.set("sliding_window", nil)
				if n, ok := c.integer("attention.sliding_window"); ok && n > 0 {
					c.set("sliding_window", n)
				}
				c.partial()
			}},
		"granite": {model: "granite", class: "GraniteForCausalLM", fields: graniteFields},
		"olmo2": {model: "olmo2", class: "Olmo2ForCausalLM", modules: postNorms,
			fields: olmoFields},
		"olmoe": {model: "olmoe", class: "OlmoeForCausalLM",
			fields: func(c *config) { c.qwenExperts(false) }},
		"seed_oss": {model: "seed_oss", class: "SeedOssForCausalLM", modules: map[string]string{
			"post_attention_norm": "post_attention_layernorm"}, fields: func(c *config) {
			c.biases()
			c.set("attention_out_bias", c.has("blk.0.attn_output.bias"))
			c.set("mlp_bias", c.has("blk.0.ffn_gate.bias"))
		}},
		"exaone4": {model: "exaone4", class: "Exaone4ForCausalLM", modules: postNorms,
			fields: func(c *config) {
				c.set("sliding_window", nil)
				if n, ok := c.integer("attention.sliding_window"); ok && n > 0 {
					c.set("sliding_window", n)
					c.layerTypes()
				}
			}},
		"dots1": {model: "dots1", class: "Dots1ForCausalLM", modules: sharedExperts,
			fields: func(c *config) {
				c.set("sliding_window", nil)
				c.deepSeekExperts()
			}},
		"ernie4_5": {model: "ernie4_5", class: "Ernie4_5ForCausalLM", fields: func(c *config) {
			c.set("use_bias", c.has("blk.0.attn_q.bias"))
		}},
		"mistral3": {model: "mistral", class: "MistralForCausalLM", fields: func(c *config) {
			llamaFields(c)
			c.set("sliding_window", nil)
			r, ok := c.fields["rope_scaling"].(map[string]any)
			if _, scaled := c.value("attention.temperature_scale"); !scaled || !ok {
				return
			}
			c.set("architectures", []string{"Ministral3ForCausalLM"})
			c.set("model_type", "ministral3")
			for field, key := range map[string]string{
				"llama_4_scaling_beta": "attention.temperature_scale",
				"mscale_all_dim":       "rope.scaling.yarn_log_multiplier"} {
				if v, ok := c.value(key); ok {
					r[field], _ = number(v)
				}
			}
			r["mscale"] = 1
		}},
		"command-r": {model: "cohere", class: "CohereForCausalLM", layerNorm: "layer_norm_eps",
			fields: func(c *config) { c.copy("logit_scale", "logit_scale") }},
		"cohere2": {model: "cohere2", class: "Cohere2ForCausalLM", layerNorm: "layer_norm_eps",
			fields: func(c *config) {
				c.copy("logit_scale", "logit_scale")
				c.copy("sliding_window", "attention.sliding_window")
			}},
		"glm4": {model: "glm4", class: "Glm4ForCausalLM", modules: map[string]string{
			"post_attention_norm": "post_self_attn_layernorm",
			"post_ffw_norm":       "post_mlp_layernorm", "ffn_up": "mlp.gate_up_proj"},
			fields: func(c *config) {
				c.biases()
				c.partial()
			}},
		"starcoder2": {model: "starcoder2", class: "Starcoder2ForCausalLM",
			layerNorm: "norm_epsilon", modules: map[string]string{"ffn_up": "mlp.c_fc",
				"ffn_down": "mlp.c_proj"}, fields: func(c *config) {
				c.set("use_bias", c.has("blk.0.attn_q.bias"))
			}},
		"granitemoe": {model: "granitemoe", class: "GraniteMoeForCausalLM",
			modules: map[string]string{"ffn_gate_inp": "block_sparse_moe.router.layer",
				"ffn_gate_shexp": "shared_mlp.gate_proj", "ffn_up_shexp": "shared_mlp.up_proj",
				"ffn_down_shexp": "shared_mlp.output_linear"},
			experts: "block_sparse_moe.experts.", fields: graniteExperts},
		"deepseek2": {model: "deepseek_v2", class: "DeepseekV2ForCausalLM",
			modules: with(sharedExperts, "attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa",
				"attn_kv_a_norm", "self_attn.kv_a_layernorm", "attn_kv_b", "self_attn.kv_b_proj",
				"attn_q_a", "self_attn.q_a_proj", "attn_q_a_norm", "self_attn.q_a_layernorm",
				"attn_q_b", "self_attn.q_b_proj"), fields: deepSeekFields},
		"smollm3": {model: "smollm3", class: "SmolLM3ForCausalLM", fields: llamaFields},
		"gpt-oss": {model: "gpt_oss", class: "GptOssForCausalLM", modules: map[string]string{
			"post_attention_norm": "post_attention_layernorm", "ffn_gate_inp": "mlp.router"},
			fields: func(c *config) {
				c.copy("sliding_window", "attention.sliding_window")
				c.experts("num_local_experts")
				c.set("intermediate_size",
					c.expertWidth("expert_feed_forward_length", "ffn_up_exps", 1))
				// llama.cpp's YaRN has its correction range in parts of dimensions for this
				// architecture alone (src/models/openai-moe.cpp, llama_hparams).
				if r, ok := c.fields["rope_scaling"].(map[string]any); ok {
					r["truncate"] = false
				}
			}},
	}
	maps.Copy(all, plainDialects())
	// Qwen's models that see: their encoders are in files of their own.
	for sees, alone := range map[string]string{"qwen2vl": "qwen2", "qwen3vl": "qwen3",
		"qwen3vlmoe": "qwen3moe"} {
		all[sees] = all[alone]
	}
	return all
}

// with is modules with more of them: each name behind llama.cpp's.
func with(modules map[string]string, more ...string) map[string]string {
	all := maps.Clone(modules)
	for i := 0; i < len(more); i += 2 {
		all[more[i]] = more[i+1]
	}
	return all
}

// config is config.json as it is made.
type config struct {
	*File
	arch   string
	fields map[string]any
	err    error
}

// ConfigJSON is what config.json would be in a folder of transformers. An error about metadata that
// contradicts the tensors names both.
func (f *File) ConfigJSON() ([]byte, error) {
	arch, d, err := f.dialect()
	if err != nil {
		return nil, err
	}
	c := &config{File: f, arch: arch, fields: map[string]any{}}
	c.usual(d)
	if c.err == nil {
		d.fields(c)
	}
	if c.err != nil {
		return nil, c.err
	}
	return json.Marshal(c.fields)
}

// dialect is that of the file's architecture.
func (f *File) dialect() (string, *dialect, error) {
	v, ok := f.meta["general.architecture"]
	arch, text := v.Text()
	if !ok || !text {
		return "", nil, fmt.Errorf("general.architecture is missing, or no text")
	}
	if kind, ok := f.text("general.type"); ok && kind != "model" {
		return "", nil, fmt.Errorf("%w: general.type is %s: the file is no model by itself",
			ErrUnsupported, short(kind))
	}
	all := dialects()
	if d := all[arch]; d != nil {
		return arch, d, nil
	}
	return "", nil, fmt.Errorf("%w: general.architecture %s (known: %s)", ErrUnsupported,
		short(arch), strings.Join(slices.Sorted(maps.Keys(all)), ", "))
}

func (f *File) text(key string) (string, bool) {
	v, ok := f.meta[key]
	if !ok {
		return "", false
	}
	return v.Text()
}

// has tells whether there is a tensor.
func (f *File) has(name string) bool { return f.find(name) != nil }

func (f *File) find(name string) *Tensor {
	for i := range f.Tensors {
		if f.Tensors[i].Name == name {
			return &f.Tensors[i]
		}
	}
	return nil
}

func (c *config) fail(format string, args ...any) {
	if c.err == nil {
		c.err = fmt.Errorf(format, args...)
	}
}

func (c *config) set(key string, value any) { c.fields[key] = value }

// value is that of a key of the architecture.
func (c *config) value(key string) (Value, bool) {
	v, ok := c.meta[c.arch+"."+key]
	return v, ok
}

// copy sets a field to the number that a key has, if it is there.
func (c *config) copy(field, key string) {
	v, ok := c.value(key)
	if !ok {
		return
	}
	n, ok := number(v)
	if !ok {
		c.fail("%s.%s is %v where a number is expected", c.arch, key, v)
	}
	c.set(field, n)
}

// number writes a number as short as its kind allows, so that 1e-05 in 32 bits is 1e-05.
func number(v Value) (json.Number, bool) {
	x, ok := v.Float()
	if !ok || math.IsNaN(x) || math.IsInf(x, 0) {
		return "", false
	}
	if n, whole := v.Integer(); whole && !v.isFloat() {
		return json.Number(strconv.FormatInt(n, 10)), true
	}
	width := 64
	if v.Kind == Float32 {
		width = 32
	}
	return json.Number(strconv.FormatFloat(x, 'g', -1, width)), true
}

// integer is a whole number of a key. Of an array, which has one for each layer, it is the number
// that all of them are which are not 0: of layers that have none.
func (c *config) integer(key string) (int64, bool) {
	v, ok := c.value(key)
	if !ok {
		return 0, false
	}
	if list, ok := v.Integers(); ok && len(list) > 0 {
		most := slices.Max(list)
		if slices.ContainsFunc(list, func(n int64) bool { return n != 0 && n != most }) {
			c.fail("%w: %s.%s differs from layer to layer", ErrUnsupported, c.arch, key)
		}
		return most, true
	}
	n, ok := v.Integer()
	if !ok {
		c.fail("%s.%s is %v where a whole number is expected", c.arch, key, v)
	}
	return n, ok
}

// required is a whole number, from 1 to 2³¹, that must be there.
func (c *config) required(key string) int64 {
	n, ok := c.integer(key)
	switch {
	case !ok:
		c.fail("%s.%s is missing", c.arch, key)
	case n < 1 || n > math.MaxInt32:
		c.fail("%s.%s is %d, outside 1 to %d", c.arch, key, n, math.MaxInt32)
	}
	return n
}

// orDefault is a whole number, or what stands for it.
func (c *config) orDefault(key string, def int64) int64 {
	if n, ok := c.integer(key); ok {
		return n
	}
	return def
}

// usual sets what all architectures have.
func (c *config) usual(d *dialect) {
	c.set("architectures", []string{d.class})
	c.set("model_type", d.model)
	c.set("quantization_config", map[string]any{"quant_method": "gguf"})
	hidden, layers := c.required("embedding_length"), c.required("block_count")
	heads := c.required("attention.head_count")
	if c.err != nil {
		return
	}
	kv := c.orDefault("attention.head_count_kv", heads)
	dim := c.orDefault("attention.key_length", hidden/heads)
	if _, latent := c.value("attention.kv_lora_rank"); latent {
		kv, dim = heads, c.orDefault("attention.key_length_mla", dim)
	} else if v := c.orDefault("attention.value_length", dim); v != dim {
		c.fail("%w: attention.value_length %d beside key_length %d", ErrUnsupported, v, dim)
	}
	if causal, ok := c.meta[c.arch+".attention.causal"].Flag(); ok && !causal {
		c.fail("%w: %s.attention.causal is false", ErrUnsupported, c.arch)
	}
	if n, ok := c.integer("nextn_predict_layers"); ok && n > 0 {
		layers -= n // which predict tokens further ahead, and are not computed
	}
	c.set("hidden_size", hidden)
	c.set("num_hidden_layers", layers)
	c.set("num_attention_heads", heads)
	c.set("num_key_value_heads", kv)
	c.set("head_dim", dim)
	c.set("max_position_embeddings", c.required("context_length"))
	if n, ok := c.integer("feed_forward_length"); ok && n > 0 {
		c.set("intermediate_size", n)
	}
	c.set("tie_word_embeddings", !c.has("output.weight"))
	if d.layerNorm != "" {
		c.copy(d.layerNorm, "attention.layer_norm_epsilon")
	} else {
		c.copy("rms_norm_eps", "attention.layer_norm_rms_epsilon")
	}
	if name := c.plainType(); name != "" {
		c.set("torch_dtype", name)
	}
	for field, key := range map[string]string{"bos_token_id": "bos_token_id",
		"eos_token_id": "eos_token_id", "pad_token_id": "padding_token_id"} {
		c.set(field, nil)
		if v, ok := c.meta["tokenizer.ggml."+key]; ok {
			if n, ok := v.Integer(); ok && n < math.MaxUint32 { // which is none
				c.set(field, n)
			}
		}
	}
	c.rope(heads, dim)
	c.check(d, hidden, layers, heads, kv, dim)
}

// check compares the metadata with tensors, and finds how many tokens there are.
func (c *config) check(d *dialect, hidden, layers, heads, kv, dim int64) {
	table := c.find("token_embd.weight")
	switch {
	case table == nil:
		c.fail("there is no tensor \"token_embd.weight\"")
		return
	case len(table.Shape) != 2 || int64(table.Shape[1]) != hidden:
		c.fail("%s.embedding_length is %d, but token_embd.weight is %v", c.arch, hidden,
			table.Shape)
		return
	}
	c.set("vocab_size", table.Shape[0])
	if v, ok := c.meta["tokenizer.ggml.tokens"]; ok && v.Len != table.Shape[0] {
		c.fail("tokenizer.ggml.tokens has %d tokens, but token_embd.weight %d rows", v.Len,
			table.Shape[0])
	}
	last := int64(-1)
	for i := range c.Tensors {
		if n, _, ok := block(c.Tensors[i].Name); ok {
			last = max(last, int64(n))
		}
	}
	if last < layers-1 || last >= c.orDefault("block_count", 0) {
		c.fail("%s.block_count is %d, but the last block that has tensors is %d", c.arch,
			c.orDefault("block_count", 0), last)
	}
	if heads < 1 || kv < 1 || dim < 1 || heads%max(kv, 1) != 0 {
		c.fail("%s.attention.head_count is %d and head_count_kv %d, of dimension %d", c.arch, heads,
			kv, dim)
	}
	for _, x := range []struct {
		name, key string
		rows      int64
	}{{"attn_q", "head_count", heads * dim}, {"attn_k", "head_count_kv", kv * dim},
		{"attn_qkv", "head_count and head_count_kv", (heads + 2*kv) * dim}} {
		t := c.find("blk.0." + x.name + ".weight")
		if t != nil && !d.gated && (len(t.Shape) != 2 || int64(t.Shape[0]) != x.rows) {
			c.fail("%s.attention.%s asks for %d rows, of heads of %d, but blk.0.%s.weight is %v",
				c.arch, x.key, x.rows, dim, x.name, t.Shape)
		}
	}
}

// plainType is the type that most of the weights have, if that is one of 16 bits.
func (c *config) plainType() string {
	bytes := map[Type]int{}
	for i := range c.Tensors {
		bytes[c.Tensors[i].Type] += len(c.Tensors[i].Data)
	}
	most := F32
	for t, n := range bytes {
		if n > bytes[most] {
			most = t
		}
	}
	switch most {
	case F16:
		return "float16"
	case BF16:
		return "bfloat16"
	}
	return ""
}

// rope sets how heads are turned.
func (c *config) rope(heads, dim int64) {
	c.copy("rope_theta", "rope.freq_base")
	kind, _ := c.text(c.arch + ".rope.scaling.type")
	scaling := map[string]any{}
	put := func(field, key string) {
		if v, ok := c.value("rope." + key); ok {
			if n, ok := number(v); ok {
				scaling[field] = n
			}
		}
	}
	put("factor", "scale_linear") // its first name
	put("factor", "scaling.factor")
	if n, ok := scaling["factor"].(json.Number); ok && kind == "" && n != "0" && n != "1" {
		kind = "linear" // where the file does not say, as in llama.cpp
	}
	for _, list := range []string{"rope_freqs.weight", "rope_factors_short.weight"} {
		if (kind == "linear" || kind == "yarn") && c.has(list) {
			c.fail("%w: tensor %s beside rope.scaling of type %s", ErrUnsupported, list, kind)
		}
	}
	if n, ok := c.integer("rope.scaling.original_context_length"); ok && n > 0 {
		scaling["original_max_position_embeddings"] = n
	}
	switch kind {
	case "", "none", "longrope":
		scaling = c.factors(scaling)
	case "linear":
		scaling["rope_type"] = "linear"
		delete(scaling, "original_max_position_embeddings")
	case "yarn":
		scaling["rope_type"] = "yarn"
		put("beta_fast", "scaling.yarn_beta_fast")
		put("beta_slow", "scaling.yarn_beta_slow")
		put("attention_factor", "scaling.yarn_attn_factor")
	default:
		c.fail("%w: %s.rope.scaling.type %s", ErrUnsupported, c.arch, short(kind))
	}
	if len(scaling) > 0 {
		c.set("rope_scaling", scaling)
	}
}

// factors are those of tensors that divide the frequencies: of Llama 3 one list, of LongRoPE one
// for short and one for long sequences. transformers makes the first out of four numbers, which the
// file does not have; it is LongRoPE with equal lists that sharpens nothing.
func (c *config) factors(scaling map[string]any) map[string]any {
	short, long := c.find("rope_factors_short.weight"), c.find("rope_factors_long.weight")
	one := c.find("rope_freqs.weight")
	attention := json.Number("1")
	switch {
	case one != nil:
		short, long = one, one
	case short == nil || long == nil:
		return nil
	default:
		if v, ok := c.value("rope.scaling.attn_factor"); ok {
			attention, _ = number(v)
		}
	}
	list := func(t *Tensor) []float64 {
		if t.Type != F32 {
			c.fail("tensor %s is of type %v, not F32", short.Name, t.Type)
			return nil
		}
		v := make([]float64, len(t.Data)/4)
		for i := range v {
			v[i], _ = Value{Kind: Float32, raw: t.Data}.floatAt(i)
		}
		return v
	}
	original, ok := scaling["original_max_position_embeddings"]
	if !ok {
		original = c.required("context_length")
	}
	return map[string]any{"rope_type": "longrope", "short_factor": list(short),
		"long_factor": list(long), "attention_factor": attention,
		"original_max_position_embeddings": original}
}

// partial sets which part of a head is turned.
func (c *config) partial() {
	dim := c.fields["head_dim"].(int64)
	if n, ok := c.integer("rope.dimension_count"); ok && n != dim && dim > 0 {
		c.set("partial_rotary_factor", float64(n)/float64(dim))
	}
}

// biases sets whether attention has biases, by its tensors.
func (c *config) biases() {
	c.set("attention_bias", c.has("blk.0.attn_q.bias") || c.has("blk.0.attn_qkv.bias"))
}

// convolutions sets the numbers of LFM2's, which are in the layers without key/value heads.
func (c *config) convolutions() {
	c.copy("norm_eps", "attention.layer_norm_rms_epsilon")
	c.set("conv_L_cache", c.required("shortconv.l_cache"))
	c.set("conv_bias", c.has("blk.0.shortconv.conv.bias"))
	if c.arch == "lfm2" {
		c.set("block_auto_adjust_ff_dim", false)
	}
	heads, _ := c.meta[c.arch+".attention.head_count_kv"].Integers()
	types := make([]string, len(heads))
	for i, n := range heads {
		types[i] = "full_attention"
		if n == 0 {
			types[i] = "conv"
		}
	}
	c.set("layer_types", types)
}

// recurrence sets the numbers of linear attention, and which layers have it.
func (c *config) recurrence() {
	c.partial()
	keys, values := c.required("ssm.group_count"), c.required("ssm.time_step_rank")
	c.set("linear_num_key_heads", keys)
	c.set("linear_num_value_heads", values)
	c.set("linear_key_head_dim", c.required("ssm.state_size"))
	c.set("linear_value_head_dim", c.required("ssm.inner_size")/max(values, 1))
	c.set("linear_conv_kernel_dim", c.required("ssm.conv_kernel"))
	c.set("full_attention_interval", c.orDefault("full_attention_interval", 4))
	list, ok := c.meta[c.arch+".attention.recurrent_layers"].Integers()
	if layers, _ := c.fields["num_hidden_layers"].(int64); ok && int64(len(list)) >= layers {
		types := make([]string, layers)
		for i := range types {
			types[i] = "full_attention"
			if list[i] != 0 {
				types[i] = "linear_attention"
			}
		}
		c.set("layer_types", types)
	}
}

// groupedRecurrence is recurrence of the converter that lays value heads of one key head apart
// (_LinearAttentionVReorderBase), among input features, too.
func (c *config) groupedRecurrence() {
	c.recurrence()
	if keys, values := c.fields["linear_num_key_heads"], c.fields["linear_num_value_heads"]; keys !=
		values {
		c.fail("%w: %s.ssm.time_step_rank is %d: more value heads than %d key heads "+
			"(ssm.group_count)", ErrUnsupported, c.arch, values, keys)
	}
}

// sharedWidth sets the width of the expert that all rows share.
func (c *config) sharedWidth() {
	c.set("shared_expert_intermediate_size",
		c.expertWidth("expert_shared_feed_forward_length", "ffn_up_shexp", 0))
}

// llamaFields are those of models that the converter treats as Llama: rows of queries and keys are
// permuted so that heads are turned in pairs of neighbours (LlamaModel.permute). With experts it is
// Mixtral.
func llamaFields(c *config) {
	c.biases()
	c.set("mlp_bias", c.has("blk.0.ffn_gate.bias"))
	c.set("rope_interleave", true)
	dim := c.fields["head_dim"].(int64)
	if n := c.orDefault("rope.dimension_count", dim); n != dim {
		c.fail("%w: %s.rope.dimension_count is %d of %d", ErrUnsupported, c.arch, n, dim)
	}
	if n, _ := c.integer("expert_count"); n > 0 && c.arch == "llama" {
		c.set("model_type", "mixtral")
		c.set("architectures", []string{"MixtralForCausalLM"})
		delete(c.fields, "mlp_bias")
		if c.fields["attention_bias"] == true {
			c.fail("%w: biases of a mixture of experts", ErrUnsupported)
		}
		delete(c.fields, "attention_bias")
		c.experts("num_local_experts")
	}
}

// graniteFields are Granite's multipliers.
func graniteFields(c *config) {
	llamaFields(c)
	c.copy("attention_multiplier", "attention.scale")
	c.copy("embedding_multiplier", "embedding_scale")
	c.copy("residual_multiplier", "residual_scale")
	c.copy("logits_scaling", "logit_scale")
}

// graniteExperts are those of its mixtures, with an expert that all rows share or without.
func graniteExperts(c *config) {
	graniteFields(c)
	delete(c.fields, "mlp_bias")
	c.experts("num_local_experts")
	if n, ok := c.integer("expert_shared_feed_forward_length"); ok && n > 0 {
		c.set("model_type", "granitemoeshared")
		c.set("architectures", []string{"GraniteMoeSharedForCausalLM"})
		c.set("shared_intermediate_size", n)
	}
}

// deepSeekFields are those of DeepSeek V2, and with logistic scores V3. Files of the form with
// attn_k_b and attn_v_b have the dimensions of heads in keys of their own.
func deepSeekFields(c *config) {
	dim := c.fields["head_dim"].(int64)
	turned := c.required("rope.dimension_count")
	value := c.orDefault("attention.value_length", dim)
	delete(c.fields, "head_dim")
	c.set("kv_lora_rank", c.required("attention.kv_lora_rank"))
	c.set("q_lora_rank", nil)
	if c.has("blk.0.attn_q_a.weight") {
		c.set("q_lora_rank", c.required("attention.q_lora_rank"))
	}
	c.set("qk_rope_head_dim", turned)
	c.set("qk_nope_head_dim", dim-turned)
	c.set("v_head_dim", c.orDefault("attention.value_length_mla", value))
	groups := c.deepSeekExperts()
	// The converter writes a tenth of mscale_all_dim, which mscale equals in all published models.
	if v, ok := c.value("rope.scaling.yarn_log_multiplier"); ok {
		x, _ := v.Float()
		r, scaled := c.fields["rope_scaling"].(map[string]any)
		if m := math.Round(x*1e5) / 1e4; scaled && m > 0 {
			r["mscale"], r["mscale_all_dim"] = m, m
		}
	}
	gating, said := c.integer("expert_gating_func")
	if !said && c.corrected() { // GLM-4.7-Flash's files do not say
		gating = 2
	}
	switch gating {
	case 0, 1:
		c.set("topk_method", "greedy")
		if groups > 1 {
			c.set("topk_method", "group_limited_greedy")
		}
	case 2:
		c.set("model_type", "deepseek_v3")
		c.set("architectures", []string{"DeepseekV3ForCausalLM"})
	default:
		c.fail("%w: %s.expert_gating_func %d", ErrUnsupported, c.arch, gating)
	}
}

// corrected says that the choice of experts is.
func (c *config) corrected() bool {
	return slices.ContainsFunc(c.Tensors, func(t Tensor) bool {
		return strings.Contains(t.Name, ".exp_probs_b")
	})
}

// deepSeekExperts sets the numbers of a mixture as DeepSeek has it, and returns how many groups of
// experts there are.
func (c *config) deepSeekExperts() (groups int64) {
	c.experts("n_routed_experts")
	c.set("moe_intermediate_size", c.required("expert_feed_forward_length"))
	c.set("n_shared_experts", c.orDefault("expert_shared_count", 0))
	c.set("first_k_dense_replace", c.orDefault("leading_dense_block_count", 0))
	groups = c.orDefault("expert_group_count", 1)
	c.set("n_group", groups)
	c.set("topk_group", c.orDefault("expert_group_used_count", 1))
	c.copy("routed_scaling_factor", "expert_weights_scale")
	normalised, _ := c.meta[c.arch+".expert_weights_norm"].Flag()
	c.set("norm_topk_prob", normalised)
	return groups
}

// experts sets how many experts there are, and of each row.
func (c *config) experts(key string) {
	c.set(key, c.required("expert_count"))
	c.set("num_experts_per_tok", c.required("expert_used_count"))
}

// qwenExperts sets the numbers of Qwen's mixtures, of which llama.cpp knows whether weights are
// divided by their sum (src/models/qwen2moe.cpp, qwen3moe.cpp).
func (c *config) qwenExperts(normalised bool) {
	c.experts("num_experts")
	c.set("norm_topk_prob", normalised)
	c.set("moe_intermediate_size", c.expertWidth("expert_feed_forward_length", "ffn_up_exps", 1))
}

// expertWidth is a width by its key, which old files lack, or a dimension of a tensor.
func (c *config) expertWidth(key, tensor string, dimension int) int64 {
	if n, ok := c.integer(key); ok && n > 0 {
		return n
	}
	if t := c.find("blk.0." + tensor + ".weight"); t != nil && len(t.Shape) > dimension {
		return int64(t.Shape[dimension])
	}
	c.fail("%s.%s is missing", c.arch, key)
	return 0
}

// gemmaScale sets what scores are divided by the root of: the dimension of a head, but for the
// largest model, of so many layers (src/models/gemma2.cpp, gemma3.cpp).
func (c *config) gemmaScale(largest int64) {
	scalar := c.fields["head_dim"].(int64)
	if c.fields["num_hidden_layers"].(int64) == largest {
		scalar = c.fields["hidden_size"].(int64) / c.fields["num_attention_heads"].(int64)
	}
	c.set("query_pre_attn_scalar", scalar)
}

// olmoFields are OLMo 2's, and with a window OLMo 3's.
func olmoFields(c *config) {
	n, _ := c.integer("attention.sliding_window")
	if n == 0 {
		return
	}
	c.set("model_type", "olmo3")
	c.set("architectures", []string{"Olmo3ForCausalLM"})
	c.set("sliding_window", n)
	c.layerTypes()
}

// layerTypes sets which layers have a window, where the file says so.
func (c *config) layerTypes() {
	if list, ok := c.meta[c.arch+".attention.sliding_window_pattern"].Integers(); ok {
		types := make([]string, len(list))
		for i, slides := range list {
			types[i] = "full_attention"
			if slides != 0 {
				types[i] = "sliding_attention"
			}
		}
		c.set("layer_types", types)
	}
}
