#!/usr/bin/env python3
"""Measures build_pd_openai_app beside build_openai_app on Ray Serve, with as many cores for both.

One replica with 2 threads, and a prefill and a decode replica of 1 thread each, answer the same
prompts at the same times, in turn. Printed are medians over the rounds, as the client sees them.

ray start --head && PYTHONPATH=python EAGLERAY_BINARY=bin/eagleray \\
    ~/.cache/eagleray/venv/ray-2.60.0-*/bin/python scripts/bench-ray-split.py \\
    --address 127.0.0.1:6379
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import tempfile
from typing import Any

import ray
from ray import serve

from eagleray.serve import build_openai_app, build_pd_openai_app

MODEL = "go-std-tiny"
FIGURES = ("output_throughput", "mean_ttft_ms", "p99_ttft_ms", "p50_itl_ms", "p99_itl_ms")


def model(threads: int) -> dict[str, Any]:
    """Return the built-in model on some threads."""
    return {
        "model_loading_config": {"model_id": MODEL},
        "engine_kwargs": {
            "cpu_threads": threads,
            "kv_cache_memory_bytes": "256M",
            "disable_log_stats": True,
            "disable_uvicorn_access_log": True,
        },
        "deployment_config": {
            "ray_actor_options": {"num_cpus": 0},
            "max_ongoing_requests": 10000,
        },
    }


def measure(url: str, args: argparse.Namespace, seed: int) -> dict[str, float]:
    """Send the workload to an application."""
    with tempfile.NamedTemporaryFile() as f:
        command = [os.environ["EAGLERAY_BINARY"], "bench", "serve", "--base-url", url]
        command += ["--model", MODEL, "--random-input-len", str(args.input_len)]
        command += ["--random-output-len", str(args.output_len), "--request-rate", args.rate]
        command += ["--num-prompts", str(args.num_prompts), "--num-warmups", "4", "--disable-tqdm"]
        command += ["--metric-percentiles", "50,99", "--seed", str(seed), "--output-json", f.name]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        result = json.load(f)
    if result["completed"] != args.num_prompts:
        raise RuntimeError(f"{result['completed']} of {args.num_prompts} requests were answered")
    return {name: float(result[name]) for name in FIGURES}


def main() -> None:
    """Deploy both, measure and print."""
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--address", required=True)
    p.add_argument("--node-ip", default="127.0.0.1")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--num-prompts", type=int, default=200)
    p.add_argument("--rate", default="20", help="requests a second, or inf")
    p.add_argument("--input-len", type=int, default=400)
    p.add_argument("--output-len", type=int, default=32)
    args = p.parse_args()
    ray.init(
        args.address, _node_ip_address=args.node_ip, log_to_driver=False, logging_level="warning"
    )
    with socket.create_server(("127.0.0.1", 0)) as s:
        port = s.getsockname()[1]
    serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": port})
    runs: dict[str, list[dict[str, float]]] = {"one": [], "split": []}
    try:
        half = model(1)
        split = build_pd_openai_app({"prefill_config": half, "decode_config": half})
        serve.run(build_openai_app({"llm_configs": [model(2)]}), name="one", route_prefix="/one")
        serve.run(split, name="split", route_prefix="/split")
        for n in range(args.rounds):
            for name in ("one", "split") if n % 2 else ("split", "one"):
                runs[name].append(measure(f"http://127.0.0.1:{port}/{name}", args, n))
    finally:
        serve.shutdown()
    print(f"Ray {ray.__version__}, {len(os.sched_getaffinity(0))} cores")
    for figure in FIGURES:
        one, two = (statistics.median(r[figure] for r in runs[name]) for name in ("one", "split"))
        print(f"{figure}: one {one:.1f}, split {two:.1f} ({two / one:.2f})")


if __name__ == "__main__":
    main()
