"""Policy gradients on the built-in model: it learns to like the letter e.

Each round the engine answers questions with the weights of the moment, torch computes how the
answers that were better than others to the same question become likelier, and the engine gets the
new weights.

    python examples/rlhf/train.py --plot reward.png
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import torch
from policy import Policy

from eagleray import LLM, RequestOutput, SamplingParams
from eagleray.weights import WeightTransfer

QUESTIONS = [
    "What does os.Open do?",
    "What does strings.Index do?",
    "What does sort.Slice do?",
    "What does fmt.Println do?",
]
# How many answers each question gets in a round, and how long they are.
ANSWERS, LENGTH = 12, 24


def reward(text: str) -> float:
    """Return the share of the letters of a text that are an e."""
    letters = [c for c in text.lower() if c.isalpha()]
    return letters.count("e") / len(letters) if letters else 0.0


def step(policy: Policy, optimizer: torch.optim.Optimizer, outputs: list[RequestOutput]) -> float:
    """Learn from the answers of a round, and return their mean reward."""
    rewards = torch.tensor([[reward(a.text) for a in o.outputs] for o in outputs])
    advantages = rewards - rewards.mean(1, keepdim=True)
    advantages = advantages / (advantages.std() + 1e-6)
    optimizer.zero_grad()
    count = sum(len(a.token_ids) for o in outputs for a in o.outputs)
    for output, better in zip(outputs, advantages):
        prompt = list(output.prompt_token_ids or [])
        longest = max(len(a.token_ids) for a in output.outputs)
        tokens = torch.zeros(len(output.outputs), len(prompt) + longest, dtype=torch.long)
        counts = torch.zeros(len(output.outputs), len(prompt) + longest - 1)
        for i, answer in enumerate(output.outputs):
            own = prompt + list(answer.token_ids)
            tokens[i, : len(own)] = torch.tensor(own)
            counts[i, len(prompt) - 1 : len(own) - 1] = 1
        likely = policy.logprobs(tokens) * counts
        (-(likely * better[:, None]).sum() / count).backward()
    torch.nn.utils.clip_grad_norm_(list(policy.weights.values()), 1.0)
    optimizer.step()
    return float(rewards.mean())


def plot(path: str, rewards: list[float]) -> None:
    """Draw the rewards of the rounds."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 3.5), dpi=120)
    axes.plot(range(1, len(rewards) + 1), rewards, marker="o", markersize=3)
    axes.set(xlabel="round (each with new weights)", ylabel="share of letters that are e", ylim=0)
    axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path)


def main() -> int:
    """Train, and say whether the reward has grown."""
    parser = argparse.ArgumentParser(description=__doc__)
    folder = Path(__file__).parents[2] / "internal/rank/builtin/go-std-tiny"
    parser.add_argument("--model", type=Path, default=folder, help="folder of the built-in model")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--tensor-parallel-size", type=int, default=1)
    parser.add_argument("--plot", help="file for a picture of the rewards")
    options = parser.parse_args()
    torch.manual_seed(1)
    torch.set_num_threads(2)
    policy = Policy(options.model)
    optimizer = torch.optim.Adam(policy.weights.values(), lr=2e-4)
    rewards = []
    begun = time.monotonic()
    with LLM(tensor_parallel_size=options.tensor_parallel_size, max_model_len=512) as llm:
        transfer = WeightTransfer(llm)
        for number in range(1, options.rounds + 1):
            params = SamplingParams(
                n=ANSWERS, temperature=1.0, max_tokens=LENGTH, seed=number, ignore_eos=True
            )
            outputs = llm.generate(QUESTIONS, params, use_tqdm=False)
            rewards.append(step(policy, optimizer, outputs))
            moment = time.monotonic()
            version = transfer.update(policy.state_dict(), f"round-{number}")
            took = time.monotonic() - moment
            print(
                f"{version:9} reward {rewards[-1]:.3f}   weights updated in {1000 * took:.0f} ms   "
                f"{time.monotonic() - begun:.0f} s",
                flush=True,
            )
    if options.plot:
        plot(options.plot, rewards)
    part = max(1, len(rewards) // 6)
    first, last = (sum(r) / part for r in (rewards[:part], rewards[-part:]))
    print(json.dumps({"first": first, "last": last, "seconds": time.monotonic() - begun}))
    return 0 if last > 1.5 * first else 1


if __name__ == "__main__":
    sys.exit(main())
