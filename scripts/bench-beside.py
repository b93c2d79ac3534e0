#!/usr/bin/env python3
"""Tokens a second of servers with other flags, beside those of one without.

The servers of one model take turns, in an order drawn for each round, at the same prompts. All must
give the same tokens. A ratio is the median of those of the rounds: by the clock, by the processor
time of the servers, and of the steps that they took.

  scripts/bench-beside.py --model DIR [--rounds 7] [--streams 1] [--tokens 128] [--prompt 64]
      [--temperature 0] [--vocabulary 512] [--text FILE] [--beside 'NAME=FLAGS' …]
      [--adapters 8 [--rank 16]] [-- SERVE FLAGS]

--adapters makes as many for a folder of Llama's or Qwen's names, and adds two servers: one with
adapters enabled and none loaded, and one whose requests have them in turn, with tokens of its own.
DIR may have a config.json only, with `-- --load-format dummy --skip-tokenizer-init`. --text has
prompts be parts of a file. What speculation costs and gives, for one:

  lookup='lookup=--speculative-config {"method":"ngram","num_speculative_tokens":8}'
  scripts/bench-beside.py --model DIR --beside "$lookup"                                # copies
  scripts/bench-beside.py --model DIR --beside "$lookup" --temperature 9                # in vain
  scripts/bench-beside.py --model DIR --beside "$lookup" --streams 64 -- --max-num-seqs 64
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import random
import shlex
import statistics
import struct
import sys
import tempfile
import time
from typing import Any

import turns

_TICK = os.sysconf("SC_CLK_TCK")


class Server(turns.Server):
    """A server with flags of its own."""

    def __init__(
        self, options: argparse.Namespace, port: int, flags: list[str], models: list[str]
    ) -> None:
        """Start it, and wait until it serves; requests ask for the models in turn."""
        self.models = models
        flags = ["--served-model-name", "base", "--no-enable-prefix-caching", *flags]
        super().__init__(options, port, flags)

    def spent(self) -> float:
        """Return the processor time of the server so far."""
        stat = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text()
        fields = stat.rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICK

    def metric(self, name: str) -> float:
        """Return the sum of a metric over its labels."""
        lines = turns.call(self.url + "/metrics").decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(name + "{"))

    def answer(self, body: dict[str, Any], model: str) -> list[int]:
        """Return the tokens of an answer."""
        answer = json.loads(turns.call(self.url + "/v1/completions", body | {"model": model}))
        return list(answer["choices"][0]["token_ids"])

    def run(self, bodies: list[dict[str, Any]]) -> tuple[dict[str, float], list[list[int]]]:
        """Have all prompts answered at once: what that took, and the answers."""
        steps, spent = self.metric("eagleray:iteration_tokens_total_count"), self.spent()
        began = time.perf_counter()
        with concurrent.futures.ThreadPoolExecutor(len(bodies)) as pool:
            models = [self.models[i % len(self.models)] for i in range(len(bodies))]
            answers = list(pool.map(self.answer, bodies, models))
        took = time.perf_counter() - began
        return {
            "clock": took,
            "processor": self.spent() - spent,
            "steps": self.metric("eagleray:iteration_tokens_total_count") - steps,
        }, answers


def adapter(folder: pathlib.Path, model: pathlib.Path, rank: int, seed: int) -> None:
    """Write an adapter of all linear modules of a model."""
    config = json.loads((model / "config.json").read_text())
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    dim = config.get("head_dim") or hidden // config["num_attention_heads"]
    q, kv = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    shapes = {"self_attn.q_proj": (q, hidden), "self_attn.k_proj": (kv, hidden)}
    shapes |= {"self_attn.v_proj": (kv, hidden), "self_attn.o_proj": (hidden, q)}
    shapes |= {"mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden)}
    shapes |= {"mlp.down_proj": (hidden, inner)}
    rng = random.Random(seed)
    # Numbers of bfloat16 from ±2^-7 to ±2^-6.
    numbers = b"".join(
        struct.pack("<H", 0x3C00 | rng.getrandbits(7) | rng.getrandbits(1) << 15)
        for _ in range(4096)
    )
    header: dict[str, Any] = {}
    data = bytearray()
    for layer in range(config["num_hidden_layers"]):
        for module, (rows, cols) in shapes.items():
            name = f"base_model.model.model.layers.{layer}.{module}"
            for part, shape in (("A", (rank, cols)), ("B", (rows, rank))):
                begin, size = len(data), 2 * shape[0] * shape[1]
                shift = 2 * rng.randrange(4096)
                data += (numbers[shift:] + numbers * (size // len(numbers) + 1))[:size]
                header[f"{name}.lora_{part}.weight"] = {
                    "dtype": "BF16",
                    "shape": shape,
                    "data_offsets": (begin, len(data)),
                }
    text = json.dumps(header).encode()
    folder.mkdir()
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    modules = [module.rpartition(".")[2] for module in shapes]
    (folder / "adapter_config.json").write_text(
        json.dumps({"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": modules})
    )


def main() -> None:
    """Start the servers, and run the rounds."""
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--program", default="bin/eagleray")
    p.add_argument("--model", required=True)
    p.add_argument("--rounds", type=int, default=7)
    p.add_argument("--streams", type=int, default=1)
    p.add_argument("--tokens", type=int, default=128)
    p.add_argument("--prompt", type=int, default=64)
    p.add_argument("--temperature", type=float, default=0)
    p.add_argument("--vocabulary", type=int, default=512)
    p.add_argument("--text", type=pathlib.Path)
    p.add_argument("--beside", action="append", default=[])
    p.add_argument("--adapters", type=int, default=0)
    p.add_argument("--rank", type=int, default=16)
    p.add_argument("--port", type=int, default=8420)
    p.add_argument("flags", nargs="*")
    options = p.parse_args()
    flags: dict[str, list[str]] = {"plain": []}
    models: dict[str, list[str]] = {}
    for text in options.beside:
        name, _, rest = text.partition("=")
        flag, _, value = rest.partition(" ")
        flags[name] = [flag, value] if value.startswith("{") else shlex.split(rest)
    servers: dict[str, Server] = {}
    with tempfile.TemporaryDirectory() as made:
        if options.adapters:
            enable = ["--enable-lora", "--max-lora-rank", str(options.rank)]
            enable += ["--max-loras", str(options.adapters), "--lora-modules"]
            flags["enabled"] = enable[:-1]
            models["adapters"] = [f"a{i}" for i in range(options.adapters)]
            for i, name in enumerate(models["adapters"]):
                folder = pathlib.Path(made, name)
                adapter(folder, pathlib.Path(options.model), options.rank, i)
                enable.append(f"{name}={folder}")
            flags["adapters"] = enable
        try:
            for i, (way, own) in enumerate(flags.items()):
                servers[way] = Server(options, options.port + i, own, models.get(way, ["base"]))
            run(options, servers)
        finally:
            for server in servers.values():
                server.process.terminate()
                server.process.wait()


def prompts(options: argparse.Namespace, rng: random.Random) -> list[dict[str, Any]]:
    """Make the requests of a round."""
    text = options.text.read_text() if options.text else ""
    bodies = []
    for _ in range(options.streams):
        prompt: str | list[int] = [
            rng.randrange(3, options.vocabulary) for _ in range(options.prompt)
        ]
        if text:
            begin = rng.randrange(len(text) - 4 * options.prompt)
            prompt = text[begin : begin + 4 * options.prompt]
        bodies.append(
            {
                "prompt": prompt,
                "max_tokens": options.tokens,
                "ignore_eos": True,
                "temperature": options.temperature,
                "seed": rng.getrandbits(31),
                "return_token_ids": True,
            }
        )
    return bodies


def run(options: argparse.Namespace, servers: dict[str, Server]) -> None:
    """Run the rounds on servers, one more before those that count."""
    rng = random.Random(1)
    took: dict[str, list[dict[str, float]]] = {way: [] for way in servers}
    for i in range(-1, options.rounds):
        bodies = prompts(options, rng)
        seen: list[list[list[int]]] = []
        for way in rng.sample(list(servers), len(servers)):
            figures, answers = servers[way].run(bodies)
            if i >= 0:
                took[way].append(figures)
            if way != "adapters":
                seen.append(answers)
        if any(answers != seen[0] for answers in seen):
            sys.exit(f"round {i}: answers differ")
    for way, server in servers.items():
        clock = statistics.median(f["clock"] for f in took[way])
        line = f"{way:>10}: {options.streams * options.tokens / clock:8.1f} tokens/s"
        for figure in ("clock", "processor", "steps"):
            ratios = [
                p[figure] / own[figure] for p, own in zip(took["plain"], took[way], strict=True)
            ]
            line += f", {figure} {statistics.median(ratios):.3f}"
            line += f" ({min(ratios):.2f} to {max(ratios):.2f})"
        drafted = server.metric("eagleray:spec_decode_num_draft_tokens_total")
        accepted = server.metric("eagleray:spec_decode_num_accepted_tokens_total")
        print(line + f", {accepted:.0f} of {drafted:.0f} drafts right", flush=True)


if __name__ == "__main__":
    main()
