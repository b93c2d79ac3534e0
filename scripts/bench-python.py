"""Compare eagleray.LLM with "eagleray run-batch" on the same rows, start of the engine included.

    PYTHONPATH=python EAGLERAY_BINARY=bin/eagleray \\
        python3 scripts/bench-python.py [MODEL [FLAG=VALUE …]]

The two take turns; the medians count. ROWS (256), TOKENS (128) and TURNS (5) are environment
variables.
"""

from __future__ import annotations

import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import eagleray
from eagleray import _binary

ROWS = int(os.environ.get("ROWS", "256"))
TOKENS = int(os.environ.get("TOKENS", "128"))
TURNS = int(os.environ.get("TURNS", "5"))


def prompt(row: int) -> str:
    """Return the prompt of a row; no two begin alike."""
    return f"{row}: What does os.Open do, and what does strings.Index return?"


def batch(folder: pathlib.Path, model: str, flags: dict[str, str]) -> tuple[float, int]:
    """Return the seconds and the output tokens of run-batch."""
    rows, answers = folder / "rows.jsonl", folder / "answers.jsonl"
    body = {"max_tokens": TOKENS, "ignore_eos": True, "temperature": 0}
    with rows.open("w") as file:
        for row in range(ROWS):
            asked = {"custom_id": str(row), "method": "POST", "url": "/v1/completions"}
            print(json.dumps({**asked, "body": {**body, "prompt": prompt(row)}}), file=file)
    answers.unlink(missing_ok=True)
    command = [str(_binary.find()), "run-batch", "-i", str(rows), "-o", str(answers)]
    command += [f"--{name}={value}" for name, value in flags.items()] + [model] * bool(model)
    begun = time.monotonic()
    subprocess.run(command, check=True, stderr=subprocess.PIPE)
    took = time.monotonic() - begun
    lines = [json.loads(line)["response"]["body"] for line in answers.open()]
    return took, sum(line["usage"]["completion_tokens"] for line in lines)


def python(model: str, flags: dict[str, str]) -> tuple[float, int]:
    """Return the seconds and the output tokens of LLM.generate."""
    params = eagleray.SamplingParams(max_tokens=TOKENS, ignore_eos=True, temperature=0)
    begun = time.monotonic()
    with eagleray.LLM(model or None, **flags) as llm:
        outputs = llm.generate([prompt(row) for row in range(ROWS)], params, use_tqdm=False)
    took = time.monotonic() - begun
    return took, sum(len(output.outputs[0].token_ids) for output in outputs)


def main() -> None:
    """Measure both, and print a line for each."""
    model = next((arg for arg in sys.argv[1:] if "=" not in arg), "")
    flags = dict(arg.split("=", 1) for arg in sys.argv[1:] if "=" in arg)
    taken: dict[str, list[float]] = {"run-batch": [], "LLM": []}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(TURNS):
            for name, (took, tokens) in (
                ("run-batch", batch(pathlib.Path(folder), model, flags)),
                ("LLM", python(model, flags)),
            ):
                if tokens != ROWS * TOKENS:
                    sys.exit(f"{name}: {tokens} tokens, not {ROWS * TOKENS}")
                taken[name].append(ROWS * TOKENS / took)
    for name, rates in taken.items():
        low, middle, high = min(rates), statistics.median(rates), max(rates)
        print(f"{name:10} {middle:8.0f} tokens/s  ({low:.0f} to {high:.0f})")
    ratio = statistics.median(taken["LLM"]) / statistics.median(taken["run-batch"])
    print(f"{'ratio':10} {ratio:8.3f}")


if __name__ == "__main__":
    main()
