"""The built-in model (a Qwen3) in torch: what is needed for gradients, and no more."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional


def read(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file of bfloat16 tensors."""
    raw = path.read_bytes()
    (length,) = struct.unpack_from("<Q", raw)
    header = json.loads(raw[8 : 8 + length])
    header.pop("__metadata__", None)
    tensors = {}
    for name, t in header.items():
        begin, end = (8 + length + at for at in t["data_offsets"])
        bits = np.frombuffer(raw[begin:end], np.int16).copy()
        tensors[name] = torch.from_numpy(bits).view(torch.bfloat16).reshape(t["shape"])
    return tensors


class Policy:
    """A model whose log-probabilities have gradients."""

    def __init__(self, folder: Path) -> None:
        self.config = json.loads((folder / "config.json").read_text())
        self.weights = {
            name: tensor.float().requires_grad_()
            for name, tensor in read(folder / "model.safetensors").items()
        }

    def state_dict(self) -> dict[str, Tensor]:
        """Return the weights as the engine gets them."""
        return {name: w.detach().to(torch.bfloat16) for name, w in self.weights.items()}

    def logprobs(self, tokens: Tensor) -> Tensor:
        """Return the log-probability of each token but the first: [sequences][length - 1]."""
        logits = self._logits(tokens[:, :-1])
        return functional.log_softmax(logits, -1).gather(-1, tokens[:, 1:, None])[..., 0]

    def _logits(self, tokens: Tensor) -> Tensor:
        c, w = self.config, self.weights
        batch, length = tokens.shape
        heads, kv, width = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        half = torch.arange(0, width, 2) / width
        angles = torch.arange(length)[:, None] * c["rope_theta"] ** -half
        cos, sin = (f(torch.cat([angles, angles], -1))[:, None] for f in (torch.cos, torch.sin))
        later = torch.full((length, length), -torch.inf).triu(1)

        def norm(x: Tensor, name: str) -> Tensor:
            size = x.pow(2).mean(-1, keepdim=True)
            return x * torch.rsqrt(size + c["rms_norm_eps"]) * w[name + ".weight"]

        def linear(x: Tensor, name: str) -> Tensor:
            return x @ w[name + ".weight"].T

        def rotate(x: Tensor) -> Tensor:
            a, b = x.chunk(2, -1)
            return x * cos + torch.cat([-b, a], -1) * sin

        x = w["model.embed_tokens.weight"][tokens]
        for layer in range(c["num_hidden_layers"]):
            name = f"model.layers.{layer}."
            attention = name + "self_attn."
            y = norm(x, name + "input_layernorm")
            q = linear(y, attention + "q_proj").view(batch, length, heads, width)
            k = linear(y, attention + "k_proj").view(batch, length, kv, width)
            v = linear(y, attention + "v_proj").view(batch, length, kv, width)
            q = rotate(norm(q, attention + "q_norm"))
            k = rotate(norm(k, attention + "k_norm")).repeat_interleave(heads // kv, 2)
            v = v.repeat_interleave(heads // kv, 2)
            scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / width**0.5 + later
            y = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v).flatten(2)
            x = x + linear(y, attention + "o_proj")
            y = norm(x, name + "post_attention_layernorm")
            gate = functional.silu(linear(y, name + "mlp.gate_proj"))
            x = x + linear(gate * linear(y, name + "mlp.up_proj"), name + "mlp.down_proj")
        return norm(x, "model.norm") @ w["model.embed_tokens.weight"].T
