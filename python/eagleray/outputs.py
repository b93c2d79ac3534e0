"""What requests are answered with, with vLLM's names."""

from __future__ import annotations

import dataclasses
from typing import Any, Generic, Optional, TypeVar, Union

from .lora import LoRARequest


@dataclasses.dataclass
class Logprob:
    """The log-probability of a token, its rank (1 is the likeliest) and its text."""

    logprob: float
    rank: Optional[int] = None
    decoded_token: Optional[str] = None


SampleLogprobs = list[dict[int, Logprob]]
"""For each token of an output: the token itself first, then the most likely ones."""

PromptLogprobs = list[Optional[dict[int, Logprob]]]
"""The same of a prompt, whose first token has none."""


@dataclasses.dataclass
class CompletionOutput:
    """One of the ``n`` outputs of a request."""

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: Optional[float] = None
    """The sum over ``token_ids``, where log-probabilities are asked for."""
    logprobs: Optional[SampleLogprobs] = None
    finish_reason: Optional[str] = None
    """``stop``, ``length``, ``abort`` or ``repetition``; None while it is not finished."""
    stop_reason: Union[int, str, None] = None
    """The stop string or the token that ended it; None for the end-of-sequence token."""
    lora_request: Optional[LoRARequest] = None
    kv_transfer_params: Optional[dict[str, Any]] = None

    def finished(self) -> bool:
        """Say whether nothing more comes."""
        return self.finish_reason is not None


@dataclasses.dataclass
class RequestOutput:
    """The outputs of one prompt."""

    request_id: str
    prompt: Optional[str]
    """The text, of a conversation as the chat template made it; None for token ids."""
    prompt_token_ids: Optional[list[int]]
    prompt_logprobs: Optional[PromptLogprobs]
    outputs: list[CompletionOutput]
    finished: bool
    metrics: None = None
    lora_request: Optional[LoRARequest] = None
    num_cached_tokens: Optional[int] = None
    """Tokens of the prompt that the prefix cache had; None until it is finished."""
    kv_transfer_params: Optional[dict[str, Any]] = None


_Output = TypeVar("_Output")


@dataclasses.dataclass
class PoolingRequestOutput(Generic[_Output]):
    """What a pooling model makes of one input."""

    request_id: str
    outputs: _Output
    prompt_token_ids: list[int]
    finished: bool = True


@dataclasses.dataclass
class PoolingOutput:
    """A vector, or one of each token, where vLLM has a tensor."""

    data: Union[list[float], list[list[float]]]


@dataclasses.dataclass
class EmbeddingOutput:
    """A vector."""

    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        """The number of its elements."""
        return len(self.embedding)

    def __repr__(self) -> str:
        return f"EmbeddingOutput(hidden_size={self.hidden_size})"


class EmbeddingRequestOutput(PoolingRequestOutput[EmbeddingOutput]):
    """The embedding of one input."""


@dataclasses.dataclass
class ClassificationOutput:
    """The values of a model's classes."""

    probs: list[float]

    @property
    def num_classes(self) -> int:
        """The number of classes."""
        return len(self.probs)


class ClassificationRequestOutput(PoolingRequestOutput[ClassificationOutput]):
    """The classes of one input."""


@dataclasses.dataclass
class ScoringOutput:
    """How well a pair of texts fits."""

    score: float


class ScoringRequestOutput(PoolingRequestOutput[ScoringOutput]):
    """The score of one pair; ``prompt_token_ids`` is empty."""


@dataclasses.dataclass
class BeamSearchSequence:
    """One beam: the prompt's tokens and its own."""

    tokens: list[int]
    logprobs: SampleLogprobs
    cum_logprob: float
    """The sum over its own tokens, without that of the end-of-sequence token."""
    text: str
    finish_reason: Optional[str] = None
    stop_reason: Union[int, str, None] = None


@dataclasses.dataclass
class BeamSearchOutput:
    """The beams of one prompt, the best first."""

    sequences: list[BeamSearchSequence]
