"""A prompt with its parameters as a request for a completion, and what its answer means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Optional, TypeVar, Union

from .lora import LoRARequest
from .outputs import CompletionOutput, Logprob, RequestOutput
from .sampling_params import RequestOutputKind, SamplingParams, fields

ROUTE = "/v1/completions"

PromptType = Union[str, Sequence[int], Mapping[str, Any]]
"""A text, token ids, ``{"prompt": text}`` or ``{"prompt_token_ids": ids}``."""

_Value = TypeVar("_Value")

_MEMBERS = ("prompt", "prompt_token_ids", "cache_salt")


def prompt_of(prompt: PromptType) -> Union[str, list[int]]:
    """Return a prompt as the engine takes it. Raises TypeError or ValueError."""
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, Mapping):
        for name, value in prompt.items():
            if name not in _MEMBERS and value is not None:
                raise ValueError(
                    f"prompt: {name!r} is no member that this engine takes: {_MEMBERS}"
                )
        for name in ("prompt_token_ids", "prompt"):
            if prompt.get(name) is not None:
                return prompt_of(prompt[name])
        raise ValueError(
            f"prompt: {sorted(prompt)} has neither 'prompt' nor 'prompt_token_ids' (text and "
            "token ids are what this engine takes)"
        )
    if is_tokens(prompt):
        return list(prompt)
    raise TypeError(f"prompt: {type(prompt).__name__} is neither a text nor a list of token ids")


def is_tokens(prompt: object) -> bool:
    """Say whether a prompt is a list of token ids."""
    return isinstance(prompt, Sequence) and all(type(token) is int for token in prompt)


class Completion:
    """A request for the completion of one prompt, and its output as it comes."""

    def __init__(
        self,
        prompt: PromptType,
        params: Optional[SamplingParams],
        request_id: str,
        max_model_len: int,
        priority: int = 0,
        lora_request: Optional[LoRARequest] = None,
    ) -> None:
        given = prompt_of(prompt)
        self.body: dict[str, Any] = {
            "prompt": given,
            "return_token_ids": True,
            "logprobs_by_id": True,
            "cap_max_tokens": True,
            **fields(params, max_model_len),
        }
        if priority:
            self.body["priority"] = priority
        if lora_request is not None:
            self.body["model"] = lora_request.lora_name
        if isinstance(prompt, Mapping) and prompt.get("cache_salt") is not None:
            self.body["cache_salt"] = prompt["cache_salt"]
        self._params = params or SamplingParams()
        self._output = RequestOutput(
            request_id=request_id,
            prompt=given if isinstance(given, str) else None,
            prompt_token_ids=None if isinstance(given, str) else given,
            prompt_logprobs=None,
            outputs=[self._empty(index) for index in range(self._params.n)],
            finished=False,
            lora_request=lora_request,
        )

    def _empty(self, index: int) -> CompletionOutput:
        if self._params.num_logprobs is None:
            return CompletionOutput(index, "", [])
        return CompletionOutput(index, "", [], cumulative_logprob=0.0, logprobs=[])

    @property
    def stream_body(self) -> dict[str, Any]:
        """The body that asks for a stream."""
        return {**self.body, "stream": True, "stream_options": {"include_usage": True}}

    @property
    def at_once(self) -> bool:
        """Whether the answer is no stream: none is wanted, or it cannot be one."""
        return (
            self._params.output_kind is RequestOutputKind.FINAL_ONLY
            or self._params.prompt_logprobs is not None
        )

    @property
    def complete(self) -> bool:
        """Whether every output is finished."""
        return all(output.finished() for output in self._output.outputs)

    @property
    def aborted(self) -> bool:
        """Whether the engine has ended an output before it was complete."""
        return any(output.finish_reason == "abort" for output in self._output.outputs)

    def take(self, answer: Mapping[str, Any]) -> None:
        """Add an event of a stream, or a whole answer."""
        for choice in answer["choices"]:
            self._take_choice(choice)
        details = (answer.get("usage") or {}).get("prompt_tokens_details")
        if details:
            self._output.num_cached_tokens = details["cached_tokens"]
        if answer.get("kv_transfer_params"):
            self._output.kv_transfer_params = answer["kv_transfer_params"]

    def _take_choice(self, choice: Mapping[str, Any]) -> None:
        output = self._output.outputs[choice["index"]]
        if choice["prompt_token_ids"] is not None:
            self._output.prompt_token_ids = choice["prompt_token_ids"]
        if choice.get("prompt_logprobs") is not None:
            self._output.prompt_logprobs = [
                None if position is None else _logprobs(position)
                for position in choice["prompt_logprobs"]
            ]
        if self._params.detokenize:
            output.text += choice["text"]
        output.token_ids += choice["token_ids"]
        if output.logprobs is not None and output.cumulative_logprob is not None:
            for token, position in zip(choice["token_ids"], choice["logprobs"]):
                output.logprobs.append(_logprobs(position))
                output.cumulative_logprob += output.logprobs[-1][token].logprob
        output.finish_reason = choice["finish_reason"]
        output.stop_reason = choice["stop_reason"]

    def shown(self, finished: bool) -> RequestOutput:
        """Return what the program is shown now: all of it, or what is new."""
        shown = _shallow(self._output)
        shown.finished = finished
        if self._params.output_kind is RequestOutputKind.DELTA:
            self._output.outputs = [self._rest(o) for o in shown.outputs]
            if not finished:
                shown.outputs = [o for o in shown.outputs if o.token_ids or o.finished()]
        elif not finished:
            shown.outputs = [_copy(o) for o in shown.outputs]
        return shown

    def _rest(self, output: CompletionOutput) -> CompletionOutput:
        """Return an output of which everything was shown."""
        rest = self._empty(output.index)
        rest.cumulative_logprob = output.cumulative_logprob
        rest.finish_reason, rest.stop_reason = output.finish_reason, output.stop_reason
        return rest


def _shallow(value: _Value) -> _Value:
    """Return a copy, as copy.copy does in six times the time: there is one for each token."""
    copied = object.__new__(type(value))
    copied.__dict__.update(value.__dict__)
    return copied


def _copy(output: CompletionOutput) -> CompletionOutput:
    copied = _shallow(output)
    copied.token_ids = list(output.token_ids)
    if output.logprobs is not None:
        copied.logprobs = list(output.logprobs)
    return copied


def _logprobs(position: Mapping[str, Any]) -> dict[int, Logprob]:
    return {
        int(token): Logprob(entry["logprob"], entry["rank"], entry["decoded_token"])
        for token, entry in position.items()
    }
