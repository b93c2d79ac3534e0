"""The rollouts of TRL's trainers, by an engine that gets the trainer's weights after each step.

An unmodified ``GRPOTrainer`` takes them as an argument::

    GRPOTrainer(..., rollout_func=Rollouts(Server("http://10.0.0.1:8000"), transport="tcp"))

TRL's own client for servers brings weights over NCCL, which is of CUDA devices alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from .weights import Ask, Server, WeightTransfer

__all__ = ["Rollouts", "Server"]

# How many groups of completions are asked for at once: as many as TRL's own client does.
_AT_ONCE = 64


class Rollouts:
    """A ``rollout_func``: it completes the prompts of a step with the weights of that step.

    engine is an ``LLM``, or a ``Server`` that was started with ``--enable-rlhf``; transport is that
    of a ``WeightTransfer``. Of the trainer's processes the main one brings the weights, and each
    completes its own prompts. Weights are in the engine's ``--dtype``: start it with ``float32``
    for a trainer that trains in it, and with ``--logprobs-mode processed_logprobs``, by which TRL
    weighs samples of any temperature.
    """

    def __init__(self, engine: Ask, transport: str = "shm") -> None:
        self._engine, self._transport = engine, transport
        self._model = engine.request("/v1/models", method="GET")["data"][0]["id"]
        self._transfer: Any = None
        self._step: Any = None

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> dict[str, list[Any]]:
        """Return the token ids of each prompt and of its completion, and their logprobs."""
        if trainer.state.global_step != self._step:
            self._bring(trainer)
            self._step = trainer.state.global_step
        ids = _tokenized(prompts, trainer)
        training = trainer.model.training
        most = trainer.num_generations if training else trainer.num_generations_eval
        options = _options(trainer)
        groups = _groups(ids, most)
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            answers = threads.map(lambda group: self._complete(group[0], group[1], options), groups)
            choices = [choice for answer in answers for choice in answer]
        return {
            "prompt_ids": ids,
            "completion_ids": [choice["token_ids"] for choice in choices],
            "logprobs": [choice["logprobs"]["token_logprobs"] for choice in choices],
        }

    def _bring(self, trainer: Any) -> None:
        """Have the engine compute with the trainer's weights before any process asks it."""
        accelerator = trainer.accelerator
        # The model's ranks gather its parts together: none may be left out.
        weights = _merged(accelerator, trainer.model_wrapped)
        if accelerator.is_main_process:
            if self._transfer is None:
                self._transfer = WeightTransfer(self._engine, self._transport)
            self._transfer.update(weights, f"step-{trainer.state.global_step}")
        accelerator.wait_for_everyone()

    def _complete(self, ids: list[int], count: int, options: Mapping[str, Any]) -> list[Any]:
        body = {"model": self._model, "prompt": ids, "n": count, **options}
        choices = self._engine.request("/v1/completions", body)["choices"]
        return sorted(choices, key=lambda choice: choice["index"])


def _merged(accelerator: Any, model: Any) -> dict[str, Any]:
    """Return all weights of a model under the names of its checkpoint."""
    if hasattr(accelerator.unwrap_model(model), "merge_adapter"):
        raise TypeError("the weights of a model with PEFT adapters are not brought: train it whole")
    return dict(accelerator.get_state_dict(model))


def _tokenized(prompts: Sequence[Any], trainer: Any) -> list[list[int]]:
    """Return prompts as the token ids that the trainer computes with."""
    tokenizer = trainer.processing_class
    if isinstance(prompts[0], str):
        return [list(ids) for ids in tokenizer(text=list(prompts))["input_ids"]]
    rendered = tokenizer.apply_chat_template(
        conversation=list(prompts),
        tools=trainer.tools or None,
        chat_template=trainer.chat_template,
        add_generation_prompt=True,
        tokenize=True,
        return_dict=True,
        **trainer.chat_template_kwargs,
    )
    return [list(ids) for ids in rendered["input_ids"]]


def _options(trainer: Any) -> dict[str, Any]:
    """Return the fields of a request by the trainer's arguments."""
    args = trainer.args
    return {
        "max_tokens": args.max_completion_length,
        "temperature": args.temperature,
        "top_p": args.top_p,
        "top_k": args.top_k,
        "min_p": 0.0 if args.min_p is None else args.min_p,
        "repetition_penalty": args.repetition_penalty,
        "logprobs": 0,
        "return_token_ids": True,
        **(args.generation_kwargs or {}),
    }


def _groups(prompts: list[list[int]], most: int) -> list[tuple[list[int], int]]:
    """Return runs of equal prompts, of at most so many, and how long each is.

    TRL repeats a prompt for each of its completions. Asked for together, they have seeds of their
    own where the trainer's ``generation_kwargs`` name one.
    """
    groups: list[tuple[list[int], int]] = []
    for prompt in prompts:
        if groups and groups[-1][0] == prompt and groups[-1][1] < most:
            groups[-1] = (prompt, groups[-1][1] + 1)
        else:
            groups.append((prompt, 1))
    return groups
