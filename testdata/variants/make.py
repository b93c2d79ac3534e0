"""Makes the checkpoints beside this file: tiny random models in shapes that few models have.

Each folder is one variant, saved by transformers: config.json as its newest major version writes
it and, of families that version 4 has, config.v4.json with its keys for the same weights.
goldens.json and full_logits.st hold what transformers computes from them in float32 with eager
attention:

  prompts[].ids       the prompt; full_logits.st has the logits of its every position
  prompts[].greedy    the tokens that follow, each with the margin between the best and the
                      second logit
  prompts[].std       standard deviation of the last position's logits
  bf16_max_error      largest |logit error| / std when the weights, the input of each linear layer,
                      keys and values are rounded to bfloat16; the same with float16 as
                      fp16_max_error. Absent for mixtures of experts, where rounding flips the
                      router's choice.

Needs torch, transformers and safetensors. `python make.py` rewrites all folders,
`python make.py NAME` one.
"""

import contextlib
import copy
import dataclasses
import importlib
import json
import pathlib
import sys
import tempfile
import typing

import torch
import transformers
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).parent
PROMPT = 44
GREEDY = 16
# Several times the tolerance of the test in float32, in standard deviations of the logits.
NOTICEABLE = 5e-4

Settings = dict[str, typing.Any]


@dataclasses.dataclass(frozen=True)
class Variant:
    """A model class, its configuration, and for each point of interest a configuration without it.

    Every entry of `without` must change the logits, else the variant would not test that point.
    """

    model: str
    config: Settings
    without: tuple[Settings, ...]
    dtype: torch.dtype = torch.bfloat16
    head: str = "ForCausalLM"
    # Whether version4 says how transformers 4 writes the configuration.
    old: bool = True
    # Whether nothing is chosen that rounding may choose otherwise, as a router's experts are.
    smooth: bool = True

    @property
    def type(self) -> type[transformers.PreTrainedModel]:
        return getattr(transformers, self.model + self.head)

    @property
    def vocab(self) -> int:
        return self.config.get("text_config", self.config)["vocab_size"]


def shape(
    hidden: int, inner: int, layers: int, heads: int, kv_heads: int, vocab: int, **more: typing.Any
) -> Settings:
    """The fields that all rotary decoders share."""
    return {
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocab,
        "max_position_embeddings": 128,
        "bos_token_id": 1,
        "eos_token_id": 2,
        **more,
    }


def rope(kind: str, theta: float = 10000.0, **more: typing.Any) -> Settings:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": theta, **more}}


def yarn(**more: typing.Any) -> Settings:
    return rope(
        "yarn",
        300.0,
        factor=4.0,
        original_max_position_embeddings=32,
        beta_fast=3.0,
        beta_slow=1.0,
        **more,
    )


SMALL = shape(32, 72, 2, 4, 2, 131, head_dim=16)
OPT = {
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "hidden_size": 48,
    "ffn_dim": 88,
    "vocab_size": 131,
    "max_position_embeddings": 96,
}

GRANITE4 = {
    "tie_word_embeddings": True,
    "shared_intermediate_size": 24,
    "attention_multiplier": 0.2,
    "embedding_multiplier": 3.0,
    "logits_scaling": 2.0,
    "residual_multiplier": 0.6,
}

PHI_ROPE = rope(
    "longrope",
    short_factor=[1.0, 1.5, 2.0, 3.0],
    long_factor=[2.0, 3.0, 4.0, 5.0],
    short_mscale=1.2,
    long_mscale=1.4,
    original_max_position_embeddings=128,
)

FALCON = [0.7, 0.8, 1.3, 0.6, 0.5]

