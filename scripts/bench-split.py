#!/usr/bin/env python3
"""Measures a prefill/decode split beside one engine with as many cores.

Three settings in turn, round after round, so that all meet the same weather: one engine with 2
threads; a prefill and a decode server of 1 thread each behind `eagleray route`, with blocks through
shared memory; and the same with blocks over TCP. Each is asked the same prompts at the same times.
Printed are medians over the rounds: tokens a second, time to first token, inter-token latency, and
of the split how fast blocks came and what they added to the first token (the consumer's wait for
them).

scripts/bench-split.py [--rounds 3] [--rate 0.5] [--input-len 1024] [--output-len 64] \\
    [--num-prompts 24]
scripts/bench-split.py --picture docs/images/split-trace.svg --num-prompts 8 --input-len 512 \\
    --rate 2
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

CONFIG = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}
BINARY = os.environ.get("EAGLERAY_BINARY", "bin/eagleray")
SETTINGS = ("one engine", "split, shared memory", "split, TCP")
Figures = dict[str, float]


def free_port() -> int:
    """Return a port that nobody has now."""
    with socket.create_server(("127.0.0.1", 0)) as s:
        return int(s.getsockname()[1])


@contextlib.contextmanager
def running(log: Path, *args: str) -> Iterator[str]:
    """Run a verb that listens, and yield its address."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with log.open("ab") as out:
        child = subprocess.Popen(
            [BINARY, *args, "--port", str(port)], stdout=out, stderr=subprocess.STDOUT
        )
    try:
        until = time.monotonic() + 120
        while True:
            try:
                with urllib.request.urlopen(url + "/health", timeout=5):
                    break
            except OSError:
                if child.poll() is not None or time.monotonic() > until:
                    sys.exit(f"{args[0]} does not serve:\n{log.read_text()}")
                time.sleep(0.05)
        yield url
    finally:
        child.terminate()
        child.wait()


def total(url: str, name: str) -> float:
    """Return the sum of the series of a metric."""
    with urllib.request.urlopen(url + "/metrics", timeout=30) as r:
        lines = r.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("eagleray:" + name))


