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
	}
}
