package gguf

// plainDialects are architectures of dense models, most of which have layer norms or feed-forward
// blocks without a gate.
func plainDialects() map[string]*dialect {
	return map[string]*dialect{
		"stablelm": {model: "stablelm", class: "StableLmForCausalLM", layerNorm: "layer_norm_eps",
			fields: func(c *config) {
				c.partial()
				c.set("use_qkv_bias", c.has("blk.0.attn_q.bias"))
				c.set("qk_layernorm", c.has("blk.0.attn_q_norm.weight"))
				c.set("use_parallel_residual", !c.has("blk.0.ffn_norm.weight"))
			}},
		"nemotron": {model: "nemotron", class: "NemotronForCausalLM", layerNorm: "norm_eps",
			shifted: true, fields: func(c *config) {
				c.partial()
				c.biases()
				c.set("mlp_bias", c.has("blk.0.ffn_up.bias"))
			}},
		"arcee": {model: "arcee", class: "ArceeForCausalLM", fields: func(c *config) {
			llamaFields(c)
			c.set("mlp_bias", c.has("blk.0.ffn_up.bias"))
		}},
		"olmo": {model: "olmo", class: "OlmoForCausalLM", fields: func(c *config) {
			llamaFields(c)
			c.copy("clip_qkv", "attention.clamp_kqv")
		}},
		"internlm2": {model: "llama", class: "LlamaForCausalLM", fields: llamaFields},
		"phi2": {model: "phi", class: "PhiForCausalLM", layerNorm: "layer_norm_eps",
			modules: map[string]string{"output_norm": "model.final_layernorm",
				"attn_output": "self_attn.dense", "ffn_up": "mlp.fc1", "ffn_down": "mlp.fc2"},
			fields: (*config).partial},
		"gpt2": {model: "gpt2", class: "GPT2LMHeadModel", layerNorm: "layer_norm_epsilon",
			layers: "transformer.h", modules: map[string]string{"token_embd": "transformer.wte",
				"position_embd": "transformer.wpe", "output_norm": "transformer.ln_f",
				"attn_norm": "ln_1", "attn_qkv": "attn.c_attn", "attn_output": "attn.c_proj",
				"ffn_norm": "ln_2", "ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"},
			fields: func(*config) {}},
		"falcon": {model: "falcon", class: "FalconForCausalLM", layerNorm: "layer_norm_epsilon",
			layers: "transformer.h", modules: falconModules, fields: func(c *config) {
				kv := c.fields["num_key_value_heads"].(int64)
				two := c.has("blk.0.attn_norm_2.weight")
				c.set("num_kv_heads", kv)
				c.set("new_decoder_architecture", kv > 1)
				c.set("num_ln_in_parallel_attn", 1)
				if two {
					c.set("num_ln_in_parallel_attn", 2)
				}
			}},
	}
}

// falconModules are those of Falcon. Where attention and the feed-forward block have a norm each,
// attn_norm is the latter's.
var falconModules = map[string]string{"token_embd": "transformer.word_embeddings",
	"output_norm": "transformer.ln_f", "attn_norm": "input_layernorm", "attn_norm_2": "ln_attn",
	"attn_qkv": "self_attention.qkv_proj", "attn_output": "self_attention.dense",
	"ffn_up": "mlp.dense_h_to_4h", "ffn_down": "mlp.dense_4h_to_h"}
