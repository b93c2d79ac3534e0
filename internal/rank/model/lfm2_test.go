package model

import (
	"errors"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
)

// published is config.json of LFM2-1.2B, with a field more.
func published(field string) string {
	return `{"architectures":["Lfm2ForCausalLM"],"block_auto_adjust_ff_dim":true,"block_dim":2048,
		"block_ff_dim":12288,"block_ffn_dim_multiplier":1.0,"block_mlp_init_scale":1.0,
		"block_multiple_of":256,"block_norm_eps":1e-05,"block_out_init_scale":1.0,
		"block_use_swiglu":true,"block_use_xavier_init":true,"bos_token_id":1,"conv_L_cache":3,
		"conv_bias":false,"conv_dim":2048,"conv_dim_out":2048,"conv_use_xavier_init":true,
		"eos_token_id":7,"full_attn_idxs":[2,5,8,10,12,14],"hidden_size":2048,
		"initializer_range":0.02,"max_position_embeddings":128000,"model_type":"lfm2",
		"norm_eps":1e-05,"num_attention_heads":32,"num_heads":32,"num_hidden_layers":16,
		"num_key_value_heads":8,"pad_token_id":0,"rope_theta":1000000.0,"torch_dtype":"bfloat16",
		"transformers_version":"4.54.0.dev0","use_cache":true,"use_pos_enc":true,
		"vocab_size":65536` + field + "}"
}

// TestLFM2Config reads files as they were published: in one of three layers keys and values are
// kept, in the others two rows.
func TestLFM2Config(t *testing.T) {
	c, err := ReadConfig([]byte(published("")))
	if err != nil {
		t.Fatal(err)
	}
	if c.IntermediateSize != 8192 || c.HeadDim != 64 || !c.TieEmbeddings || c.RopeTheta != 1e6 {
		t.Errorf("%+v", c)
	}
	state := compute.CacheLayer{Kind: compute.State, Heads: 8, Dim: 2 * 256}
	for i, l := range c.Cache() {
		want := state
		if i == 2 || i == 5 || i >= 8 && i%2 == 0 {
			want = compute.CacheLayer{Heads: 8, Dim: 64}
		}
		if l != want {
			t.Errorf("layer %d keeps %v, not %v", i, l, want)
		}
	}
	c, err = ReadConfig([]byte(`{"architectures":["Lfm2MoeForCausalLM"],"model_type":"lfm2_moe",
		"conv_L_cache":3,"conv_bias":false,"dtype":"bfloat16","hidden_size":2048,
		"intermediate_size":7168,"layer_types":["conv","conv","full_attention","conv"],
		"max_position_embeddings":128000,"moe_intermediate_size":1792,"norm_eps":1e-05,
		"norm_topk_prob":true,"num_attention_heads":32,"num_dense_layers":2,"num_experts":32,
		"num_experts_per_tok":4,"num_hidden_layers":4,"num_key_value_heads":8,
		"rope_theta":1000000.0,"routed_scaling_factor":1.0,"use_expert_bias":true}`))
	if err != nil {
		t.Fatal(err)
	}
	y := c.Family.(*convolutions)
	if c.IntermediateSize != 7168 || y.sparse(1) || !y.sparse(2) || y.PerToken != 4 ||
		!y.Sigmoid || !y.corrected || y.short[2] || !y.short[3] || checkShard(c, 8, false) != nil {
		t.Errorf("%+v, %+v", c, y)
	}
	for _, tt := range []struct {
		field, want string
		kind        error
	}{
		{`"conv_dim":1024`, "conv_dim is 1024, not 2048", checkpoint.ErrUnsupported},
		{`"conv_L_cache":1`, "conv_L_cache is 1, outside 2 to 256", checkpoint.ErrMalformed},
		{`"block_use_swiglu":false`, "block_use_swiglu is false", checkpoint.ErrUnsupported},
		{`"full_attn_idxs":[]`, "layer_types has no full_attention", checkpoint.ErrUnsupported},
		{`"conv_groups":2`, "conv_groups is 2, which is no option", checkpoint.ErrUnsupported},
	} {
		_, err := ReadConfig([]byte(published("," + tt.field)))
		if !errors.Is(err, tt.kind) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.field, err, tt.want)
		}
	}
}
