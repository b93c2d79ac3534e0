"""Keyword arguments as flags of the engine."""

from __future__ import annotations

import enum
import json
import os
from collections.abc import Mapping
from typing import Any, Optional


_POOLING_TASKS = ("embed", "embedding", "classify", "score", "reward")


def command_line(options: Mapping[str, Any]) -> list[str]:
    """Return flags: ``tensor_parallel_size=2`` is ``--tensor-parallel-size=2``.

    None is left out, a dict is JSON. Raises TypeError for a value that no flag can have; whether
    there is such a flag the engine says.
    """
    flags: list[str] = []
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if value is not None:
            flags += [f"{flag}={text}" for text in _texts(name, value)]
    return flags


def command_and_environment(
    options: Mapping[str, Any],
) -> tuple[list[str], Optional[dict[str, str]]]:
    """Return flags, and the environment that an engine starts with, None for this process's.

    ``hf_token`` is a variable of it: others can read a process's arguments. ``task``, which vLLM
    had before ``runner``, says that a model pools.
    """
    given = dict(options)
    token = given.pop("hf_token", None)
    if given.get("task") in _POOLING_TASKS:
        del given["task"]
        given.setdefault("runner", "pooling")
    return command_line(given), None if token is None else {**os.environ, "HF_TOKEN": str(token)}


def refuse_adapter(lora_request: Any) -> None:
    """Raise ValueError for a ``lora_request`` other than None, where no text is generated."""
    if lora_request is not None:
        raise ValueError(f"lora_request: {lora_request!r}: adapters are for text")


def _texts(name: str, value: Any) -> list[str]:
    if isinstance(value, enum.Enum):
        value = value.value
    if isinstance(value, bool):
        return ["true" if value else "false"]
    if isinstance(value, (str, int, float, os.PathLike)):
        return [str(value)]
    if isinstance(value, Mapping):
        return [json.dumps(value)]
    if isinstance(value, (list, tuple)):
        if all(isinstance(v, int) for v in value):
            return [",".join(str(v) for v in value)]
        if all(isinstance(v, (str, os.PathLike)) for v in value):
            return [str(v) for v in value]
    raise TypeError(f"{name}: a flag cannot have the value {value!r}")
