"""A row as a request of the server's API, and its answer as columns."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from eagleray.sampling_params import (
    RepetitionDetectionParams,
    SamplingParams,
    StructuredOutputsParams,
    fields,
)

from ._config import CLASSIFY, EMBED, GENERATE, SCORE, EngineProcessorConfig

ERROR = "__inference_error__"

_EMPTY: dict[str, dict[str, Any]] = {
    GENERATE: {
        "prompt_token_ids": [],
        "generated_text": "",
        "generated_tokens": [],
        "num_generated_tokens": 0,
        "finish_reason": "",
        "request_id": "",
        "params": "",
    },
    EMBED: {"embeddings": []},
    SCORE: {"score": math.nan},
    CLASSIFY: {"probs": [], "label": "", "embeddings": []},
}
ADDED = frozenset(name for columns in _EMPTY.values() for name in columns) | {
    "num_input_tokens",
    "time_taken_llm",
}
"""Columns that the engine adds to a row, whose own it never has; ``prompt`` may be its own."""
LISTS = {
    "prompt_token_ids": "int64",
    "generated_tokens": "int64",
    "embeddings": "float64",
    "probs": "float64",
}
"""Those of them that are lists, with Arrow's type of an item."""

_NESTED = {
    "structured_outputs": StructuredOutputsParams,
    "guided_decoding": StructuredOutputsParams,
    "repetition_detection": RepetitionDetectionParams,
}


def request_of(row: Mapping[str, Any], config: EngineProcessorConfig) -> tuple[str, dict[str, Any]]:
    """Return the route and the body that a row asks for. Raises ValueError or TypeError."""
    if config.task_type == EMBED:
        return "/v1/embeddings", {"input": _prompt(row), **_given(row, "pooling_params")}
    if config.task_type == CLASSIFY:
        return "/classify", {"input": _prompt(row), **_given(row, "pooling_params")}
    if config.task_type == SCORE:
        return "/v1/score", {**_pair(row), **_given(row, "pooling_params")}
    params = _params(_given(row, "sampling_params"))
    wanted = {"return_token_ids": True, **fields(params, max_model_len=0), **_adapter(row, config)}
    template = config.template
    tokens = row.get("tokenized_prompt")
    if row.get("messages") is None or tokens is not None or not template.enabled:
        return "/v1/completions", {"prompt": _prompt(row), **wanted}
    messages = [_without_none(message) for message in plain(row["messages"])]
    body: dict[str, Any] = {"messages": messages, "return_prompt_text": True, **wanted}
    if messages and messages[-1].get("role") == "assistant":
        body.update(add_generation_prompt=False, continue_final_message=True)
    if params.logprob_token_ids:
        body["logprobs"] = True
    elif params.logprobs is not None:
        body.update(logprobs=True, top_logprobs=params.logprobs)
    for name in ("chat_template", "chat_template_kwargs"):
        if getattr(template, name) is not None:
            body[name] = getattr(template, name)
    if row.get("tools") is not None:
        body["tools"] = [_without_none(tool) for tool in plain(row["tools"])]
    return "/v1/chat/completions", body


def _adapter(row: Mapping[str, Any], config: EngineProcessorConfig) -> dict[str, Any]:
    """Return the adapter that a row names as its model."""
    name = row.get("model")
    if config.dynamic_lora_loading_path is None or name in (None, "", config.model_source):
        return {}
    return {"model": str(name)}