def ask(url: str, model: str, out: Path, args: argparse.Namespace, seed: int) -> Figures:
    """Send the workload to a server and return what the client saw."""
    subprocess.run(
        [BINARY, "bench", "serve", "--base-url", url, "--model", model, "--skip-tokenizer-init"]
        + ["--num-prompts", str(args.num_prompts), "--request-rate", str(args.rate)]
        + ["--random-input-len", str(args.input_len), "--random-output-len", str(args.output_len)]
        + ["--random-range-ratio", "0.2", "--seed", str(seed), "--num-warmups", "1"]
        + ["--disable-tqdm", "--metric-percentiles", "50,99", "--output-json", str(out)],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    result = json.loads(out.read_text())
    if result["completed"] != args.num_prompts:
        sys.exit(f"{result['completed']} of {args.num_prompts} requests were answered")
    names = ("output_throughput", "mean_ttft_ms", "p99_ttft_ms", "p50_itl_ms", "p99_itl_ms")
    return {name: float(result[name]) for name in names}


def measure(setting: str, model: Path, work: Path, args: argparse.Namespace, seed: int) -> Figures:
    """Start the servers of a setting and measure them."""
    log, out = work / "log", work / "figures.json"
    out.unlink(missing_ok=True)
    if setting == SETTINGS[0]:
        threads = ["--cpu-threads", str(args.threads)]
        with running(log, *serve_args(model, args), *threads) as url:
            return ask(url, str(model), out, args, seed)
    with split(model, log, args, setting == SETTINGS[1]) as (url, decode):
        figures = ask(url, str(model), out, args, seed)
        moved = total(decode, "kv_transfer_bytes_total")
        seconds = total(decode, "kv_transfer_time_seconds_sum")
        count = total(decode, "kv_transfer_time_seconds_count")
    if not moved or not count:
        sys.exit(f"no blocks have come:\n{log.read_text()}")
    way = {"transfer_gb_s": moved / seconds / 1e9, "transfer_ms": seconds / count * 1e3}
    return {**figures, **way, "transfer_mb": moved / count / 1e6}


def serve_args(model: Path, args: argparse.Namespace) -> list[str]:
    """Return what all engines are started with."""
    common = ["serve", str(model), "--load-format", "dummy", "--skip-tokenizer-init"]
    return [*common, "--max-model-len", "4096", "--kv-cache-memory-bytes", "1G", *args.serve]


@contextlib.contextmanager
def split(
    model: Path, log: Path, args: argparse.Namespace, memory: bool, *route: str
) -> Iterator[tuple[str, str]]:
    """Run a split, and yield the addresses of route and of the decode server."""
    extra = {"shared_memory": memory}
    threads = str(max(1, args.threads // 2))

    def half(role: str) -> list[str]:
        transfer = {"kv_connector": "EagleRayConnector", "kv_role": role}
        transfer_config = json.dumps({**transfer, "kv_connector_extra_config": extra})
        return [*serve_args(model, args), "--cpu-threads", threads] + [
            "--kv-transfer-config",
            transfer_config,
        ]

    with (
        running(log, *half("kv_producer")) as prefill,
        running(log, *half("kv_consumer")) as decode,
        running(log, "route", "--prefill", prefill, "--decode", decode, *route) as url,
    ):
        yield url, decode


COLOURS = {"prefill": "#4c78a8", "transfer, first token": "#f58518", "decode": "#54a24b"}


def draw(trace: str, requests: int) -> str:
    """Draw what `route --trace` has written of the last requests, a line for each."""
    events = json.loads(trace.rstrip().rstrip(",") + "]")
    asked = {e["tid"]: e["ts"] for e in events if e["name"] == "prefill"}
    lines = sorted(asked, key=lambda n: asked[n])[-requests:]
    events = [e for e in events if e["tid"] in lines]
    begin = min(e["ts"] for e in events)
    scale = 770 / max(e["ts"] + e["dur"] - begin for e in events)
    height = 60 + 22 * len(lines) + 20
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="880" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for i, (name, colour) in enumerate(COLOURS.items()):
        x = 90 + 190 * i
        out.append(f'<rect x="{x}" y="12" width="14" height="14" fill="{colour}"/>')
        out.append(f'<text x="{x + 20}" y="24">{name}</text>')
    for row, line in enumerate(lines):
        y = 45 + 22 * row
        out.append(f'<text x="10" y="{y + 13}">request {row + 1}</text>')
        for e in events:
            if e["tid"] == line:
                x, width = 90 + (e["ts"] - begin) * scale, max(e["dur"] * scale, 0.5)
                out.append(
                    f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="17" '
                    f'fill="{COLOURS[e["name"]]}"><title>{e["name"]}: {e["dur"] / 1e3:.1f} ms'
                    "</title></rect>"
                )
    span = 770 / scale / 1e3
    out.append(f'<text x="90" y="{height - 8}">0</text>')
    out.append(f'<text x="860" y="{height - 8}" text-anchor="end">{span:.0f} ms</text></svg>')
    return "\n".join(out) + "\n"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2, help="of all engines of a setting")
    parser.add_argument("--rate", default="0.5", help="requests a second, or inf")
    parser.add_argument("--num-prompts", type=int, default=24)
    parser.add_argument("--input-len", type=int, default=1024)
    parser.add_argument("--output-len", type=int, default=64)
    parser.add_argument("--picture", help="only draw the trace of a split as this SVG file")
    parser.add_argument("serve", nargs="*", help="more flags of serve, after --")
    args = parser.parse_args()
    runs: dict[str, list[Figures]] = {s: [] for s in SETTINGS}
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        model = work / "qwen2-0.5b"
        model.mkdir()
        (model / "config.json").write_text(json.dumps(CONFIG))
        if args.picture:
            trace = work / "trace.json"
            with split(model, work / "log", args, True, "--trace", str(trace)) as (url, _):
                ask(url, str(model), work / "figures.json", args, 0)
            Path(args.picture).write_text(draw(trace.read_text(), args.num_prompts))
            return
        for n in range(args.rounds):
            for setting in SETTINGS:
                runs[setting].append(measure(setting, model, work, args, n))
                print(f"round {n + 1}: {setting}: {runs[setting][-1]}", file=sys.stderr)
    print(f"{'':24}{'one engine':>14}{'shared memory':>16}{'TCP':>16}")
    for name in runs[SETTINGS[1]][0]:
        row = [
            statistics.median(f[name] for f in r) if name in r[0] else None for r in runs.values()
        ]
        base = row[0]
        print(f"{name:24}{'' if base is None else f'{base:.1f}':>14}", end="")
        for x in row[1:]:
            assert x is not None
            ratio = "" if base is None else f" ({x / base:.2f})"
            print(f"{f'{x:.2f}{ratio}':>16}", end="")
        print()


if __name__ == "__main__":
    main()
