"""Lists the linear modules of each family of models, by the names that adapters have them under.

families.json has of each family a tiny configuration, or the folder of testdata that has one, and
of the class that transformers has for it the modules that are nn.Linear or Conv1D, without the
output head, each with the output and input features of those of that name: what PEFT's adapters
can be of. Numbers of layers and of blocks are left out of the names.

Needs torch and transformers. `python make.py` rewrites the file.
"""

import json
import pathlib
import re
import typing

import torch
import transformers

HERE = pathlib.Path(__file__).parent
Settings = dict[str, typing.Any]

SHAPE = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
GROUPS = {"n_group": 1, "topk_group": 1, "first_k_dense_replace": 1}
LATENT = {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
}
DEEPSEEK = {
    **SHAPE,
    **LATENT,
    **GROUPS,
    "num_key_value_heads": 4,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
}
INDEXER = {"index_n_heads": 2, "index_head_dim": 16, "index_topk": 128}
MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_n_groups": 1, "mamba_d_state": 16}

# Families of which no folder of testdata is, or none whose widths are multiples of 32, by
# model_type.
CONFIGS: dict[str, Settings] = {
    "arcee": SHAPE,
    "bamba": {**SHAPE, **MAMBA, "attn_layer_indices": [1]},
    "cohere2_moe": {
        **SHAPE,
        "intermediate_size": 32,
        "prefix_dense_intermediate_size": 64,
        "first_k_dense_replace": 1,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "num_shared_experts": 1,
        "head_dim": 8,
    },
    "deepseek_v3": DEEPSEEK,
    "deepseek_v32": {**DEEPSEEK, **INDEXER},
    "exaone_moe": {
        **SHAPE,
        **EXPERTS,
        **GROUPS,
        "num_shared_experts": 1,
        "head_dim": 8,
        "mlp_layer_types": ["dense", "sparse"],
        "sliding_window": 16,
    },
    "falcon_h1": {**SHAPE, **MAMBA, "head_dim": 8, "mamba_d_ssm": 64},
    "flex_olmo": {**SHAPE, **EXPERTS},
    "gemma4_unified": {"text_config": {**SHAPE, "head_dim": 8, "global_head_dim": 8}},
    "glm_moe_dsa": {**DEEPSEEK, **INDEXER},
    "gpt_bigcode": {"n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 64, "vocab_size": 128},
    "granitemoehybrid": {
        **SHAPE,
        **MAMBA,
        "layer_types": ["mamba", "attention"],
        "num_local_experts": 0,
        "shared_intermediate_size": 48,
    },
    "helium": {**SHAPE, "head_dim": 8},
    "hunyuan_v1_dense": {**SHAPE, "head_dim": 8},
    "hy_v3": {
        **SHAPE,
        **EXPERTS,
        "num_shared_experts": 1,
        "first_k_dense_replace": 1,
        "head_dim": 8,
    },
    "internlm3": {**SHAPE, "head_dim": 8},
    "iquestcoder": {**SHAPE, "head_dim": 8},
    "jais2": SHAPE,
    "lfm2_moe": {
        **SHAPE,
        **EXPERTS,
        "num_dense_layers": 1,
        "layer_types": ["conv", "full_attention"],
    },
    "mellum": {**SHAPE, **EXPERTS, "head_dim": 8},
    "minicpm3": {**SHAPE, **LATENT},
    "mixtral": {**SHAPE, "num_local_experts": 4, "num_experts_per_tok": 2},
    "nemotron_h": {
        **SHAPE,
        "head_dim": 8,
        "layers_block_type": ["mamba", "moe", "attention", "mlp"],
        "num_hidden_layers": 4,
        "mamba_num_heads": 8,
        "mamba_head_dim": 8,
        "n_groups": 1,
        "ssm_state_size": 16,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "moe_shared_expert_intermediate_size": 32,
        "n_shared_experts": 1,
        "n_group": 1,
        "topk_group": 1,
    },
    "olmo": SHAPE,
    "persimmon": {**SHAPE, "num_key_value_heads": 4},
    "phi": SHAPE,
    "phimoe": {**SHAPE, "intermediate_size": 32, "num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen2_moe": {**SHAPE, **EXPERTS, "shared_expert_intermediate_size": 64},
    "qwen3_5_text": {
        **SHAPE,
        "head_dim": 8,
        "layer_types": ["linear_attention", "full_attention"],
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
    },
    "solar_open": {
        **SHAPE,
        **GROUPS,
        "first_k_dense_replace": 0,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "head_dim": 8,
    },
    "stablelm": SHAPE,
    "vaultgemma": {**SHAPE, "head_dim": 8},
}
# Families of which transformers has no class.
OTHERS: dict[str, Settings] = {
    "baichuan": SHAPE,
    "internlm2": {**SHAPE, "bias": False},
    "minicpm": SHAPE,
}
# Folders of testdata; of a family that several are of, one.
FOLDERS = """
models/cohere2-tiny models/deepseek-v3-tiny models/deepseekv2-tiny models/gemma2-tiny
models/gemma3-tiny models/glm4-tiny models/glm4moe-tiny models/gpt-oss-tiny models/gptneox-tiny
models/granite-tiny models/granitemoe-tiny models/granitemoeshared-tiny models/llama-tiny
models/minimaxm2-tiny models/mixtral-tiny models/olmo2-tiny models/olmo3-tiny models/phi3-tiny
models/qwen2-tiny models/qwen2moe-tiny models/qwen3-tiny models/qwen3moe-tiny
models/qwen3next-tiny models/smollm3-tiny models/starcoder2-tiny variants/afmoe variants/apertus
variants/cohere variants/dots1 variants/ernie4.5 variants/ernie4.5-moe variants/exaone4
variants/falcon variants/falcon-h1 variants/gemma variants/gemma3-vision variants/gemma4-moe
variants/gemma4-small variants/glm variants/glm4-moe-lite variants/gpt2 variants/gptj
variants/granite-swa variants/granite4-hybrid variants/hunyuan-moe variants/hyperclovax
variants/lfm2 variants/llama4 variants/ministral3 variants/mistral-window
variants/mistral3-ministral variants/mistral3-vision variants/mistral4 variants/nanochat
variants/nemotron variants/nemotron-h variants/olmoe variants/opt-post-norm variants/qwen2.5-vl
variants/qwen3-vl variants/qwen3-vl-moe variants/qwen3.5-moe-vision variants/qwen3.5-vision
variants/seed-oss
""".split()


Shapes = dict[str, list[list[int]]]


def modules(model: torch.nn.Module) -> Shapes:
    found: Shapes = {}
    for name, module in model.named_modules():
        if module is model.get_output_embeddings():
            continue
        if isinstance(module, torch.nn.Linear):
            shape = [module.out_features, module.in_features]
        elif isinstance(module, transformers.pytorch_utils.Conv1D):
            shape = [module.nf, module.nx]
        else:
            continue
        shapes = found.setdefault(re.sub(r"\.\d+(?=\.|$)", ".N", name), [])
        if shape not in shapes:
            shapes.append(shape)
    return found


def of(config: transformers.PretrainedConfig) -> Shapes:
    name = (config.architectures or [None])[0]
    with torch.device("meta"):
        if name:
            return modules(getattr(transformers, name)(config))
        return modules(transformers.AutoModelForCausalLM.from_config(config))


def read(path: pathlib.Path) -> transformers.PretrainedConfig:
    raw = json.loads(path.read_text())
    if "time_step_limit" in raw:  # tagged infinity
        raw["time_step_limit"] = [0.0, float("inf")]
    return transformers.CONFIG_MAPPING[raw["model_type"]].from_dict(raw)


def main() -> None:
    families: dict[str, Settings] = {}
    for folder in FOLDERS:
        config = read(HERE.parent / folder / "config.json")
        families[folder] = {"modules": of(config)}
    for kind, settings in CONFIGS.items():
        config = transformers.CONFIG_MAPPING[kind](**settings)
        families[kind] = {"config": {"model_type": kind, **settings}, "modules": of(config)}
    for kind, settings in OTHERS.items():
        families[kind] = {"config": {"model_type": kind, **settings}}
    lines = [f"{json.dumps(name)}: {json.dumps(f)}" for name, f in sorted(families.items())]
    (HERE / "families.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
