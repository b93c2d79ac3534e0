"""What the engine is asked, step by step, whatever kind of caller waits for it.

A job is a generator: it yields a route with a body, is sent the body of the answer, and returns
what the program gets.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Generator, Mapping, Sequence
from typing import Any, Optional, TypeVar

from ._completion import ROUTE, Completion, PromptType, prompt_of
from .lora import LoRARequest
from .outputs import (
    BeamSearchOutput,
    BeamSearchSequence,
    ClassificationOutput,
    ClassificationRequestOutput,
    EmbeddingOutput,
    EmbeddingRequestOutput,
    PoolingOutput,
    PoolingRequestOutput,
    RequestOutput,
    ScoringOutput,
    ScoringRequestOutput,
)
from .sampling_params import BeamSearchParams, SamplingParams

_Result = TypeVar("_Result")
Step = tuple[str, dict[str, Any]]
Job = Generator[Step, Any, _Result]

Message = Mapping[str, Any]


def completion(request: Completion) -> Job[RequestOutput]:
    """Complete a prompt."""
    request.take((yield ROUTE, request.body))
    return request.shown(finished=True)


def conversation(
    messages: Sequence[Message], options: Mapping[str, Any]
) -> Job[tuple[str, list[int]]]:
    """Return a conversation as the chat template writes it: its text and its tokens."""
    given = {name: value for name, value in options.items() if value is not None}
    answer = yield "/tokenize", {"messages": list(messages), "return_prompt": True, **given}
    return answer["prompt"], answer["tokens"]


def chat(
    messages: Sequence[Message],
    options: Mapping[str, Any],
    params: Optional[SamplingParams],
    request_id: str,
    max_model_len: int,
    lora_request: Optional[LoRARequest] = None,
) -> Job[RequestOutput]:
    """Answer a conversation."""
    text, tokens = yield from conversation(messages, options)
    request = Completion(tokens, params, request_id, max_model_len, lora_request=lora_request)
    output = yield from completion(request)
    output.prompt = text
    return output


def embedding(
    prompt: PromptType, options: Mapping[str, Any], request_id: str
) -> Job[EmbeddingRequestOutput]:
    """Embed a prompt."""
    given = {name: value for name, value in options.items() if value is not None}
    body = {"input": prompt_of(prompt), "encoding_format": "base64", "return_token_ids": True}
    answer = yield "/v1/embeddings", {**body, **given}
    (data,) = answer["data"]
    vector = _floats(data["embedding"])
    return EmbeddingRequestOutput(request_id, EmbeddingOutput(vector), data["prompt_token_ids"])


def classification(
    prompt: PromptType, options: Mapping[str, Any], request_id: str
) -> Job[ClassificationRequestOutput]:
    """Classify a prompt."""
    given = {name: value for name, value in options.items() if value is not None}
    answer = yield "/classify", {"input": prompt_of(prompt), "return_token_ids": True, **given}
    (data,) = answer["data"]
    output = ClassificationOutput(data["probs"])
    return ClassificationRequestOutput(request_id, output, data["prompt_token_ids"])


def pooling(
    prompt: PromptType, task: Optional[str], options: Mapping[str, Any], request_id: str
) -> Job[PoolingRequestOutput[PoolingOutput]]:
    """Pool a prompt for a task: into one vector, or with ``token_`` into one of each token."""
    if task not in ("embed", "classify", "token_embed", "token_classify"):
        raise ValueError(
            f"pooling_task: {task!r} is not one of 'embed', 'classify', 'token_embed' and "
            "'token_classify'"
        )
    given = {name: value for name, value in options.items() if value is not None}
    body = {"input": prompt_of(prompt), "task": task, "return_token_ids": True}
    if task.endswith("embed"):
        body["encoding_format"] = "base64"
    answer = yield "/pooling", {**body, **given}
    (item,) = answer["data"]
    ids, data = item["prompt_token_ids"], item["data"]
    if isinstance(data, str):
        data = _floats(data)
        if task.startswith("token"):
            width = len(data) // len(ids)
            data = [data[at : at + width] for at in range(0, len(data), width)]
    return PoolingRequestOutput(request_id, PoolingOutput(data), ids)


def _floats(text: str) -> list[float]:
    raw = base64.b64decode(text)
    return list(struct.unpack(f"<{len(raw) // 4}f", raw))


def scores(
    query: str, documents: Sequence[str], options: Mapping[str, Any], request_id: str
) -> Job[list[ScoringRequestOutput]]:
    """Score documents for a query."""
    given = {name: value for name, value in options.items() if value is not None}
    answer = yield "/v1/score", {"text_1": query, "text_2": list(documents), **given}
    return [
        ScoringRequestOutput(f"{request_id}-{item['index']}", ScoringOutput(item["score"]), [])
        for item in answer["data"]
    ]


def beams(
    prompt: PromptType,
    params: BeamSearchParams,
    max_model_len: int,
    lora_request: Optional[LoRARequest] = None,
) -> Job[BeamSearchOutput]:
    """Search the likeliest outputs of a prompt."""
    search = SamplingParams(
        n=params.beam_width,
        max_tokens=params.max_tokens,
        ignore_eos=params.ignore_eos,
        temperature=params.temperature,
        include_stop_str_in_output=params.include_stop_str_in_output,
        logprobs=0,
        extra_args={"use_beam_search": True, "length_penalty": params.length_penalty},
    )
    found = yield from completion(
        Completion(prompt, search, "", max_model_len, lora_request=lora_request)
    )
    return BeamSearchOutput(
        [
            BeamSearchSequence(
                tokens=(found.prompt_token_ids or []) + output.token_ids,
                logprobs=output.logprobs or [],
                cum_logprob=output.cumulative_logprob or 0.0,
                text=output.text,
                finish_reason=output.finish_reason,
                stop_reason=output.stop_reason,
            )
            for output in found.outputs
        ]
    )
