#!/usr/bin/env python3
"""Make a tiny checkpoint of a family and its goldens with transformers.

    pip install torch transformers safetensors
    scripts/goldens.py CONFIG.json testdata/models/NAME-tiny

CONFIG.json is a small configuration as published checkpoints of the family have it. The folder
gets random weights in bfloat16 in the published layout, config.json, goldens.json (see
internal/rank/model/golden_test.go) and full_logits.st. What transformers computes is in float32,
from the rounded weights; a prompt is kept only where float64 agrees with it.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import shutil

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

LENGTHS = (7, 33, 5, 48, 80, 100)
FULL = (7, 33)
GREEDY = 24
TOP = 20


def spread(model: torch.nn.Module) -> None:
    """Draw weights that make each part of the model matter."""
    generator = torch.Generator().manual_seed(7)
    for name, x in model.named_parameters():
        noise = torch.randn(x.shape, generator=generator)
        if x.dim() == 1 and "norm" in name:
            x.data = 1 + 0.1 * noise
        elif x.dim() == 1:
            x.data = 0.3 * noise
        else:
            x.data = noise * (1.0 if "embed" in name else 2.0) / x.shape[-1] ** 0.5
    for name, x in model.named_buffers():
        if name.endswith("correction_bias"):
            x.data = 0.2 * torch.randn(x.shape, generator=generator)


def greedy(model: torch.nn.Module, ids: list[int], steps: int) -> tuple[list[int], list[float]]:
    """Return the most likely tokens after ids, and how far the second ones are behind."""
    ids, margins = list(ids), []
    for _ in range(steps):
        best = model(torch.tensor([ids])).logits[0, -1].topk(2)
        ids.append(int(best.indices[0]))
        margins.append(float(best.values[0] - best.values[1]))
    return ids[-steps:], margins


def rounded(model: torch.nn.Module, ids: list[int]) -> torch.Tensor:
    """Return the last logits with the input of every linear layer rounded to bfloat16."""
    hooks = [
        m.register_forward_pre_hook(lambda _, x: (x[0].bfloat16().float(), *x[1:]))
        for m in model.modules()
        if isinstance(m, torch.nn.Linear)
    ]
    logits = model(torch.tensor([ids])).logits[0, -1]
    for hook in hooks:
        hook.remove()
    return logits


@torch.no_grad()
def main() -> None:
    """Write the folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", type=pathlib.Path)
    parser.add_argument("folder", type=pathlib.Path)
    args = parser.parse_args()
    config = AutoConfig.from_pretrained(args.config)
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    model = AutoModelForCausalLM.from_config(config).eval()
    spread(model)
    model.load_state_dict({k: v.bfloat16().float() for k, v in model.state_dict().items()})
    model.save_pretrained(args.folder)
    shutil.copy(args.config, args.folder / "config.json")
    weights = load_file(args.folder / "model.safetensors")
    save_file({k: v.bfloat16() for k, v in weights.items()}, args.folder / "model.safetensors")
    double = AutoModelForCausalLM.from_config(config).eval()
    double.load_state_dict(model.state_dict())
    double = double.double()

    generator = torch.Generator().manual_seed(11)
    prompts, full, worst = [], {}, 0.0
    for n in LENGTHS:
        while True:
            ids = torch.randint(3, config.vocab_size, (n,), generator=generator).tolist()
            logits = model(torch.tensor([ids])).logits[0]
            exact = double(torch.tensor([ids])).logits[0]
            std = float(logits[-1].std())
            tokens, margins = greedy(model, ids, GREEDY)
            if (logits - exact).abs().max() < 1e-4 * std and min(margins) > 1e-3 * std:
                break
        top = logits[-1].topk(TOP)
        pairs = zip(top.indices.tolist(), top.values.tolist(), strict=True)
        prompts.append(
            {
                "ids": ids,
                "last_logits_top": [[i, v] for i, v in pairs],
                "std": std,
                "greedy": tokens,
                "margins": margins,
            }
        )
        worst = max(worst, float((rounded(model, ids) - logits[-1]).abs().max()) / std)
        if n in FULL:
            full[f"logits_{n}"] = logits.contiguous()
    text = json.dumps({"prompts": prompts, "bf16_activation_max_error": worst})
    (args.folder / "goldens.json").write_text(text)
    save_file(full, args.folder / "full_logits.st")


if __name__ == "__main__":
    main()
