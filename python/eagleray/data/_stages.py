"""The options of a processor's stages, with the names and fields of ``ray.data.llm``.

Ray's stages are actors of their own. Here one actor does all with an engine, which has the
template and the tokenizer: the fields that say where a stage runs are accepted, and said to be
without effect.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Optional, TypeVar, Union


@dataclasses.dataclass
class StageConfig:
    """What every stage has."""

    enabled: bool = True
    batch_size: Optional[int] = None
    concurrency: Optional[Union[int, tuple[int, int]]] = None
    runtime_env: Optional[dict[str, Any]] = None
    num_cpus: Optional[float] = None
    memory: Optional[float] = None


@dataclasses.dataclass
class ChatTemplateStageConfig(StageConfig):
    """Whether, and by which template, ``messages`` become a prompt."""

    model_source: Optional[str] = None
    chat_template: Optional[str] = None
    chat_template_kwargs: Optional[Mapping[str, Any]] = None


@dataclasses.dataclass
class TokenizerStageConfig(StageConfig):
    """False where rows bring ``tokenized_prompt``: those are taken in any case."""

    model_source: Optional[str] = None


@dataclasses.dataclass
class DetokenizeStageConfig(StageConfig):
    """Whether rows have ``generated_text`` that do not ask for it by ``detokenize: True``."""

    model_source: Optional[str] = None


@dataclasses.dataclass
class PrepareMultimodalStageConfig(StageConfig):
    """Whether rows have images, sound or video, which the engine does not take."""

    model_config_kwargs: Optional[Mapping[str, Any]] = None
    chat_template_content_format: Optional[str] = "string"
    apply_sys_msg_formatting: Optional[bool] = False


@dataclasses.dataclass
class HttpRequestStageConfig(StageConfig):
    """How requests of HttpRequestProcessorConfig are sent."""


_EFFECTIVE = ("enabled", "chat_template", "chat_template_kwargs")

_Stage = TypeVar("_Stage", bound=StageConfig)


def read_stage(name: str, given: Any, kind: type[_Stage]) -> _Stage:
    """Return the options of a stage: of True or False, of a dict, or of an object.

    Raises ValueError, which names what is wrong.
    """
    if isinstance(given, bool):
        return kind(enabled=given)
    if isinstance(given, kind):
        return given
    if not isinstance(given, Mapping):
        raise ValueError(f"{name}: {given!r} is neither True nor False nor a {kind.__name__}")
    unknown = set(given) - {f.name for f in dataclasses.fields(kind)}
    if unknown:
        raise ValueError(f"{name}: unknown {sorted(unknown)}")
    return kind(**given)


def without_effect(name: str, stage: StageConfig) -> list[str]:
    """Return the options of a stage that were given and change nothing."""
    return [
        f"{name}.{f.name}"
        for f in dataclasses.fields(stage)
        if f.name not in _EFFECTIVE and getattr(stage, f.name) != f.default
    ]
