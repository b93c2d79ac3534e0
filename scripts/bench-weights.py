#!/usr/bin/env python3
"""Measures an update of a model of 0.5 B parameters (1 GB) against one copy of its bytes.

Before each update one copy is measured, on new pages too; the first update, for which the system
finds the memory, counts apart. With shm the trainer's part is the copy into memory that it hands
over, and update_weights checks it; with unix update_weights is all the transfer.

EAGLERAY_BINARY=bin/eagleray PYTHONPATH=python scripts/bench-weights.py [--tensor-parallel-size 2]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, Optional

from eagleray import LLM
from eagleray.weights import Ask, Raw, WeightTransfer

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


class Timed:
    """An engine, and how long it was asked for each route."""

    def __init__(self, engine: Ask) -> None:
        self._engine = engine
        self.took: dict[str, float] = {}

    def request(
        self, route: str, body: Optional[dict[str, Any]] = None, method: str = "POST"
    ) -> Any:
        """Ask a route, and return the body of the answer."""
        begun = time.monotonic()
        answer = self._engine.request(route, body, method)
        self.took[route] = time.monotonic() - begun
        return answer


def report(transport: str, copies: list[float], updates: list[dict[str, float]]) -> None:
    """Print the phases of the quickest update, and all updates against the copies beside them."""
    first, later = updates[0], updates[1:] or updates
    best = min(later, key=lambda u: u["all"])
    copy, took = statistics.median(copies), statistics.median(u["all"] for u in later)
    phases = ", ".join(f"{name} {value:.3f}" for name, value in best.items() if name != "all")
    print(f"{transport}: median {took:.3f} s, {took / copy:.2f} of a median copy ({copy:.3f} s)")
    print(f"  best {best['all']:.3f} s, {best['all'] / min(copies):.2f} of the best copy: {phases}")
    print(f"  first {first['all']:.3f} s")


def main() -> None:
    """Measure updates by each transport, each beside a copy."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tensor-parallel-size", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=8)
    options = parser.parse_args()
    tensors = {}
    for name, shape in shapes().items():
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        tensors[name] = Raw((b"\x12\x3c" * count), "bfloat16", shape)
    print(f"{sum(len(t.data) for t in tensors.values()) / 1e9:.3f} GB")
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
            engine = Timed(llm)
            for transport in ("shm", "unix"):
                transfer = WeightTransfer(engine, transport)
                copies: list[float] = []
                updates: list[dict[str, float]] = []
                for _ in range(options.rounds):
                    copies.append(copied(tensors))
                    begun = time.monotonic()
                    transfer.update(tensors)
                    took = time.monotonic() - begun
                    received = engine.took["/update_weights"]
                    loaded = engine.took["/finish_weight_update"]
                    updates.append(
                        {
                            "all": took,
                            "trainer's part": took - received - loaded,
                            "update_weights": received,
                            "finish_weight_update": loaded,
                        }
                    )
                report(transport, copies, updates)


if __name__ == "__main__":
    main()
