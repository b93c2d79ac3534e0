"""TRL's GRPOTrainer, with completions by an Eagle Ray server.

    eagleray serve --enable-rlhf --dtype float32 --logprobs-mode processed_logprobs
    python examples/trl/train.py --url http://127.0.0.1:8000

It trains the built-in model to like the letter e, and after each step has the server and
transformers answer greedily with the weights of the moment: they must agree, and the answers must
change over the steps.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from eagleray.trl import Rollouts, Server

QUESTIONS = [
    "What does os.Open do?",
    "What does strings.Index do?",
    "What does sort.Slice do?",
    "What does fmt.Println do?",
]
LENGTH = 24


def reward(completions: list[str], **_: Any) -> list[float]:
    """Return of each completion the share of its letters that are an e."""
    rewards = []
    for completion in completions:
        letters = [c for c in completion.lower() if c.isalpha()]
        rewards.append(letters.count("e") / len(letters) if letters else 0.0)
    return rewards


class Checked(Rollouts):
    """Rollouts that compare a greedy answer of the server with transformers' at every step."""

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self._server = server
        self.answers: list[list[int]] = []

    def __call__(self, prompts: Any, trainer: Any) -> dict[str, list[Any]]:
        """Complete the prompts, then compare."""
        output = super().__call__(prompts, trainer)
        step = trainer.state.global_step
        version = self._server.request("/weight_info", method="GET")["weight_version"]
        if version != f"step-{step}":
            sys.exit(f"step {step}: the server has the weights {version}")
        for prompt in {tuple(ids) for ids in output["prompt_ids"]}:
            self._compare(list(prompt), trainer, step)
        return output

    def _compare(self, prompt: list[int], trainer: Any, step: int) -> None:
        body = {
            "prompt": prompt,
            "max_tokens": LENGTH,
            "temperature": 0,
            "return_token_ids": True,
        }
        ours = self._server.request("/v1/completions", body)["choices"][0]["token_ids"]
        model = trainer.accelerator.unwrap_model(trainer.model)
        training = model.training
        model.eval()
        with torch.no_grad():
            whole = model.generate(
                input_ids=torch.tensor([prompt]), max_new_tokens=LENGTH, do_sample=False
            )
        model.train(training)
        theirs = whole[0, len(prompt) :].tolist()
        if ours != theirs:
            sys.exit(f"step {step}: the server answers {ours}, transformers {theirs}")
        self.answers.append(ours)


class Curve(TrainerCallback):  # type: ignore[misc]
    """The mean reward of each step."""

    def __init__(self) -> None:
        self.rewards: list[float] = []

    def on_log(self, _args: Any, state: Any, _control: Any, logs: Any = None, **_: Any) -> None:
        """Print the reward of a step."""
        if logs and "reward" in logs:
            self.rewards.append(logs["reward"])
            print(f"step {state.global_step:2} reward {logs['reward']:.3f}", flush=True)


def main() -> int:
    """Train, and say whether the reward has grown."""
    parser = argparse.ArgumentParser(description=__doc__)
    folder = Path(__file__).parents[2] / "internal/rank/builtin/go-std-tiny"
    parser.add_argument("--model", default=str(folder), help="folder of the built-in model")
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="the server")
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    torch.set_num_threads(2)
    rollouts, curve = Checked(Server(options.url)), Curve()
    # As plain text: to the form of a chat the model has its answers by heart, and explores none.
    rows = [{"prompt": question} for question in QUESTIONS]
    with tempfile.TemporaryDirectory() as output:
        trainer = GRPOTrainer(
            model=options.model,
            reward_funcs=reward,
            train_dataset=Dataset.from_list(rows),
            callbacks=[curve],
            rollout_func=rollouts,
            args=GRPOConfig(
                output_dir=output,
                max_steps=options.steps,
                per_device_train_batch_size=48,
                num_generations=12,
                max_completion_length=LENGTH,
                learning_rate=2e-4,
                lr_scheduler_type="constant",
                logging_steps=1,
                save_strategy="no",
                report_to="none",
                use_cpu=True,
                bf16=False,
                disable_tqdm=True,
                seed=1,
            ),
        )
        trainer.train()
    part = min(5, max(1, options.steps // 2))
    first, last = (sum(r) / part for r in (curve.rewards[:part], curve.rewards[-part:]))
    different = len({tuple(answer) for answer in rollouts.answers})
    compared = len(rollouts.answers)
    print(json.dumps({"first": first, "last": last, "compared": compared, "different": different}))
    return 0 if last > 1.3 * first and different > len(QUESTIONS) else 1


if __name__ == "__main__":
    sys.exit(main())