VARIANTS = {
    "mistral-window": Variant(
        "Mistral",
        shape(48, 92, 3, 4, 2, 131, sliding_window=12),
        ({"sliding_window": None}, {"sliding_window": 13}),
    ),
    "llama-linear": Variant("Llama", {**SMALL, **rope("linear", factor=4.0)}, (rope("default"),)),
    "llama-yarn": Variant(
        "Llama", {**SMALL, **yarn()}, (rope("default", 300.0), yarn(truncate=False))
    ),
    "llama-yarn-mscale": Variant(
        "Llama",
        {**SMALL, **yarn(mscale=1.4, mscale_all_dim=0.5, truncate=False)},
        (yarn(truncate=False), yarn(mscale=1.4, mscale_all_dim=0.5)),
    ),
    "llama-yarn-attention": Variant("Llama", {**SMALL, **yarn(attention_factor=1.5)}, (yarn(),)),
    "llama-bias": Variant(
        "Llama",
        {
            **shape(
                40, 88, 2, 4, 4, 150, attention_bias=True, mlp_bias=True, tie_word_embeddings=False
            ),
            **rope(
                "llama3",
                500000.0,
                factor=8.0,
                low_freq_factor=1.0,
                high_freq_factor=4.0,
                original_max_position_embeddings=32,
            ),
        },
        (
            rope("default", 500000.0),
            {"attention_bias": False},
            {"mlp_bias": False},
            {"tie_word_embeddings": True},
        ),
    ),
    "qwen2-window": Variant(
        "Qwen2",
        shape(
            48, 100, 3, 4, 2, 140, use_sliding_window=True, sliding_window=10, max_window_layers=1
        ),
        ({"use_sliding_window": False}, {"max_window_layers": 0}, {"max_window_layers": 2}),
    ),
    "qwen3-one-kv-head": Variant(
        "Qwen3",
        shape(40, 72, 2, 8, 1, 131, head_dim=24, attention_bias=True),
        ({"attention_bias": False},),
    ),
    "qwen3moe-mixed": Variant(
        "Qwen3Moe",
        shape(
            32,
            56,
            4,
            4,
            2,
            128,
            head_dim=12,
            num_experts=6,
            num_experts_per_tok=2,
            moe_intermediate_size=24,
            decoder_sparse_step=2,
            mlp_only_layers=[3],
            norm_topk_prob=False,
            use_sliding_window=True,
            sliding_window=17,
        ),
        (
            {"decoder_sparse_step": 1},
            {"mlp_only_layers": []},
            {"norm_topk_prob": True},
            {"use_sliding_window": False},
        ),
        smooth=False,
    ),
    # Heads of the dimensions that tensor cores' attention is made for.
    "qwen3-head128": Variant(
        "Qwen3",
        shape(32, 72, 2, 4, 1, 131, head_dim=128),
        ({"rms_norm_eps": 0.5},),
    ),
    "mistral-head64": Variant(
        "Mistral",
        shape(32, 72, 2, 6, 2, 131, head_dim=64, sliding_window=20),
        ({"sliding_window": None}, {"sliding_window": 21}),
    ),
    "opt-post-norm": Variant(
        "OPT",
        {**OPT, "do_layer_norm_before": False, "word_embed_proj_dim": 24},
        ({"do_layer_norm_before": True},),
    ),
    "opt-plain": Variant(
        "OPT",
        {
            **OPT,
            "enable_bias": False,
            "layer_norm_elementwise_affine": False,
            "activation_function": "gelu",
            "_remove_final_layer_norm": True,
        },
        (
            {"enable_bias": True},
            {"layer_norm_elementwise_affine": True},
            {"activation_function": "relu"},
            {"activation_function": "gelu_new"},
            {"_remove_final_layer_norm": False},
        ),
    ),
    "llama-fp16": Variant("Llama", SMALL, ({"rms_norm_eps": 0.5},), torch.float16),
    "llama-fp32": Variant("Llama", SMALL, ({"rms_norm_eps": 0.5},), torch.float32),
}

# Language models that stand beside encoders of images: of what follows only the text is compared.
VISION = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 16,
    "patch_size": 8,
}
QWEN_VISION = {
    "depth": 1,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_heads": 2,
    "patch_size": 4,
    "num_position_embeddings": 16,
    "deepstack_visual_indexes": [0],
}
DELTA = {
    "layer_types": ["linear_attention", "full_attention"] * 2,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    **rope("default", 10000.0, partial_rotary_factor=0.5, mrope_section=[2, 1, 1]),
}
EXPERTS = {
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
}
DEEPSEEK_EXPERTS = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_shared_experts": 1,
    "moe_intermediate_size": 16,
    "routed_scaling_factor": 1.5,
    "norm_topk_prob": True,
}


def beside(text: Settings, vision: Settings, **more: typing.Any) -> Settings:
    """A language model beside an encoder of images."""
    width = text["hidden_size"]
    return {
        "text_config": text,
        "vision_config": {**vision, "out_hidden_size": width},
        "image_token_id": 99,
        "tie_word_embeddings": False,
        **more,
    }


def of_text(text: Settings, change: Settings) -> Settings:
    return {"text_config": {**text, **change}}


