"""An engine for batches."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Optional, TypeVar, Union

from . import _jobs, _progress, _waiting
from ._arguments import command_and_environment, refuse_adapter
from ._calls import Calls
from ._completion import Completion, PromptType, is_tokens
from ._engine import Engine
from ._jobs import Job, Message
from ._progress import UseTqdm
from .engine_args import EngineArgs
from .lora import Adapters, LoRARequest
from .metrics import Metric, read_metrics
from .outputs import (
    BeamSearchOutput,
    ClassificationRequestOutput,
    EmbeddingRequestOutput,
    PoolingOutput,
    PoolingRequestOutput,
    RequestOutput,
    ScoringRequestOutput,
)
from .sampling_params import BeamSearchParams, SamplingParams
from .tokenizer import Tokenizer
from .weights import Trainable

_Result = TypeVar("_Result")
Params = Optional[Union[SamplingParams, Sequence[Optional[SamplingParams]]]]
Lora = Optional[Union[LoRARequest, Sequence[Optional[LoRARequest]]]]


class LLM(Trainable):
    """A model and its engine, a process of its own that ends with this one.

    The keyword arguments are the engine's flags with vLLM's names: ``tensor_parallel_size=2``.
    Without a model it is the built-in one. A wrong argument is a ConfigError, a ValueError.

    Any thread may use it. It is closed by :meth:`close`, by the end of a ``with`` block, and with
    the last reference to it.
    """

    def __init__(self, model: Optional[str] = None, **engine_args: Any) -> None:
        self._engine = Engine(*command_and_environment({"model": model, **engine_args}))
        self._calls = Calls(self._engine)
        self._finalizer = weakref.finalize(self, self._calls.close)
        self._names = itertools.count()
        self._adapters = Adapters()

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs) -> LLM:
        """Start an engine with arguments that are an object."""
        return cls(**vars(engine_args))

    def generate(
        self,
        prompts: Union[PromptType, Sequence[PromptType]],
        sampling_params: Params = None,
        *,
        use_tqdm: UseTqdm = True,
        lora_request: Lora = None,
        priority: Optional[Sequence[int]] = None,
    ) -> list[RequestOutput]:
        """Complete prompts, and return their outputs in order.

        There is one SamplingParams for all, or one for each; None is the model's own. So it is
        with adapters, of an engine with ``enable_lora``. The first prompt that is refused ends the
        batch with a BadRequestError.
        """
        many = _many(prompts)
        each = _for_each(sampling_params, len(many), "sampling_params")
        ranks = _for_each(priority, len(many), "priority")
        adapters = self._load(lora_request, len(many))
        requests = [
            Completion(prompt, params, self._name(), self._length, rank or 0, adapter)
            for prompt, params, rank, adapter in zip(many, each, ranks, adapters)
        ]
        return self._run([_jobs.completion(r) for r in requests], use_tqdm, "Processed prompts")

    def chat(
        self,
        messages: Union[Sequence[Message], Sequence[Sequence[Message]]],
        sampling_params: Params = None,
        use_tqdm: UseTqdm = True,
        lora_request: Lora = None,
        *,
        chat_template: Optional[str] = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Optional[Sequence[Mapping[str, Any]]] = None,
        chat_template_kwargs: Optional[Mapping[str, Any]] = None,
    ) -> list[RequestOutput]:
        """Answer a conversation, or a list of them, and return the outputs in order.

        The text of an output is all that the model wrote: reasoning and tool calls are not taken
        out of it (``request("/v1/chat/completions", …)`` does that).
        """
        one = bool(messages) and isinstance(messages[0], Mapping)
        many: Any = [messages] if one else list(messages)
        options = {
            "chat_template": chat_template,
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": continue_final_message,
            "tools": None if tools is None else list(tools),
            "chat_template_kwargs": chat_template_kwargs,
        }
        each = _for_each(sampling_params, len(many), "sampling_params")
        adapters = self._load(lora_request, len(many))
        jobs = [
            _jobs.chat(conversation, options, params, self._name(), self._length, adapter)
            for conversation, params, adapter in zip(many, each, adapters)
        ]
        return self._run(jobs, use_tqdm, "Processed prompts")

    def embed(
        self,
        prompts: Union[PromptType, Sequence[PromptType]],
        *,
        use_tqdm: UseTqdm = True,
        lora_request: None = None,
        truncate_prompt_tokens: Optional[int] = None,
        dimensions: Optional[int] = None,
        normalize: Optional[bool] = None,
    ) -> list[EmbeddingRequestOutput]:
        """Embed prompts, with a model that was started with ``runner="pooling"``."""
        refuse_adapter(lora_request)
        options = {
            "truncate_prompt_tokens": truncate_prompt_tokens,
            "dimensions": dimensions,
            "normalize": normalize,
        }
        jobs = [_jobs.embedding(prompt, options, self._name()) for prompt in _many(prompts)]
        return self._run(jobs, use_tqdm, "Processed prompts")

    def classify(
        self,
        prompts: Union[PromptType, Sequence[PromptType]],
        *,
        use_tqdm: UseTqdm = True,
        lora_request: None = None,
        truncate_prompt_tokens: Optional[int] = None,
        use_activation: Optional[bool] = None,
    ) -> list[ClassificationRequestOutput]:
        """Classify prompts, with a ``…ForSequenceClassification`` model."""
        refuse_adapter(lora_request)
        options = {
            "truncate_prompt_tokens": truncate_prompt_tokens,
            "use_activation": use_activation,
        }
        jobs = [_jobs.classification(prompt, options, self._name()) for prompt in _many(prompts)]
        return self._run(jobs, use_tqdm, "Processed prompts")

    def encode(
        self,
        prompts: Union[PromptType, Sequence[PromptType]],
        *,
        use_tqdm: UseTqdm = True,
        lora_request: None = None,
        truncate_prompt_tokens: Optional[int] = None,
        pooling_task: Optional[str] = None,
    ) -> list[PoolingRequestOutput[PoolingOutput]]:
        """Pool prompts for a task: ``embed``, or ``classify`` with a classifier.

        ``token_embed`` and ``token_classify`` do so for each token: the data of an output is a
        list of lists.
        """
        refuse_adapter(lora_request)
        options = {"truncate_prompt_tokens": truncate_prompt_tokens}
        jobs = [
            _jobs.pooling(prompt, pooling_task, options, self._name()) for prompt in _many(prompts)
        ]
        return self._run(jobs, use_tqdm, "Processed prompts")

    def score(
        self,
        data_1: Union[str, Sequence[str]],
        data_2: Union[str, Sequence[str]],
        *,
        use_tqdm: UseTqdm = True,
        lora_request: None = None,
        truncate_prompt_tokens: Optional[int] = None,
    ) -> list[ScoringRequestOutput]:
        """Score pairs of texts: one with each of the others, or each with its own."""
        refuse_adapter(lora_request)
        first = [data_1] if isinstance(data_1, str) else list(data_1)
        second = [data_2] if isinstance(data_2, str) else list(data_2)
        if len(first) not in (1, len(second)):
            raise ValueError(
                f"score: {len(first)} texts meet {len(second)}: give one, or as many as the others"
            )
        options = {"truncate_prompt_tokens": truncate_prompt_tokens}
        if len(first) == 1:
            first *= len(second)
        jobs = [
            _jobs.scores(query, [document], options, self._name())
            for query, document in zip(first, second)
        ]
        return [score for (score,) in self._run(jobs, use_tqdm, "Processed pairs")]

    def beam_search(
        self,
        prompts: Union[PromptType, Sequence[PromptType]],
        params: BeamSearchParams,
        *,
        use_tqdm: UseTqdm = False,
        lora_request: Lora = None,
    ) -> list[BeamSearchOutput]:
        """Search the likeliest outputs of prompts, and return the beams of each, best first."""
        many = _many(prompts)
        adapters = self._load(lora_request, len(many))
        jobs = [
            _jobs.beams(prompt, params, self._length, adapter)
            for prompt, adapter in zip(many, adapters)
        ]
        return self._run(jobs, use_tqdm, "Beam search")

    def get_tokenizer(self) -> Tokenizer:
        """Return the tokenizer, which is in the engine."""
        return Tokenizer(self.request, self._engine.ready)

    def get_metrics(self) -> list[Metric]:
        """Return what the engine counts, under vLLM's names."""
        return read_metrics(self.request("/metrics", method="GET"))

    def get_default_sampling_params(self) -> SamplingParams:
        """Return what the model's generation_config.json says, else vLLM's defaults."""
        return SamplingParams(**self._engine.ready["sampling"])

    def request(
        self, route: str, body: Optional[dict[str, Any]] = None, method: str = "POST"
    ) -> Any:
        """Ask any route of the server's API, and return the body of the answer."""
        return _waiting.ask(self._calls, route, body, method)

    def close(self) -> None:
        """End the engine. Calling it twice is harmless."""
        self._finalizer()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _length(self) -> int:
        return int(self._engine.ready["max_model_len"])

    def _name(self) -> str:
        return str(next(self._names))

    def _load(self, lora_request: Lora, count: int) -> list[Optional[LoRARequest]]:
        """Have the engine load what is missing of the adapters of some prompts."""
        adapters = _for_each(lora_request, count, "lora_request")
        self._adapters.load(adapters, self.request)
        return adapters

    def _run(self, jobs: Sequence[Job[_Result]], use_tqdm: UseTqdm, what: str) -> list[_Result]:
        return _waiting.run(self._calls, jobs, _progress.bar(use_tqdm, len(jobs), what))


def _many(prompts: Union[PromptType, Sequence[PromptType]]) -> list[PromptType]:
    """Return a list of prompts of one or several."""
    if isinstance(prompts, (str, Mapping)):
        return [prompts]
    listed: list[Any] = list(prompts)
    return [listed] if listed and is_tokens(listed) else listed


def _for_each(values: Any, count: int, what: str) -> list[Any]:
    """Return a value for each of some prompts, where there may be one for all."""
    if isinstance(values, Sequence):
        if len(values) != count:
            raise ValueError(f"{what}: there are {len(values)} for {count} prompts")
        return list(values)
    return [values] * count
