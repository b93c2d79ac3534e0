"""Compares figures of lm-evaluation-harness: by transformers, by ``LLM``, by a server.

The tasks are made here, of this project's documents: choices, perplexity, answers up to a stop
string. A figure that differs by more than a millionth ends it with an error.

    python scripts/lm_eval_agrees.py MODEL URL
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager

from eagleray.lm_eval import EagleRay

FUNCTIONS = ["os.Open", "os.Create", "strings.Index", "strings.Split", "sort.Slice", "time.Sleep"]
TASKS: dict[str, dict[str, Any]] = {
    "choices": {
        "output_type": "multiple_choice",
        "doc_to_text": "{{text}}",
        "doc_to_target": "answer",
        "doc_to_choice": "choices",
        "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
    },
    "perplexity": {
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "{{text}}",
        "metric_list": [{"metric": "byte_perplexity"}, {"metric": "bits_per_byte"}],
    },
    "answers": {
        "output_type": "generate_until",
        "doc_to_text": "What does {{text}} do?",
        "doc_to_target": "{{text}} returns",
        "generation_kwargs": {"until": ["\n\n"], "max_gen_toks": 40},  # no sampling, then
        "metric_list": [{"metric": "chrf"}],
    },
}


def rows() -> dict[str, list[dict[str, Any]]]:
    """Return what the tasks ask."""
    pages = sorted((Path(__file__).parent.parent / "docs").glob("*.md"))
    parts = [part for page in pages for part in page.read_text().split("\n\n")]
    texts = [part for part in parts if 200 < len(part) < 900 and part[0].isalpha()][:64]
    draw = random.Random(1)
    choices = []
    for text in texts:
        words = text.split()
        half = len(words) // 2
        offered = [draw.sample(words, 4) for _ in range(3)] + [words[half : half + 4]]
        draw.shuffle(offered)
        choices.append(
            {
                "text": " ".join(words[:half]),
                "choices": [" ".join(some) for some in offered],
                "answer": offered.index(words[half : half + 4]),
            }
        )
    return {
        "choices": choices,
        "perplexity": [{"text": text} for text in texts],
        "answers": [{"text": name} for name in FUNCTIONS],
    }


def write(folder: Path) -> None:
    """Write the tasks where the harness finds them."""
    for name, asked in rows().items():
        data = folder / f"{name}.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in asked))
        task = {
            "task": name,
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"test": str(data)}},
            "test_split": "test",
            **TASKS[name],
        }
        (folder / f"{name}.yaml").write_text(json.dumps(task))


def figures(results: dict[str, Any]) -> dict[str, float]:
    """Return the figures of all tasks, but for what the harness estimates of their errors."""
    return {
        f"{task}: {metric.partition(',')[0]}": value
        for task, of in sorted(results["results"].items())
        for metric, value in of.items()
        if isinstance(value, float) and "stderr" not in metric
    }


def main(model: str, url: str) -> None:
    """Print the figures of the three beside each other."""
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        tasks = TaskManager(include_path=folder, include_defaults=False)
        server = f"model=served,base_url={url}/v1/completions,tokenizer={model},max_length=2048"
        found = [
            figures(
                simple_evaluate(
                    of, model_args=args, tasks=list(TASKS), task_manager=tasks, device="cpu"
                )
            )
            for of, args in (
                ("hf", f"pretrained={model},dtype=float32"),
                (EagleRay(model, dtype="float32"), None),
                ("local-completions", server),
            )
        ]
    print(f"{'':32}{'transformers':>16}{'LLM':>16}{'a server':>16}")
    for name, want in found[0].items():
        print(f"{name:32}" + "".join(f"{of[name]:16.6f}" for of in found))
        if any(abs(of[name] - want) > 1e-6 * max(1, abs(want)) for of in found):
            sys.exit(f"{name} differs")
    if not found[0]:
        sys.exit("no figures")


if __name__ == "__main__":
    main(*sys.argv[1:])
