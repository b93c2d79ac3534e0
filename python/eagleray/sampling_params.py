"""How tokens are chosen, with vLLM's names and defaults. Values are checked by the engine."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any, Optional, Union


class RequestOutputKind(enum.Enum):
    """What each output of a stream holds."""

    CUMULATIVE = 0
    """Everything so far."""
    DELTA = 1
    """What is new."""
    FINAL_ONLY = 2
    """Everything; there is one output, the last."""


@dataclasses.dataclass
class StructuredOutputsParams:
    """What an answer keeps to: exactly one of the kinds."""

    json: Optional[Union[str, dict[str, Any]]] = None
    regex: Optional[str] = None
    choice: Optional[list[str]] = None
    grammar: Optional[str] = None
    json_object: Optional[bool] = None
    structural_tag: Optional[str] = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: Optional[str] = None

    def __post_init__(self) -> None:
        kinds = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
        given = [kind for kind in kinds if getattr(self, kind) is not None]
        if len(given) != 1:
            raise ValueError(
                f"structured_outputs: give exactly one of {', '.join(kinds)}, "
                f"not {', '.join(given) or 'none'}"
            )


@dataclasses.dataclass
class RepetitionDetectionParams:
    """When an output that repeats itself ends."""

    max_pattern_size: int = 0
    min_pattern_size: int = 0
    min_count: int = 0


@dataclasses.dataclass
class SamplingParams:
    """How the tokens of a request are chosen, and when its outputs end."""

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: Optional[int] = None
    stop: Optional[Union[str, list[str]]] = None
    stop_token_ids: Optional[list[int]] = None
    ignore_eos: bool = False
    max_tokens: Optional[int] = 16
    """None is as many as the context has room for; so is what is more than that."""
    min_tokens: int = 0
    logprobs: Optional[int] = None
    prompt_logprobs: Optional[int] = None
    logprob_token_ids: Optional[list[int]] = None
    """Tokens whose log-probabilities are returned beside the chosen one's."""
    detokenize: bool = True
    """False leaves the text of outputs empty."""
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    stream_interval: Optional[int] = None
    """How many tokens an output of a stream adds, but the first and the last one."""
    structured_outputs: Optional[StructuredOutputsParams] = None
    logit_bias: Optional[dict[int, float]] = None
    allowed_token_ids: Optional[list[int]] = None
    bad_words: Optional[list[str]] = None
    truncate_prompt_tokens: Optional[int] = None
    repetition_detection: Optional[RepetitionDetectionParams] = None
    extra_args: Optional[dict[str, Any]] = None
    """Further fields of the request's body."""

    def __post_init__(self) -> None:
        named = self.logprob_token_ids
        if named and self.logprobs not in (None, len(named)):
            raise ValueError(
                f"logprobs: {self.logprobs} beside logprob_token_ids of {len(named)} tokens: "
                "give no number, or that one"
            )

    @property
    def num_logprobs(self) -> Optional[int]:
        """How many log-probabilities are returned beside the chosen token's."""
        if self.logprobs is None and self.logprob_token_ids:
            return len(self.logprob_token_ids)
        return self.logprobs

    @classmethod
    def from_optional(cls, **given: Any) -> SamplingParams:
        """Return parameters of which those that are None are left at their defaults.

        ``max_tokens=None`` is no such one: it is as many as the context has room for.
        """
        none = ("max_tokens",)
        return cls(**{k: v for k, v in given.items() if v is not None or k in none})

    def clone(self) -> SamplingParams:
        """Return a copy."""
        return dataclasses.replace(self)


@dataclasses.dataclass
class BeamSearchParams:
    """How beams are searched."""

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0
    include_stop_str_in_output: bool = False


_OURS = ("detokenize", "output_kind", "extra_args")


def fields(params: Optional[SamplingParams], max_model_len: int) -> dict[str, Any]:
    """Return the fields of a completion's body: of None, the model's own defaults."""
    if params is None:
        return {}
    body = {
        field.name: getattr(params, field.name)
        for field in dataclasses.fields(params)
        if field.name not in _OURS
    }
    body = {name: value for name, value in body.items() if value is not None}
    if params.logprob_token_ids:
        body["logprobs"] = 0  # it only has to be there
    elif params.logprob_token_ids is not None:
        del body["logprob_token_ids"]
    if params.max_tokens is None:
        body["max_tokens"] = max_model_len  # the engine cuts it to the room there is
    for name in ("structured_outputs", "repetition_detection"):
        if name in body:
            given = dataclasses.asdict(body[name])
            body[name] = {k: v for k, v in given.items() if v is not None and v is not False}
    if "logit_bias" in body:
        body["logit_bias"] = {str(token): bias for token, bias in body["logit_bias"].items()}
    if body["spaces_between_special_tokens"] or params.skip_special_tokens:
        # Where there are no special tokens there is nothing between them.
        del body["spaces_between_special_tokens"]
    body.update(params.extra_args or {})
    return body
