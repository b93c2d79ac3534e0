"""A prompt with its parameters as a request for a completion, and what its answer means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Optional, Union

from .outputs import CompletionOutput, RequestOutput
from .sampling_params import RequestOutputKind, SamplingParams, fields

ROUTE = "/v1/completions"

PromptType = Union[str, Sequence[int], Mapping[str, Any]]
"""A text, token ids, ``{"prompt": text}`` or ``{"prompt_token_ids": ids}``."""


def prompt_of(prompt: PromptType) -> Union[str, list[int]]:
    """Return a prompt as the engine takes it. Raises TypeError or ValueError."""
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, Mapping):
        if prompt.get("prompt_token_ids") is not None:
            return prompt_of(prompt["prompt_token_ids"])
        if prompt.get("prompt") is not None:
            return prompt_of(prompt["prompt"])
        raise ValueError(
            f"prompt: {sorted(prompt)} has neither 'prompt' nor 'prompt_token_ids' (text and "
            "token ids are what this engine takes)"
        )
    if isinstance(prompt, Sequence) and all(type(token) is int for token in prompt):
        return list(prompt)
    raise TypeError(f"prompt: {type(prompt).__name__} is neither a text nor a list of token ids")


class Completion:
    """A request for the completion of one prompt."""

    def __init__(
        self,
        prompt: PromptType,
        params: Optional[SamplingParams],
        request_id: str,
        priority: int = 0,
    ) -> None:
        given = prompt_of(prompt)
        self.body: dict[str, Any] = {"prompt": given, "return_token_ids": True, **fields(params)}
        if priority:
            self.body["priority"] = priority
        self._kind = params.output_kind if params else RequestOutputKind.CUMULATIVE
        self._text = params.detokenize if params else True
        self.output = RequestOutput(
            request_id=request_id,
            prompt=given if isinstance(given, str) else None,
            prompt_token_ids=None if isinstance(given, str) else given,
            prompt_logprobs=None,
            outputs=[CompletionOutput(index, "", []) for index in range(params.n if params else 1)],
            finished=False,
        )

    @property
    def stream_body(self) -> dict[str, Any]:
        """The body that asks for a stream."""
        options = {"include_usage": True}
        return {**self.body, "stream": True, "stream_options": options}

    @property
    def final_only(self) -> bool:
        """Whether nobody wants to see the output before it is finished."""
        return self._kind is RequestOutputKind.FINAL_ONLY

    @property
    def complete(self) -> bool:
        """Whether every output is finished."""
        return all(output.finished() for output in self.output.outputs)

    def take(self, answer: dict[str, Any]) -> None:
        """Add an event of a stream, or a whole answer."""
        for choice in answer["choices"]:
            self._take_choice(choice)
        details = (answer.get("usage") or {}).get("prompt_tokens_details")
        if details:
            self.output.num_cached_tokens = details["cached_tokens"]

    def _take_choice(self, choice: dict[str, Any]) -> None:
        output = self.output.outputs[choice["index"]]
        if choice["prompt_token_ids"] is not None:
            self.output.prompt_token_ids = choice["prompt_token_ids"]
        if self._text:
            output.text += choice["text"]
        output.token_ids += choice["token_ids"]
        output.finish_reason = choice["finish_reason"]
        output.stop_reason = choice["stop_reason"]

    def shown(self, finished: bool) -> RequestOutput:
        """Return what the program is shown now."""
        whole = self.output
        outputs = [
            CompletionOutput(
                o.index,
                o.text,
                list(o.token_ids),
                o.cumulative_logprob,
                None if o.logprobs is None else list(o.logprobs),
                o.finish_reason,
                o.stop_reason,
            )
            for o in whole.outputs
        ]
        if self._kind is RequestOutputKind.DELTA:
            for o in whole.outputs:
                o.text = ""
                o.token_ids = []
                o.logprobs = None if o.logprobs is None else []
        return RequestOutput(
            whole.request_id,
            whole.prompt,
            whole.prompt_token_ids,
            whole.prompt_logprobs,
            outputs,
            finished,
            whole.num_cached_tokens,
        )
