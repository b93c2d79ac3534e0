"""The measurement of bench-ray-data.sh, with one version of Ray: bench_ray_data.py FOLDER."""

import json
import os
import re
import statistics
import subprocess
import sys
import time

import ray
import ray.data
from eagleray.data import EngineProcessorConfig, build_processor

folder = sys.argv[1]
count, tokens, rounds = (int(os.environ[name]) for name in ("ROWS", "TOKENS", "ROUNDS"))
model = os.environ["MODEL"] or None
binary = os.environ["EAGLERAY_BINARY"]
params = {"max_tokens": tokens, "temperature": 0.0, "ignore_eos": True}


def prompt(number: int) -> str:
    return f"func number{number} returns"


def run_batch(count: int, tokens: int) -> tuple[float, float]:
    """Return the seconds that it says it took, with its engine's start, and all."""
    rows, out = os.path.join(folder, "rows.jsonl"), os.path.join(folder, "out.jsonl")
    with open(rows, "w") as file:
        for i in range(count):
            body = {"prompt": prompt(i), **params, "max_tokens": tokens}
            row = {"custom_id": str(i), "method": "POST", "url": "/v1/completions", "body": body}
            file.write(json.dumps(row) + "\n")
    begun = time.time()
    command = [binary, "run-batch", "-i", rows, "-o", out, *([model] if model else [])]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=True)
    wall = time.time() - begun
    os.remove(out)
    said = re.search(rf"{count} rows in ([0-9.]+) s: {count} succeeded", done.stderr)
    if said is None:
        raise SystemExit(done.stderr)
    return float(said[1]), wall


def data() -> tuple[float, float]:
    """Return the seconds between the first row's begin and the last one's end, and all."""
    config = EngineProcessorConfig(model_source=model, batch_size=128)
    processor = build_processor(
        config,
        lambda row: {"prompt": prompt(row["id"]), "sampling_params": params},
        lambda row: {
            "end": time.time(),
            "took": row["time_taken_llm"],
            "tokens": row["num_generated_tokens"],
        },
    )
    begun = time.time()
    rows = processor(ray.data.range(count, override_num_blocks=max(1, count // 128))).take_all()
    wall = time.time() - begun
    if len(rows) != count or any(row["tokens"] != tokens for row in rows):
        raise SystemExit(f"{len(rows)} rows, of {count} with {tokens} tokens each")
    first = min(row["end"] - row["took"] for row in rows)
    return max(row["end"] for row in rows) - first, wall


ray.init(
    num_cpus=max(2, os.cpu_count() or 1),
    include_dashboard=False,
    logging_level="warning",
    log_to_driver=False,
    runtime_env={"env_vars": {n: os.environ[n] for n in ("EAGLERAY_BINARY", "PYTHONPATH")}},
)
ray.data.DataContext.get_current().enable_progress_bars = False
ratios = []
for _ in range(rounds):
    start, _ = run_batch(1, 1)
    ours, ours_wall = run_batch(count, tokens)
    ours -= start
    rays, rays_wall = data()
    ratios.append(ours / rays)
    print(
        f"Ray {ray.__version__}: run-batch {count / ours:.1f} rows/s ({ours_wall:.1f} s in all), "
        f"Ray Data {count / rays:.1f} rows/s ({rays_wall:.1f} s in all), ratio {ratios[-1]:.3f}",
        flush=True,
    )
print(f"Ray {ray.__version__}: median ratio {statistics.median(ratios):.3f}", flush=True)
