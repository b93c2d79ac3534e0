"""The measurement of bench-ray-data.sh, with one version of Ray: bench_ray_data.py FOLDER."""

import collections
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import time

import ray
import ray.data
from cpu_seconds import Meter
from eagleray.data import EngineProcessorConfig, build_processor

folder = sys.argv[1]
count, tokens, rounds = (int(os.environ[name]) for name in ("ROWS", "TOKENS", "ROUNDS"))
blocks = [int(rows) for rows in os.environ["BLOCKS"].split()]
model = os.environ["MODEL"] or None
binary = os.environ["EAGLERAY_BINARY"]
params = {"max_tokens": tokens, "temperature": 0.0, "ignore_eos": True}


def prompt(number: int) -> str:
    return f"func number{number} returns"


def run_batch(count: int, tokens: int) -> tuple[float, float, float]:
    """Return the seconds that it says it took, with its engine's start, all, and those of CPUs."""
    rows, out = os.path.join(folder, "rows.jsonl"), os.path.join(folder, "out.jsonl")
    with open(rows, "w") as file:
        for i in range(count):
            body = {"prompt": prompt(i), **params, "max_tokens": tokens}
            row = {"custom_id": str(i), "method": "POST", "url": "/v1/completions", "body": body}
            file.write(json.dumps(row) + "\n")
    begun, cpu = time.time(), children()
    command = [binary, "run-batch", "-i", rows, "-o", out, *([model] if model else [])]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=True)
    wall, cpu = time.time() - begun, children() - cpu
    os.remove(out)
    said = re.search(rf"{count} rows in ([0-9.]+) s: {count} succeeded", done.stderr)
    if said is None:
        raise SystemExit(done.stderr)
    return float(said[1]), wall, cpu


def children() -> float:
    """Return the seconds of CPUs of all that this process has started and waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def data(count: int, tokens: int, block: int = 0) -> tuple[float, float, collections.Counter[str]]:
    """Return the seconds from the first row's begin to the last one's end, all, and of CPUs.

    Blocks have so many rows; with 0 Ray chooses.
    """
    config = EngineProcessorConfig(model_source=model, batch_size=128)
    asked = {**params, "max_tokens": tokens}
    processor = build_processor(
        config,
        lambda row: {"prompt": prompt(row["id"]), "sampling_params": asked},
        lambda row: {
            "end": time.time(),
            "took": row["time_taken_llm"],
            "tokens": row["num_generated_tokens"],
        },
    )
    begun, cpu = time.time(), meter.read()
    asked_blocks = {"override_num_blocks": max(1, count // block)} if block else {}
    rows = processor(ray.data.range(count, **asked_blocks)).take_all()
    wall, after = time.time() - begun, meter.read()
    after.subtract(cpu)
    if len(rows) != count or any(row["tokens"] != tokens for row in rows):
        raise SystemExit(f"{len(rows)} rows, of {count} with {tokens} tokens each")
    first = min(row["end"] - row["took"] for row in rows)
    return max(row["end"] for row in rows) - first, wall, after


def name(block: int) -> str:
    """Return what is said of blocks."""
    return f"blocks of {block}" if block else "Ray's blocks"


def per_row(all_rows: float, one: float) -> float:
    """Return the milliseconds of a row: what one row takes alone is the start."""
    return 1000 * (all_rows - one) / max(1, count - 1)


ray.init(
    num_cpus=max(2, os.cpu_count() or 1),
    include_dashboard=False,
    logging_level="warning",
    log_to_driver=False,
    runtime_env={"env_vars": {n: os.environ[n] for n in ("EAGLERAY_BINARY", "PYTHONPATH")}},
)
ray.data.DataContext.get_current().enable_progress_bars = False
meter = Meter()
data(count, 1, 64)  # the workers that Ray keeps have started then
ratios: dict[int, list[float]] = {block: [] for block in blocks}
costs: dict[int, list[float]] = {block: [] for block in blocks}
for _ in range(rounds):
    start, _, ours_one = run_batch(1, 1)
    ours, ours_wall, ours_cpu = run_batch(count, tokens)
    ours -= start
    cost = per_row(ours_cpu, ours_one)
    print(
        f"run-batch {count / ours:.1f} rows/s ({ours_wall:.1f} s in all), CPU {cost:.2f} ms a row"
    )
    _, _, rays_one = data(1, 1)
    for block in blocks:
        rays, rays_wall, rays_cpu = data(count, tokens, block)
        ratios[block].append(ours / rays)
        parts = {kind: per_row(spent, rays_one[kind]) for kind, spent in rays_cpu.items()}
        costs[block].append(cost / sum(parts.values()))
        print(
            f"Ray {ray.__version__}, {name(block)}: {count / rays:.1f} rows/s "
            f"({rays_wall:.1f} s in all), ratio {ratios[block][-1]:.3f}; "
            f"CPU {sum(parts.values()):.2f} ms a row, ratio {costs[block][-1]:.3f} ("
            + ", ".join(f"{kind} {spent:.2f}" for kind, spent in sorted(parts.items()))
            + ")",
            flush=True,
        )
for block in blocks:
    print(
        f"Ray {ray.__version__}, {name(block)}: median ratio "
        f"{statistics.median(ratios[block]):.3f}, of CPU {statistics.median(costs[block]):.3f}",
        flush=True,
    )
