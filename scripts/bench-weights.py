#!/usr/bin/env python3
"""Measures an update of a model of 0.5 B parameters (1 GB) against one copy of its bytes.

Before each update one copy is measured, on new pages; the first update counts apart. With shm the
trainer's part is the copy into memory that it hands over, and update_weights checks it; with unix
and tcp update_weights is all the transfer. CPU seconds are those of all processes, and what an
update leaves to be done after its answer is part of those of the next copy.

EAGLERAY_BINARY=bin/eagleray PYTHONPATH=python scripts/bench-weights.py [--tensor-parallel-size 2]
    [--server]     asks a server instead of an engine of its own: then by tcp, under TLS, too
    [--nodes]      half of the ranks, or of the engines, are on another machine, which is a network
                   namespace (for root); beside each update the bytes are copied there once, plain
                   and under TLS, and what goes through the cable is counted
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Optional

from cpu_seconds import Meter
from eagleray import LLM, _binary
from eagleray.weights import Ask, Raw, Server, WeightTransfer
from two_machines import HERE, TwoMachines

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


def shapes(layers: int = LAYERS) -> dict[str, list[int]]:
    """Return the tensors of the model."""
    names = {"model.embed_tokens.weight": [VOCAB, WIDTH], "model.norm.weight": [WIDTH]}
    for i in range(layers):
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


@contextlib.contextmanager
def serving(
    folder: str, ranks: int, engines: int = 1, machines: Optional[TwoMachines] = None
) -> Iterator[Server]:
    """Start a server of a model of random weights."""
    command = [os.path.abspath(_binary.find()), "serve", folder]
    command += ["--load-format=dummy", "--skip-tokenizer-init", "--dtype=bfloat16"]
    command += ["--max-model-len=256", f"--tensor-parallel-size={ranks}"]
    command += [f"--data-parallel-size={engines}"]
    with contextlib.ExitStack() as stack:
        if machines is not None:
            token = os.path.join(folder, "token")
            Path(token).write_text("a secret of this measurement\n")
            os.chmod(token, 0o600)
            command += ["--nnodes=2", f"--master-addr={HERE}", f"--cluster-token-file={token}"]
            other = machines.there([*command, "--headless", "--node-rank=1"])
            node = stack.enter_context(subprocess.Popen(other, stderr=subprocess.DEVNULL))
            stack.callback(node.kill)
        command += ["--port=0", "--enable-rlhf"]
        process = stack.enter_context(subprocess.Popen(command, stderr=subprocess.PIPE))
        stack.callback(process.terminate)
        assert process.stderr is not None
        for line in process.stderr:
            if found := re.search(rb"\burl=(\S+)", line):
                break
        else:
            raise RuntimeError(f"the server has ended: {line.decode()}")
        yield Server(found[1].decode())


def report(
    transport: str, copies: list[float], cpu: list[float], updates: list[dict[str, float]]
) -> None:
    """Print the phases of the quickest update, and all updates against the copies beside them."""
    first, later = updates[0], updates[1:] or updates
    best = min(later, key=lambda u: u["all"])
    copy, took = statistics.median(copies), statistics.median(u["all"] for u in later)

    def phases(update: dict[str, float]) -> str:
        return ", ".join(
            f"{name} {value:.3f}" for name, value in update.items() if name not in ("all", "cpu")
        )

    print(f"{transport}: median {took:.3f} s, {took / copy:.2f} of a median copy ({copy:.3f} s)")
    print(
        f"  best {best['all']:.3f} s, {best['all'] / min(copies):.2f} of the best copy: "
        f"{phases(best)}"
    )
    print(f"  first {first['all']:.3f} s, {first['all'] / copy:.2f} of it: {phases(first)}")
    spent, beside = statistics.median(u["cpu"] for u in updates), statistics.median(cpu)
    print(f"  CPU {spent:.2f} s, {spent / beside:.2f} of a copy's ({beside:.2f} s)")


def by_nodes(tensors: dict[str, Raw], folder: str, options: argparse.Namespace) -> None:
    """Measure updates of ranks on two machines, beside copies to one of them."""
    machines = TwoMachines()
    total = sum(len(t.data) for t in tensors.values())
    parts = [t.data for t in tensors.values()]
    ranks, engines = options.tensor_parallel_size, options.data_parallel_size
    try:
        with serving(folder, ranks, engines, machines) as engine:
            transfer = WeightTransfer(engine)
            rounds: list[dict[str, float]] = []
            for _ in range(options.rounds):
                row = {"local": copied(tensors)}
                row["plain"], row["tls"] = machines.copy(parts, False), machines.copy(parts, True)
                sent, begun = machines.sent(), time.monotonic()
                transfer.update(tensors)
                row["update"] = time.monotonic() - begun
                row["sent"] = (machines.sent() - sent) / total
                rounds.append(row)
            print(f"{ranks} ranks, {engines} engines on two nodes; the first update:")
            print("  " + ", ".join(f"{k} {v:.3f}" for k, v in rounds[0].items()))
            later = rounds[1:] or rounds
            row = {k: statistics.median(r[k] for r in later) for k in rounds[0]}
            print("median: " + ", ".join(f"{k} {v:.3f}" for k, v in row.items()))
            once = row["local"] + row["plain"]
            print(f"  update {row['update'] / once:.2f} of a copy to each node ({once:.3f} s),")
            print(f"  {row['update'] / row['plain']:.2f} of the one over the cable, plain,")
            print(f"  {row['update'] / row['tls']:.2f} of it under TLS;")
            print(f"  {row['sent']:.3f} of the bytes went through the cable")
    finally:
        machines.close()


def main() -> None:
    """Measure updates by each transport, each beside a copy."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tensor-parallel-size", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--layers", type=int, default=LAYERS, help="of a smaller model")
    parser.add_argument("--data-parallel-size", type=int, default=1, help="with --nodes")
    parser.add_argument("--server", action="store_true", help="bring weights to eagleray serve")
    parser.add_argument("--nodes", action="store_true", help="to a server on two nodes")
    options = parser.parse_args()
    tensors = {}
    for name, shape in shapes(options.layers).items():
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        tensors[name] = Raw((b"\x12\x3c" * count), "bfloat16", shape)
    print(f"{sum(len(t.data) for t in tensors.values()) / 1e9:.3f} GB")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(
            json.dumps({**CONFIG, "num_hidden_layers": options.layers})
        )
        if options.nodes:
            by_nodes(tensors, folder, options)
            return
        engine_or_server: contextlib.AbstractContextManager[Ask]
        if options.server:
            engine_or_server = serving(folder, options.tensor_parallel_size)
        else:
            engine_or_server = LLM(
                folder,
                load_format="dummy",
                skip_tokenizer_init=True,
                dtype="bfloat16",
                max_model_len=256,
                tensor_parallel_size=options.tensor_parallel_size,
            )
        meter = Meter()
        with engine_or_server as asked:
            engine = Timed(asked)
            for transport in ("shm", "unix", "tcp") if options.server else ("shm", "unix"):
                transfer = WeightTransfer(engine, transport)
                copies: list[float] = []
                cpu: list[float] = []
                updates: list[dict[str, float]] = []
                for _ in range(options.rounds):
                    spent = meter.read().total()
                    copies.append(copied(tensors))
                    cpu.append(meter.read().total() - spent)
                    spent = meter.read().total()
                    begun = time.monotonic()
                    transfer.update(tensors)
                    took = time.monotonic() - begun
                    received = engine.took["/update_weights"]
                    loaded = engine.took["/finish_weight_update"]
                    updates.append(
                        {
                            "all": took,
                            "cpu": meter.read().total() - spent,
                            "trainer's part": took - received - loaded,
                            "update_weights": received,
                            "finish_weight_update": loaded,
                        }
                    )
                report(transport, copies, cpu, updates)


if __name__ == "__main__":
    main()
