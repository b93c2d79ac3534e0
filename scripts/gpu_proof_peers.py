"""Measures PyTorch on the shapes of eagleray cuda proof's bench, for gpu-proof.sh.

It is the fair peer: no framework around it, weights merged as an engine merges them, a contiguous
cache, and decoding replayed from a CUDA graph. Weights are random. Figures go to a file, an object
a line, by the names that eagleray cuda gives its own; what was skipped is said there, too.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

CONTEXT = 1024
BATCHES = (1, 16, 64, 256)
PREFILLS = (2048, 8192)
WARM_UP = 20
REPLAYS = 50
FORWARDS = 10
EPSILON = 1e-6


@dataclass(frozen=True)
class Shape:
    """A model of Qwen3's architecture."""

    name: str
    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    dim: int = 128
    vocabulary: int = 151936


SHAPES = (
    Shape("qwen3-0.6b", 1024, 3072, 28, 16, 8),
    Shape("qwen3-8b", 4096, 12288, 36, 32, 8),
)


class Model:
    """The weights of a shape, and a step of it written out by hand."""

    def __init__(self, shape: Shape) -> None:
        import torch

        self.shape = shape
        width = (shape.heads + 2 * shape.kv_heads) * shape.dim
        options: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}

        def weight(out: int, features: int) -> torch.Tensor:
            return torch.randn(out, features, **options) * 0.02

        self.embedding = weight(shape.vocabulary, shape.hidden)
        self.head = weight(shape.vocabulary, shape.hidden)
        self.ones = torch.ones(shape.hidden, **options)
        self.head_ones = torch.ones(shape.dim, **options)
        self.layers = [
            (
                weight(width, shape.hidden),
                weight(shape.hidden, shape.heads * shape.dim),
                weight(2 * shape.inner, shape.hidden),
                weight(shape.hidden, shape.inner),
            )
            for _ in range(shape.layers)
        ]
        frequencies = 1e6 ** (-torch.arange(0, shape.dim, 2, device="cuda") / shape.dim)
        angles = torch.arange(max(*PREFILLS, CONTEXT), device="cuda")[:, None] * frequencies
        angles = torch.cat((angles, angles), dim=1)
        self.cosines, self.sines = angles.cos().bfloat16(), angles.sin().bfloat16()

    def turned(self, x: torch.Tensor, at: int, n: int) -> torch.Tensor:
        """Rotates heads, [batch][heads][n][dimension], of the positions from one on."""
        import torch

        low, high = x.chunk(2, dim=-1)
        other = torch.cat((-high, low), dim=-1)
        return x * self.cosines[at : at + n] + other * self.sines[at : at + n]

    def step(
        self, ids: torch.Tensor, at: int, cache: list[tuple[torch.Tensor, torch.Tensor]]
    ) -> torch.Tensor:
        """The next tokens of [batch][n] tokens at the positions from one on."""
        import torch
        from torch.nn import functional

        shape = self.shape
        batch, n = ids.shape
        x = self.embedding[ids]
        for (qkv, out, gate_up, down), (keys, values) in zip(self.layers, cache):
            normed = functional.rms_norm(x, (shape.hidden,), self.ones, EPSILON)
            heads = functional.linear(normed, qkv).view(batch, n, -1, shape.dim).transpose(1, 2)
            q, k, v = heads.split((shape.heads, shape.kv_heads, shape.kv_heads), dim=1)
            q = functional.rms_norm(q, (shape.dim,), self.head_ones, EPSILON)
            k = functional.rms_norm(k, (shape.dim,), self.head_ones, EPSILON)
            keys[:batch, :, at : at + n] = self.turned(k, at, n)
            values[:batch, :, at : at + n] = v
            found = functional.scaled_dot_product_attention(
                self.turned(q, at, n),
                keys[:batch, :, : at + n],
                values[:batch, :, : at + n],
                is_causal=n > 1,
                enable_gqa=True,
            )
            x = x + functional.linear(found.transpose(1, 2).reshape(batch, n, -1), out)
            normed = functional.rms_norm(x, (shape.hidden,), self.ones, EPSILON)
            gate, up = functional.linear(normed, gate_up).chunk(2, dim=-1)
            x = x + functional.linear(functional.silu(gate) * up, down)
        last = functional.rms_norm(x[:, -1], (shape.hidden,), self.ones, EPSILON)
        return torch.argmax(functional.linear(last, self.head), dim=-1)

    def cache(self, batch: int, positions: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Keys and values of all layers, of random numbers."""
        import torch

        def some() -> torch.Tensor:
            size = (batch, self.shape.kv_heads, positions, self.shape.dim)
            return torch.randn(size, device="cuda", dtype=torch.bfloat16)

        return [(some(), some()) for _ in self.layers]


def milliseconds(run: Callable[[], object], times: int) -> float:
    """The median of how long something takes on the device, by its events."""
    import torch

    taken = []
    for _ in range(times):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        end.synchronize()
        taken.append(begin.elapsed_time(end))
    return float(statistics.median(taken))


def decode(model: Model, batch: int) -> float:
    """A step of a row for each sequence, replayed from a graph."""
    import torch

    cache = model.cache(batch, CONTEXT)
    ids = torch.randint(model.shape.vocabulary, (batch, 1), device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            model.step(ids, CONTEXT - 1, cache)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        model.step(ids, CONTEXT - 1, cache)
    for _ in range(WARM_UP):
        graph.replay()
    return milliseconds(graph.replay, REPLAYS)


def prefill(model: Model, n: int) -> float:
    """A prompt, without a graph."""
    import torch

    cache = model.cache(1, n)
    ids = torch.randint(model.shape.vocabulary, (1, n), device="cuda")
    for _ in range(2):
        model.step(ids, 0, cache)
    return milliseconds(lambda: model.step(ids, 0, cache), FORWARDS)


def rate(n: int) -> float:
    """The rate of a product of n by n by n in bfloat16, in TFLOP/s."""
    import torch
    from torch.nn import functional

    a, b = (torch.randn(n, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    for _ in range(3):
        functional.linear(a, b)
    return 2 * n**3 / milliseconds(lambda: functional.linear(a, b), WARM_UP) / 1e9


class Figures:
    """A file of figures, which has each as soon as it is measured."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, record: dict[str, Any]) -> None:
        line = json.dumps(record)
        print(line, flush=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def measure(self, name: str, unit: str, run: Callable[[], float]) -> None:
        """Measures, or says why that was not possible."""
        import torch

        try:
            self.write({"name": name, "value": run(), "unit": unit})
        except (RuntimeError, torch.cuda.OutOfMemoryError) as e:
            self.write({"skipped": name, "why": str(e).splitlines()[0]})
        gc.collect()
        torch.cuda.empty_cache()


def measure_all(figures: Figures, shapes: list[Shape]) -> None:
    """Measures everything that has room on the device."""
    import torch

    figures.write({"torch": torch.__version__, "device": torch.cuda.get_device_name()})
    torch.manual_seed(1)
    with torch.inference_mode():
        figures.measure("product 8192", "TFLOP/s", lambda: rate(8192))
        for shape in shapes:
            model = Model(shape)
            for batch in BATCHES:
                figures.measure(
                    f"{shape.name} decode {batch} at {CONTEXT}",
                    "ms",
                    lambda model=model, batch=batch: decode(model, batch),  # type: ignore[misc]
                )
            for n in PREFILLS:
                figures.measure(
                    f"{shape.name} prefill {n}",
                    "ms",
                    lambda model=model, n=n: prefill(model, n),  # type: ignore[misc]
                )
            del model
            gc.collect()
            torch.cuda.empty_cache()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path)
    parser.add_argument("--shapes", nargs="*", default=[s.name for s in SHAPES])
    args = parser.parse_args()
    figures = Figures(args.output)
    try:
        import torch
    except ImportError as e:
        figures.write({"skipped": "all peers", "why": str(e)})
        return
    if not torch.cuda.is_available():
        figures.write({"skipped": "all peers", "why": "torch finds no CUDA device"})
        return
    measure_all(figures, [s for s in SHAPES if s.name in args.shapes])


if __name__ == "__main__":
    main()
