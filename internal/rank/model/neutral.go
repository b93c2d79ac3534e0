package model

import (
	"slices"
	"strings"

	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
)

// refuseUnknown refuses an option that the family has not asked for: another architecture's, or
// one that is newer than this program. What it would change is not known, so the model would be
// served wrong.
func refuseUnknown(f *checkpoint.Fields, c *Config) {
	for _, key := range f.Unasked() {
		if !isNeutral(key) {
			f.Fail(checkpoint.ErrUnsupported, key, "is %s, which is no option of %s that is known",
				f.Excerpt(key), c.ModelType)
			return
		}
	}
}

// isNeutral reports whether an option changes nothing of what a model computes: it is about
// training, about generating, which generation_config.json has, or is there for other programs.
func isNeutral(key string) bool {
	for _, end := range []string{"_pdrop", "_coef", "layerdrop", "_noise", "_token_id"} {
		if strings.HasSuffix(key, end) {
			return true
		}
	}
	if strings.Contains(key, "dropout") {
		return true
	}
	for _, begin := range []string{"_", "unsloth", "initializer_", "output_", "mtp_",
		"summary_"} {
		if strings.HasPrefix(key, begin) {
			return true
		}
	}
	return slices.Contains(neutral, key)
}

var neutral = []string{
	// Any configuration of transformers.
	"attn_implementation", "auto_map", "cache_implementation", "chunk_size_feed_forward",
	"dtype", "finetuning_task",
	"gradient_checkpointing", "id2label", "label2id", "name_or_path", "num_labels", "prefix",
	"problem_type", "return_dict", "task_specific_params", "tokenizer_class", "torch_dtype",
	"torchscript", "transformers_version", "use_cache", "pruned_heads", "model_max_length",
	"keys_to_ignore_at_inference", "tie_encoder_decoder", "tf_legacy_loss", "use_bfloat16",
	"max_length", "min_length", "do_sample", "early_stopping", "num_beams", "num_beam_groups",
	"diversity_penalty", "temperature", "top_k", "top_p", "typical_p", "repetition_penalty",
	"length_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size",
	"num_return_sequences", "return_dict_in_generate", "remove_invalid_values",
	// How weights were made, or how ranks share them elsewhere: sums stay the same.
	"pretraining_tp", "ep_size", "seq_aux", "aux_loss_alpha", "num_nextn_predict_layers",
	"num_mtp_modules", "for_llm_compressor", "use_mtp", "mamba_ssm_dtype",
	"initial_context_length", "experts_per_token",
	// How Mamba's layers were made, how their sums may be cut elsewhere, and how much is computed.
	"chunk_size", "mamba_chunk_size", "use_mamba_kernels", "num_logits_to_keep",
	"mamba_ssm_cache_dtype", "residual_in_fp32", "rescale_prenorm_residual", "time_step_min",
	"time_step_max", "time_step_floor", "time_step_rank", "z_loss_coefficient", "init_method",
	"norm_eps",
	"moe_shared_expert_overlap", "expand", "mamba_expand",
	"mlp_expansion_factor",
	// Options that families read where others switch them on.
	"sliding_window", "max_window_layers", "use_sliding_window", "layer_types", "head_dim",
	"num_key_value_heads", "rope_theta", "rope_scaling", "rope_parameters",
	"original_max_position_embeddings", "partial_rotary_factor", "rope_interleaved",
	"hidden_act", "activation_function", "layer_norm_eps", "layer_norm_epsilon", "init_std",
	"layer_switch", "classifier_pooling", "sliding_window_pattern", "no_rope_layer_interval",
	"qk_head_dim", "decoder_sparse_step",
	"mlp_only_layers", "router_scale", "qk_norm_type", "hidden_activation",
	// Phi 4's, always 1, and Cohere's and StarCoder's names for what all of theirs have.
	"full_attn_mod", "interpolate_factor", "use_embedding_sharing", "use_gated_activation",
	"use_parallel_block", "order_of_interleaved_layers", "attn_type_list",
	// GPT-2's: its length again, and how its products are computed.
	"n_ctx", "reorder_and_upcast_attn", "attention_softmax_in_fp32",
	"scale_attention_softmax_in_fp32", "inference_runner", "validate_runner_input",
	// ModernBERT's, for training and for libraries.
	"deterministic_flash_attn", "reference_compile", "repad_logits_with_grad", "sparse_prediction",
	"sparse_pred_ignore_index", "decoder_bias",
	// sentence-transformers', which reads them elsewhere.
	"sentence_transformers",
}