def outputs_of(
    row: Mapping[str, Any], body: Mapping[str, Any], answer: Mapping[str, Any], text: bool
) -> dict[str, Any]:
    """Return the columns that an answer adds to a row; ``text`` is whether to show texts."""
    usage = answer["usage"]
    common = {"num_input_tokens": usage["prompt_tokens"]}
    if "data" in answer:
        (data,) = answer["data"]
        if "score" in data:
            return {**common, "score": data["score"]}
        if "probs" in data:
            # Ray has what a classifier says under the name of an embedding.
            said = {"probs": data["probs"], "label": data["label"]}
            return {**common, **said, "embeddings": data["probs"]}
        return {**common, "embeddings": data["embedding"]}
    choice = answer["choices"][0]
    message = choice.get("message")
    generated = choice["text"] if message is None else message.get("content") or ""
    prompt = body.get("prompt") if message is None else answer.get("prompt_text")
    ids = choice.get("prompt_token_ids") or answer.get("prompt_token_ids") or []
    outputs = {
        **common,
        "prompt": prompt if isinstance(prompt, str) else "",
        "prompt_token_ids": ids,
        "generated_text": generated if text else "",
        "generated_tokens": choice["token_ids"],
        "num_generated_tokens": usage["completion_tokens"],
        "finish_reason": choice["finish_reason"],
        "request_id": answer["id"],
        "params": json.dumps(_given(row, "sampling_params")),
    }
    # As JSON: their keys differ from row to row, which columns cannot.
    for name, value in (
        ("logprobs", choice.get("logprobs")),
        ("prompt_logprobs", choice.get("prompt_logprobs") or answer.get("prompt_logprobs")),
        ("tool_calls", (message or {}).get("tool_calls")),
        ("reasoning", (message or {}).get("reasoning")),
    ):
        if value:
            outputs[name] = value if isinstance(value, str) else json.dumps(value)
    return outputs


def shows_text(row: Mapping[str, Any], config: EngineProcessorConfig) -> bool:
    """Say whether an answer has its text: by the stage for it, or by a row that asks for it."""
    return config.detokenizing.enabled or _given(row, "sampling_params").get("detokenize") is True


def failed(row: Mapping[str, Any], error: str, config: EngineProcessorConfig) -> dict[str, Any]:
    """Return the columns of a row without an answer: those of the others, empty."""
    columns = {"num_input_tokens": 0, **_EMPTY[config.task_type], "time_taken_llm": -1.0}
    if config.task_type == GENERATE:
        prompt = row.get("prompt")
        columns["prompt"] = prompt if isinstance(prompt, str) else ""
    return {**columns, ERROR: error}


def plain(value: Any) -> Any:
    """Return a value of NumPy or Arrow as Python's own."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {key: plain(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return value


def _given(row: Mapping[str, Any], column: str) -> dict[str, Any]:
    given = row.get(column)
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise TypeError(f"{column}: {type(given).__name__} is no dict")
    # Of a dict from a column, what another row has is None.
    return {key: plain(value) for key, value in given.items() if value is not None}


def _params(given: dict[str, Any]) -> SamplingParams:
    for name, kind in _NESTED.items():
        if isinstance(given.get(name), Mapping):
            value = {k: v for k, v in given.pop(name).items() if v is not None}
            given["structured_outputs" if name == "guided_decoding" else name] = kind(**value)
    try:
        return SamplingParams(**given)
    except TypeError as err:
        raise TypeError(f"sampling_params: {err}") from None


def _prompt(row: Mapping[str, Any]) -> Any:
    tokens = row.get("tokenized_prompt")
    if tokens is not None:
        ids = plain(tokens)
        if not isinstance(ids, Sequence) or not all(type(token) is int for token in ids):
            raise TypeError("tokenized_prompt: not a list of token ids")
        return ids
    prompt = row.get("prompt")
    if not isinstance(prompt, str):
        raise ValueError(
            f"the row has neither messages nor a text as prompt nor tokenized_prompt: its columns "
            f"are {', '.join(sorted(row))}"
        )
    return prompt


def _pair(row: Mapping[str, Any]) -> dict[str, Any]:
    pair = {name: row.get(name) for name in ("text_1", "text_2")}
    for name, text in pair.items():
        if not isinstance(text, str):
            raise ValueError(f"{name}: {type(text).__name__} is no text; two are scored")
    return pair


def _without_none(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_none(v) for key, v in value.items() if v is not None}
    if isinstance(value, list):
        return [_without_none(v) for v in value]
    return value
