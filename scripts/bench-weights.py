#!/usr/bin/env python3
"""Measures an update of a model of 0.5 B parameters (1 GB) against one copy of its bytes.

EAGLERAY_BINARY=bin/eagleray PYTHONPATH=python scripts/bench-weights.py [--tensor-parallel-size 2]
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

from eagleray import LLM
from eagleray.weights import Raw, WeightTransfer

WIDTH, INNER, LAYERS, VOCAB, KV = 896, 4864, 24, 151936, 128
CONFIG = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": WIDTH,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "vocab_size": VOCAB,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}


def shapes() -> dict[str, list[int]]:
    """Return the tensors of the model."""
    names = {"model.embed_tokens.weight": [VOCAB, WIDTH], "model.norm.weight": [WIDTH]}
    for i in range(LAYERS):
        layer = f"model.layers.{i}."
        for part, rows in (("q", WIDTH), ("k", KV), ("v", KV)):
            names[f"{layer}self_attn.{part}_proj.weight"] = [rows, WIDTH]
            names[f"{layer}self_attn.{part}_proj.bias"] = [rows]
        names[f"{layer}self_attn.o_proj.weight"] = [WIDTH, WIDTH]
        names[f"{layer}mlp.gate_proj.weight"] = [INNER, WIDTH]
        names[f"{layer}mlp.up_proj.weight"] = [INNER, WIDTH]
        names[f"{layer}mlp.down_proj.weight"] = [WIDTH, INNER]
        names[f"{layer}input_layernorm.weight"] = [WIDTH]
        names[f"{layer}post_attention_layernorm.weight"] = [WIDTH]
    return names


def copied(tensors: dict[str, Raw]) -> float:
    """Return how long it takes to copy the bytes once into memory that is new."""
    begun = time.monotonic()
    fd = os.memfd_create("copy")
    for tensor in tensors.values():
        os.write(fd, tensor.data)
    os.close(fd)
    return time.monotonic() - begun


def main() -> None:
    """Measure each transport a few times, and print the best."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tensor-parallel-size", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    tensors = {}
    for name, shape in shapes().items():
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        tensors[name] = Raw((b"\x12\x3c" * count), "bfloat16", shape)
    size = sum(len(t.data) for t in tensors.values())
    copy = min(copied(tensors) for _ in range(options.rounds))
    print(f"{size / 1e9:.3f} GB; one copy takes {copy:.3f} s")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(CONFIG))
        with LLM(
            folder,
            load_format="dummy",
            skip_tokenizer_init=True,
            dtype="bfloat16",
            max_model_len=256,
            tensor_parallel_size=options.tensor_parallel_size,
        ) as llm:
            for transport in ("shm", "unix"):
                transfer, took = WeightTransfer(llm, transport), []
                for _ in range(options.rounds):
                    begun = time.monotonic()
                    transfer.update(tensors)
                    took.append(time.monotonic() - begun)
                print(f"{transport}: {min(took):.3f} s, {min(took) / copy:.2f} of a copy")


if __name__ == "__main__":
    main()
