#!/usr/bin/env python3
"""Compares embeddings of 512-token texts with sentence-transformers on torch's CPU build.

Both embed the same texts with the same random model, in float32 and with the same threads; ours by
LLM.embed and by one request to a server. Rounds go through all in turn. In an environment with
torch and sentence-transformers (5 GB where the index has only torch with CUDA), after make build:

EAGLERAY_BINARY=bin/eagleray PYTHONPATH=python scripts/bench_embeddings.py
    [--shape minilm|bert] [--threads N] [--texts N] [--tokens N] [--rounds N]
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import json
import os
import random
import re
import statistics
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

SHAPES = {
    "minilm": {"hidden_size": 384, "num_hidden_layers": 6, "intermediate_size": 1536},
    "bert": {"hidden_size": 768, "num_hidden_layers": 12, "intermediate_size": 3072},
}
VOCABULARY = 30522


def make(folder: str, shape: str) -> None:
    """Write a random BERT with a vocabulary of words, as sentence-transformers has models."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import modules
    from transformers import BertConfig, BertModel, BertTokenizerFast

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words += [f"w{i}" for i in range(VOCABULARY - len(words))]
    Path(folder, "vocab.txt").write_text("\n".join(words) + "\n")
    config = BertConfig(vocab_size=VOCABULARY, num_attention_heads=12, **SHAPES[shape])
    inner = os.path.join(folder, "inner")
    BertModel(config).save_pretrained(inner)
    BertTokenizerFast(vocab={w: i for i, w in enumerate(words)}).save_pretrained(inner)
    bert = modules.Transformer(inner, max_seq_length=512)
    pooling = modules.Pooling(config.hidden_size)
    SentenceTransformer(modules=[bert, pooling, modules.Normalize()]).save(folder)


@contextlib.contextmanager
def serving(folder: str, threads: int) -> Iterator[str]:
    """Start a server of the model and give its address."""
    command = [os.environ["EAGLERAY_BINARY"], "serve", folder, "--runner=pooling", "--port=0"]
    command += ["--dtype=float32", f"--cpu-threads={threads}"]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        try:
            for line in process.stderr:
                if found := re.search(rb"\burl=(\S+)", line):
                    yield found[1].decode()
                    return
            raise RuntimeError("the server has ended")
        finally:
            process.terminate()


def ask(url: str, texts: list[str]) -> list[memoryview]:
    """Embed texts by one request."""
    body = json.dumps({"input": texts, "encoding_format": "base64"}).encode()
    request = urllib.request.Request(
        url + "/v1/embeddings", body, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request) as answer:
        data = json.load(answer)["data"]
    return [memoryview(base64.b64decode(x["embedding"])).cast("f") for x in data]


def main() -> None:
    """Measure, and print medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="minilm")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--texts", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    import torch
    from sentence_transformers import SentenceTransformer

    from eagleray import LLM

    torch.set_num_threads(options.threads)
    draw = random.Random(7)
    texts = [
        " ".join(f"w{draw.randrange(VOCABULARY - 5)}" for _ in range(options.tokens - 2))
        for _ in range(options.texts)
    ]
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        make(folder, options.shape)
        url = stack.enter_context(serving(folder, options.threads))
        ours = stack.enter_context(
            LLM(folder, runner="pooling", dtype="float32", cpu_threads=options.threads)
        )
        theirs = SentenceTransformer(folder, device="cpu")
        for a, b in zip(theirs.encode(texts), ask(url, texts)):
            far = max(abs(float(x) - y) for x, y in zip(a, b))
            assert far < 1e-5, f"the embeddings differ by {far}"
        runs: dict[str, Callable[[], object]] = {
            "sentence-transformers": lambda: theirs.encode(texts, batch_size=options.texts),
            "server": lambda: ask(url, texts),
            "LLM.embed": lambda: ours.embed(texts, use_tqdm=False),
        }
        took: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(1 + options.rounds):  # the first one warms up
            for name, run in runs.items():
                begun = time.monotonic()
                run()
                took[name].append(time.monotonic() - begun)
            print(*(f"{name} {times[-1]:.2f} s" for name, times in took.items()), flush=True)
    tokens = options.texts * options.tokens
    print(f"{options.shape}, {options.texts} texts of {options.tokens} tokens, float32, ", end="")
    print(f"{options.threads} threads, medians of {options.rounds}:")
    beside = [tokens / t for t in took["sentence-transformers"][1:]]
    for name, times in took.items():
        rates = [tokens / t for t in times[1:]]
        ratio = statistics.median(a / b for a, b in zip(rates, beside))
        print(f"  {name}: {statistics.median(rates):.0f} tokens/s, {ratio:.2f}")


if __name__ == "__main__":
    main()
