"""Keyword arguments as flags of the engine."""

from __future__ import annotations

import enum
import json
import os
from collections.abc import Mapping
from typing import Any


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