GEMMA3_TEXT = shape(32, 56, 3, 4, 2, 131, head_dim=16, sliding_window=9, query_pre_attn_scalar=16)
MISTRAL_TEXT = {"model_type": "mistral", **SMALL, "sliding_window": None}
MINISTRAL_ROPE = rope(
    "yarn",
    300.0,
    factor=4.0,
    original_max_position_embeddings=16,
    beta_fast=3.0,
    beta_slow=1.0,
    mscale=1.0,
    mscale_all_dim=1.0,
    llama_4_scaling_beta=0.1,
)
MINISTRAL_TEXT = {
    "model_type": "ministral3",
    **SMALL,
    "sliding_window": None,
    **MINISTRAL_ROPE,
}
LLAMA4_TEXT = {
    **SMALL,
    "head_dim": 8,
    "intermediate_size": 16,
    "intermediate_size_mlp": 56,
    "num_hidden_layers": 3,
    "num_local_experts": 4,
    "interleave_moe_layer_step": 2,
    "attention_chunk_size": 16,
    "no_rope_layer_interval": 3,
    "floor_scale": 5,
    "attn_scale": 0.3,
    **rope(
        "llama3",
        500000.0,
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=1.0,
        original_max_position_embeddings=32,
    ),
}
LLAMA4_VISION = VISION | {
    "vision_output_dim": 16,
    "projector_input_dim": 16,
    "projector_output_dim": 16,
}
QWEN2_TEXT = {
    **shape(32, 72, 2, 4, 2, 131),
    **rope("default", 10000.0, mrope_section=[2, 1, 1]),
}
QWEN3_TEXT = {**SMALL, **rope("default", 10000.0, mrope_section=[4, 2, 2])}
QWEN3_MOE_TEXT = {**QWEN3_TEXT, **EXPERTS, "norm_topk_prob": True}
QWEN35_TEXT = {**SMALL, **DELTA, "num_hidden_layers": 4}
GPT = {
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 96,
    "vocab_size": 131,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
QWEN35_MOE_TEXT = {**QWEN35_TEXT, **EXPERTS, "shared_expert_intermediate_size": 24}
GEMMA4_TEXT = {
    **shape(32, 56, 6, 4, 2, 131, head_dim=16, sliding_window=9, tie_word_embeddings=True),
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
    "global_head_dim": 32,
    "num_global_key_value_heads": 1,
    "final_logit_softcapping": 30.0,
    "vocab_size_per_layer_input": 131,
    "hidden_size_per_layer_input": 0,
    "attention_k_eq_v": True,
}
GEMMA4_SMALL_TEXT = {
    **GEMMA4_TEXT,
    "hidden_size_per_layer_input": 8,
    "num_kv_shared_layers": 3,
    "attention_k_eq_v": False,
    "use_double_wide_mlp": True,
}
GEMMA4_MOE_TEXT = {
    **GEMMA4_TEXT,
    "num_hidden_layers": 3,
    "layer_types": GEMMA4_TEXT["layer_types"][:3],
    "enable_moe_block": True,
    "num_experts": 6,
    "top_k_experts": 2,
    "moe_intermediate_size": 24,
}

VARIANTS |= {
    "gemma3-vision": Variant(
        "Gemma3",
        beside(GEMMA3_TEXT, VISION, mm_tokens_per_image=1, image_token_index=99),
        (of_text(GEMMA3_TEXT, {"sliding_window": 12}),),
        head="ForConditionalGeneration",
        old=False,
    ),
    "gemma4-small": Variant(
        "Gemma4",
        {"text_config": GEMMA4_SMALL_TEXT},
        (
            of_text(GEMMA4_SMALL_TEXT, {"num_kv_shared_layers": 0}),
            of_text(GEMMA4_SMALL_TEXT, {"hidden_size_per_layer_input": 4}),
            of_text(GEMMA4_SMALL_TEXT, {"use_double_wide_mlp": False}),
            of_text(GEMMA4_SMALL_TEXT, {"sliding_window": 12}),
            of_text(GEMMA4_SMALL_TEXT, {"final_logit_softcapping": 1.0}),
        ),
        head="ForConditionalGeneration",
        old=False,
    ),
    "gemma4-moe": Variant(
        "Gemma4",
        {"text_config": GEMMA4_MOE_TEXT},
        (
            of_text(GEMMA4_MOE_TEXT, {"enable_moe_block": False}),
            of_text(GEMMA4_MOE_TEXT, {"attention_k_eq_v": False}),
            of_text(GEMMA4_MOE_TEXT, {"top_k_experts": 3}),
        ),
        head="ForConditionalGeneration",
        old=False,
        smooth=False,
    ),
    "mistral3-vision": Variant(
        "Mistral3",
        beside(MISTRAL_TEXT, VISION | {"model_type": "pixtral"}, image_token_index=99),
        (of_text(MISTRAL_TEXT, {"rms_norm_eps": 0.5}),),
        head="ForConditionalGeneration",
        old=False,
    ),
    "mistral3-ministral": Variant(
        "Mistral3",
        beside(MINISTRAL_TEXT, VISION | {"model_type": "pixtral"}, image_token_index=99),
        (of_text(MINISTRAL_TEXT, {"rms_norm_eps": 0.5}),),
        head="ForConditionalGeneration",
        old=False,
    ),
    "qwen2.5-vl": Variant(
        "Qwen2_5_VL",
        beside(QWEN2_TEXT, QWEN_VISION),
        (of_text(QWEN2_TEXT, {"rms_norm_eps": 0.5}),),
        head="ForConditionalGeneration",
        old=False,
    ),
    "qwen3-vl": Variant(
        "Qwen3VL",
        beside(QWEN3_TEXT, QWEN_VISION),
        (of_text(QWEN3_TEXT, {"rms_norm_eps": 0.5}),),
        head="ForConditionalGeneration",
        old=False,
    ),
    "qwen3-vl-moe": Variant(
        "Qwen3VLMoe",
        beside(QWEN3_MOE_TEXT, QWEN_VISION),
        (of_text(QWEN3_MOE_TEXT, {"num_experts_per_tok": 3}),),
        head="ForConditionalGeneration",
        old=False,
        smooth=False,
    ),
    "qwen3.5-vision": Variant(
        "Qwen3_5",
        beside(QWEN35_TEXT, QWEN_VISION),
        (of_text(QWEN35_TEXT, {"rms_norm_eps": 0.5}),),
        head="ForConditionalGeneration",
        old=False,
        smooth=False,
    ),
    "qwen3.5-moe-vision": Variant(
        "Qwen3_5Moe",
        beside(QWEN35_MOE_TEXT, QWEN_VISION),
        (of_text(QWEN35_MOE_TEXT, {"num_experts_per_tok": 3}),),
        head="ForConditionalGeneration",
        old=False,
        smooth=False,
    ),
    "ernie4.5": Variant(
        "Ernie4_5",
        {**SMALL, "use_bias": True},
        ({"use_bias": False},),
        old=False,
    ),
    "seed-oss": Variant(
        "SeedOss",
        {**SMALL, "attention_out_bias": True, "mlp_bias": True},
        ({"attention_bias": False}, {"attention_out_bias": False}, {"mlp_bias": False}),
    ),
    "exaone4": Variant(
        "Exaone4",
        {**shape(32, 72, 4, 4, 2, 131), "sliding_window": 9, "sliding_window_pattern": 2},
        (
            {"sliding_window": None, "layer_types": ["full_attention"] * 4},
            {"sliding_window": 12},
            {"layer_types": ["full_attention"] + ["sliding_attention"] * 3},
        ),
        old=False,
    ),
    "olmoe": Variant(
        "Olmoe",
        {**shape(32, 24, 2, 4, 2, 131), "num_experts": 6, "num_experts_per_tok": 2},
        ({"norm_topk_prob": True}, {"num_experts_per_tok": 3}),
        smooth=False,
        old=False,
    ),
    "gemma": Variant("Gemma", SMALL, ({"rms_norm_eps": 0.5},), old=False),
    "cohere": Variant(
        "Cohere",
        {**shape(32, 72, 2, 4, 2, 131), "logit_scale": 0.25, "pad_token_id": 0},
        ({"layer_norm_eps": 0.5}, {"logit_scale": 0.5}),
        old=False,
    ),
    "glm": Variant(
        "Glm",
        {**SMALL, "pad_token_id": 0, **rope("default", 10000.0, partial_rotary_factor=0.5)},
        ({"attention_bias": False},),
        old=False,
    ),
    "glm4-moe-lite": Variant(
        "Glm4MoeLite",
        {
            **shape(32, 56, 3, 4, 4, 131),
            **DEEPSEEK_EXPERTS,
            "q_lora_rank": 24,
            "kv_lora_rank": 16,
            "qk_nope_head_dim": 12,
            "qk_rope_head_dim": 8,
            "v_head_dim": 12,
            "mlp_layer_types": ["dense", "sparse", "sparse"],
        },
        (
            {"routed_scaling_factor": 1.0},
            {"mlp_layer_types": ["dense", "dense", "sparse"]},
            {"rope_interleave": False},
        ),
        smooth=False,
        old=False,
    ),
    "dots1": Variant(
        "Dots1",
        {
            **shape(32, 56, 3, 4, 2, 131, head_dim=16),
            **DEEPSEEK_EXPERTS,
            "first_k_dense_replace": 1,
            "sliding_window": 9,
            "max_window_layers": 2,
        },
        (
            {"norm_topk_prob": False},
            {"first_k_dense_replace": 0},
            {"max_window_layers": 3},
        ),
        smooth=False,
        old=False,
    ),
    "gpt2": Variant(
        "GPT2",
        {**GPT, "scale_attn_by_inverse_layer_idx": True},
        (
            {"scale_attn_by_inverse_layer_idx": False},
            {"scale_attn_weights": False},
        ),
        head="LMHeadModel",
        old=False,
    ),
    "nemotron": Variant(
        "Nemotron",
        {
            **shape(32, 72, 2, 4, 2, 131, mlp_bias=True),
            **rope("default", 10000.0, partial_rotary_factor=0.5),
        },
        ({"mlp_bias": False}, rope("default", 10000.0, partial_rotary_factor=1.0)),
        old=False,
    ),
    "nanochat": Variant(
        "NanoChat",
        {**shape(32, 72, 2, 4, 2, 131), "pad_token_id": 0},
        ({"final_logit_softcapping": 1.0}, {"rms_norm_eps": 0.5}),
        old=False,
    ),
    "hyperclovax": Variant(
        "HyperCLOVAX",
        {
            **shape(32, 72, 2, 4, 2, 131),
            "embedding_multiplier": 2.0,
            "logits_scaling": 0.5,
            "residual_multiplier": 0.3,
            "attention_multiplier": 0.2,
        },
        (
            {"use_post_norm": False},
            {"embedding_multiplier": 1.0},
            {"logits_scaling": 1.0},
            {"residual_multiplier": 1.0},
            {"attention_multiplier": None},
        ),
        old=False,
    ),
    "granite-swa": Variant(
        "GraniteSWA",
        {
            **shape(32, 56, 4, 4, 2, 131),
            "sliding_window": 9,
            "layer_rope_theta": [0, 10000, 500, 10000],
        },
        (
            {"sliding_window": 12},
            {"layer_rope_theta": [10000] * 4},
            {"layer_rope_theta": [0, 10000, 10000, 10000]},
        ),
        old=False,
    ),
    "apertus": Variant(
        "Apertus",
        {
            **shape(32, 72, 2, 4, 2, 131, pad_token_id=0),
            **rope(
                "llama3",
                500000.0,
                factor=8.0,
                low_freq_factor=1.0,
                high_freq_factor=4.0,
                original_max_position_embeddings=32,
            ),
        },
        ({"hidden_act": "relu2"}, rope("default", 500000.0)),
        old=False,
    ),
    "gptj": Variant(
        "GPTJ",
        {**GPT, "rotary_dim": 4, "tie_word_embeddings": True},
        ({"rotary_dim": 8}, {"tie_word_embeddings": False}),
        old=False,
    ),
    "falcon": Variant(
        "Falcon",
        {
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_kv_heads": 2,
            "vocab_size": 131,
            "max_position_embeddings": 96,
            "new_decoder_architecture": True,
        },
        ({"num_kv_heads": 4}, {"num_ln_in_parallel_attn": 1}),
        old=False,
    ),
    # Mamba-2 beside attention without rotary embedding, one group of heads over all ranks.
    "granite4-hybrid": Variant(
        "GraniteMoeHybrid",
        {
            **shape(32, 16, 3, 4, 2, 131),
            **GRANITE4,
            "layer_types": ["mamba", "attention", "mamba"],
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "mamba_n_heads": 8,
            "mamba_d_state": 16,
        },
        (
            {"position_embedding_type": "rope"},
            {"layer_types": ["mamba", "mamba", "attention"]},
            {"residual_multiplier": 1.0},
            {"mamba_d_conv": 2},
            {"mamba_conv_bias": False},
            {"num_local_experts": 0},
            {"rms_norm_eps": 0.5},
        ),
        smooth=False,
        old=False,
    ),
    # Layers of one block each: Mamba-2, squared ReLU, attention, a mixture of narrower experts.
    "nemotron-h": Variant(
        "NemotronH",
        {
            **{k: v for k, v in SMALL.items() if k != "num_hidden_layers"},
            "head_dim": 12,
            "layers_block_type": ["mamba", "mlp", "attention", "moe"],
            "mamba_num_heads": 8,
            "mamba_head_dim": 8,
            "n_groups": 2,
            "ssm_state_size": 12,
            "time_step_min": 1e-30,
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "n_group": 2,
            "topk_group": 1,
            "moe_latent_size": 16,
            "moe_intermediate_size": 24,
            "moe_shared_expert_intermediate_size": 40,
            "routed_scaling_factor": 1.5,
            "use_bias": True,
        },
        (
            {"n_groups": 4},
            {"layers_block_type": ["attention", "mlp", "mamba", "moe"]},
            {"use_bias": False},
            {"moe_latent_size": None},
            {"routed_scaling_factor": 1.0},
            {"norm_topk_prob": False},
            {"topk_group": 2},
            {"layer_norm_epsilon": 0.5},
        ),
        smooth=False,
        old=False,
    ),
    # Mamba-2 and attention side by side, and the multipliers of both.
    "falcon-h1": Variant(
        "FalconH1",
        {
            **shape(32, 48, 2, 4, 2, 131, head_dim=12),
            "mamba_d_ssm": 48,
            "mamba_n_heads": 8,
            "mamba_n_groups": 2,
            "mamba_d_state": 12,
            "mlp_multipliers": [0.9, 0.6],
            "ssm_multipliers": FALCON,
            "ssm_in_multiplier": 1.25,
            "ssm_out_multiplier": 0.4,
            "attention_in_multiplier": 0.8,
            "attention_out_multiplier": 0.9,
            "key_multiplier": 1.5,
            "embedding_multiplier": 3.0,
            "lm_head_multiplier": 0.3,
        },
        (
            {"mlp_multipliers": [1.0, 0.6]},
            {"mlp_multipliers": [0.9, 1.0]},
            *(
                {"ssm_multipliers": [1.0 if j == i else m for j, m in enumerate(FALCON)]}
                for i in range(5)
            ),
            {"ssm_in_multiplier": 1.0},
            {"ssm_out_multiplier": 1.0},
            {"attention_in_multiplier": 1.0},
            {"attention_out_multiplier": 1.0},
            {"key_multiplier": 1.0},
            {"embedding_multiplier": 1.0},
            {"mamba_n_groups": 1},
            {"mamba_rms_norm": True},
        ),
        old=False,
    ),
    "lfm2": Variant(
        "Lfm2",
        {
            **shape(32, 72, 4, 4, 2, 131),
            "full_attn_idxs": [1],
            "conv_bias": True,
            "block_multiple_of": 16,
        },
        (
            {"conv_bias": False},
            {"conv_L_cache": 4},
            {"full_attn_idxs": [1, 2]},
            {"norm_eps": 0.5},
        ),
    ),
    "ministral3": Variant(
        "Ministral3",
        {k: v for k, v in MINISTRAL_TEXT.items() if k != "model_type"} | {"sliding_window": 11},
        (
            {"sliding_window": None},
            {"rope_parameters": {**MINISTRAL_TEXT["rope_parameters"], "llama_4_scaling_beta": 0.0}},
        ),
        old=False,
    ),
    "llama4": Variant(
        "Llama4",
        beside(LLAMA4_TEXT, LLAMA4_VISION, image_token_index=99),
        (
            of_text(LLAMA4_TEXT, {"attention_chunk_size": 17}),
            of_text(LLAMA4_TEXT, {"attn_temperature_tuning": False}),
            of_text(LLAMA4_TEXT, {"floor_scale": 6}),
            of_text(LLAMA4_TEXT, {"use_qk_norm": False}),
            of_text(LLAMA4_TEXT, {"no_rope_layer_interval": 4}),
            of_text(LLAMA4_TEXT, {"moe_layers": [2]}),
        ),
        head="ForConditionalGeneration",
        old=False,
        smooth=False,
    ),
    "ernie4.5-moe": Variant(
        "Ernie4_5_Moe",
        {
            **shape(32, 56, 3, 4, 2, 131),
            "moe_num_experts": 6,
            "moe_k": 2,
            "moe_num_shared_experts": 2,
            "moe_intermediate_size": 16,
            "moe_layer_end_index": 1,
        },
        ({"moe_k": 3}, {"moe_num_shared_experts": 1}, {"moe_layer_end_index": 2}),
        smooth=False,
        old=False,
    ),
    "hunyuan-moe": Variant(
        "HunYuanMoEV1",
        {
            **shape(32, 16, 2, 4, 2, 131, head_dim=16),
            "num_experts": 6,
            "moe_topk": 2,
            **rope("dynamic", alpha=50.0, factor=1.0),
        },
        ({"moe_topk": 3}, rope("dynamic", alpha=40.0, factor=1.0)),
        smooth=False,
        old=False,
    ),
    "mistral4": Variant(
        "Mistral4",
        {
            **shape(32, 56, 2, 4, 4, 131),
            **DEEPSEEK_EXPERTS,
            "first_k_dense_replace": 1,
            "q_lora_rank": 24,
            "kv_lora_rank": 16,
            "qk_nope_head_dim": 8,
            "qk_rope_head_dim": 8,
            "v_head_dim": 12,
            **MINISTRAL_ROPE,
        },
        (
            {"routed_scaling_factor": 1.0},
            {"rope_parameters": {**MINISTRAL_ROPE["rope_parameters"], "llama_4_scaling_beta": 0.0}},
        ),
        smooth=False,
        old=False,
    ),
    "afmoe": Variant(
        "Afmoe",
        {
            **shape(32, 40, 2, 4, 2, 131, head_dim=16),
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "num_shared_experts": 1,
            "moe_intermediate_size": 16,
            "route_scale": 1.5,
            "sliding_window": 9,
            "global_attn_every_n_layers": 2,
            "mup_enabled": True,
        },
        (
            {"route_scale": 1.0},
            {"num_dense_layers": 0},
            {"sliding_window": 12},
            {"mup_enabled": False},
        ),
        smooth=False,
        old=False,
    ),
    "olmo": Variant(
        "Olmo",
        shape(32, 72, 2, 4, 2, 131, clip_qkv=0.8),
        ({"clip_qkv": None}, {"clip_qkv": 0.9}),
        old=False,
    ),
    # A layer norm of each head, and one of all heads.
    "stablelm": Variant(
        "StableLm",
        {
            **shape(32, 72, 2, 4, 2, 131),
            "qk_layernorm": True,
            "use_parallel_residual": True,
            "partial_rotary_factor": 0.5,
        },
        ({"qk_layernorm": False}, {"use_parallel_residual": False}, {"layer_norm_eps": 0.5}),
        old=False,
    ),
    "persimmon": Variant(
        "Persimmon",
        shape(32, 48, 2, 4, 4, 131),
        ({"qk_layernorm": False}, {"layer_norm_eps": 0.5}),
        old=False,
    ),
    # Sparse attention where it selects all positions. The second layer's indexer is the first's.
    "glm-moe-dsa": Variant(
        "GlmMoeDsa",
        {
            **shape(32, 56, 2, 4, 4, 131),
            **DEEPSEEK_EXPERTS,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "first_k_dense_replace": 1,
            "q_lora_rank": 24,
            "kv_lora_rank": 16,
            "qk_nope_head_dim": 12,
            "qk_rope_head_dim": 8,
            "v_head_dim": 12,
            "index_topk": 64,
            "index_head_dim": 8,
            "index_n_heads": 2,
            "indexer_types": ["full", "shared"],
        },
        ({"routed_scaling_factor": 1.0}, {"index_topk": 40}),
        smooth=False,
        old=False,
    ),
    "phimoe": Variant(
        "Phimoe",
        {
            **shape(32, 16, 2, 4, 2, 131),
            "num_local_experts": 6,
            "router_jitter_noise": 0.3,
            "lm_head_bias": True,
            "attention_bias": True,
            **PHI_ROPE,
        },
        (
            {"router_jitter_noise": 0.01},
            {"lm_head_bias": False},
            {"attention_bias": False},
            {"rope_parameters": {**PHI_ROPE["rope_parameters"], "short_mscale": 1.0}},
        ),
        smooth=False,
        old=False,
    ),
    "cohere2-moe": Variant(
        "Cohere2Moe",
        {
            **shape(32, 16, 3, 4, 2, 131, head_dim=16),
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "num_shared_experts": 2,
            "expert_selection_fn": "sigmoid",
            "first_k_dense_replace": 1,
            "prefix_dense_intermediate_size": 40,
            "sliding_window": 9,
            "sliding_window_pattern": 2,
            "logit_scale": 0.25,
        },
        (
            {"expert_selection_fn": "softmax"},
            {"norm_topk_prob": False},
            {"shared_expert_combination_strategy": "sum"},
            {"prefix_dense_sliding_window_pattern": 2},
            {"sliding_window": 12},
            {"rms_norm_eps": 1e-5},
        ),
        smooth=False,
        old=False,
    ),
}


def build(variant: Variant, changes: Settings) -> transformers.PreTrainedModel:
    """A model whose parameters are random, each by its name: a change to one keeps the others."""
    config = getattr(transformers, variant.model + "Config")(
        **copy.deepcopy({**variant.config, **changes})
    )
    config._attn_implementation = "eager"
    model = variant.type(config)
    with torch.no_grad():
        scalars = [(n, b) for n, b in model.named_buffers() if n.endswith("layer_scalar")]
        for name, p in [*model.named_parameters(), *scalars]:
            seed = torch.Generator().manual_seed(sum((i + 1) * ord(c) for i, c in enumerate(name)))
            noise = torch.randn(p.shape, generator=seed)
            if p.dim() > 1:
                # Large enough for attention that picks and activations that bend.
                p.copy_(noise * 1.5 / p.shape[-1] ** 0.5)
            else:
                one = "norm" in name and name.endswith("weight") or "scal" in name
                p.copy_(noise * 0.3 + (1.0 if one else 0.0))
    return model.to(variant.dtype).eval()


def logits(model: transformers.PreTrainedModel, ids: list[int]) -> torch.Tensor:
    if isinstance(model, transformers.Llama4ForConditionalGeneration):
        model = model.language_model  # the whole's forward fails in release 5.24
    with torch.no_grad():
        return model(torch.tensor([ids]), use_cache=False).logits[0].float()


def load(
    folder: pathlib.Path, kind: type[transformers.PreTrainedModel]
) -> transformers.PreTrainedModel:
    return kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


@contextlib.contextmanager
def rounded(
    model: transformers.PreTrainedModel, dtype: torch.dtype
) -> typing.Iterator[transformers.PreTrainedModel]:
    """The model with weights, inputs of linear layers, keys and values rounded to dtype.

    Sums are of float32.
    """

    def cut(x: torch.Tensor) -> torch.Tensor:
        return x.to(dtype).float()

    model = copy.deepcopy(model)
    for module in model.modules():
        if isinstance(module, torch.nn.Linear | transformers.pytorch_utils.Conv1D):
            module.weight.data = cut(module.weight.data)
            module.register_forward_pre_hook(lambda _, args: (cut(args[0]), *args[1:]))
    attentions = [m for m in model.modules() if type(m).__name__.endswith("Attention")]
    modeling: typing.Any = importlib.import_module(type(attentions[-1]).__module__)
    plain = getattr(modeling, "eager_attention_forward", None)

    def attention(
        module: torch.nn.Module,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *a: typing.Any,
        **kw: typing.Any,
    ) -> typing.Any:
        return plain(module, q, cut(k), cut(v), *a, **kw)

    if plain is None:  # Falcon's: keys and values are as they are
        yield model
        return
    modeling.eager_attention_forward = attention
    try:
        yield model
    finally:
        modeling.eager_attention_forward = plain


def version4(config: Settings) -> Settings:
    """The same configuration with the keys of transformers 4."""
    old = {
        k: v
        for k, v in config.items()
        if k not in ("rope_parameters", "dtype", "layer_types", "num_local_experts")
    }
    old["torch_dtype"] = config["dtype"]
    if "num_local_experts" in config:
        old["num_experts"] = config["num_local_experts"]
    if "rope_parameters" in config:
        scaling = dict(config["rope_parameters"])
        old["rope_theta"] = scaling.pop("rope_theta")
        old["rope_scaling"] = None if scaling["rope_type"] == "default" else scaling
    old["transformers_version"] = "4.51.0"
    return old


def write_json(path: pathlib.Path, value: typing.Any, indent: int | None = None) -> None:
    path.write_text(json.dumps(value, indent=indent, sort_keys=indent is not None) + "\n")


def check_version4(
    folder: pathlib.Path,
    kind: type[transformers.PreTrainedModel],
    ids: list[int],
    want: torch.Tensor,
) -> None:
    """transformers itself must read the old configuration as the same model."""
    with tempfile.TemporaryDirectory() as scratch:
        old = pathlib.Path(scratch)
        (old / "config.json").write_bytes((folder / "config.v4.json").read_bytes())
        (old / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
        assert torch.equal(logits(load(old, kind), ids), want), "config.v4.json is another model"


def make(name: str, variant: Variant) -> None:
    folder = HERE / name
    ids = [(i * i * 7 + i * 31 + 3) % variant.vocab for i in range(PROMPT)]
    source = build(variant, {})
    source.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    model = load(folder, variant.type)
    full = logits(model, ids)
    std = full[-1].std().item()
    if variant.old:
        old = version4(json.loads((folder / "config.json").read_text()))
        write_json(folder / "config.v4.json", old, indent=2)
        check_version4(folder, variant.type, ids, full)
    for change in variant.without:
        other = logits(build(variant, change).float(), ids)
        moved = ((other - full).abs().max() / std).item()
        assert moved > NOTICEABLE, f"{name} is the same with {change}: {moved}"

    greedy: list[int] = []
    margins: list[float] = []
    last = full[-1]
    for _ in range(GREEDY):
        best = last.topk(2)
        greedy.append(int(best.indices[0]))
        margins.append((best.values[0] - best.values[1]).item())
        last = logits(model, ids + greedy)[-1]

    goldens: Settings = {
        "prompts": [{"ids": ids, "greedy": greedy, "margins": margins, "std": std}]
    }
    if variant.smooth:
        for key, dtype in (("bf16_max_error", torch.bfloat16), ("fp16_max_error", torch.float16)):
            with rounded(model, dtype) as coarse:
                goldens[key] = ((logits(coarse, ids) - full).abs().max() / std).item()
    write_json(folder / "goldens.json", goldens)
    save_file({"logits": full.contiguous()}, folder / "full_logits.st")
    size = sum(f.stat().st_size for f in folder.iterdir())
    errors = {k: f"{v:.2g}" for k, v in goldens.items() if k != "prompts"}
    print(f"{name}: {size >> 10} KiB, least margin {min(margins) / std:.3g} std, {errors}")


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    for name in sys.argv[1:] or VARIANTS:
        make(name, VARIANTS[name])


if __name__ == "__main__":
    main()
