"""What a request is answered with, with vLLM's names."""

from __future__ import annotations

import dataclasses
from typing import Optional, Union


@dataclasses.dataclass
class Logprob:
    """The log-probability of a token, its rank (1 is the likeliest) and its text."""

    logprob: float
    rank: Optional[int] = None
    decoded_token: Optional[str] = None


SampleLogprobs = list[dict[int, Logprob]]
PromptLogprobs = list[Optional[dict[int, Logprob]]]


@dataclasses.dataclass
class CompletionOutput:
    """One of the ``n`` outputs of a request."""

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: Optional[float] = None
    logprobs: Optional[SampleLogprobs] = None
    finish_reason: Optional[str] = None
    """``stop``, ``length`` or ``repetition``; None while it is not finished."""
    stop_reason: Union[int, str, None] = None
    """The stop string or the token that ended it; None for the end-of-sequence token."""

    def finished(self) -> bool:
        """Say whether nothing more comes."""
        return self.finish_reason is not None


@dataclasses.dataclass
class RequestOutput:
    """The outputs of one prompt."""

    request_id: str
    prompt: Optional[str]
    prompt_token_ids: Optional[list[int]]
    prompt_logprobs: Optional[PromptLogprobs]
    outputs: list[CompletionOutput]
    finished: bool
    num_cached_tokens: Optional[int] = None
    """Tokens of the prompt that the prefix cache had."""
