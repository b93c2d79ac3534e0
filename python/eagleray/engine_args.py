"""The arguments of an engine as an object, as scripts for vLLM have them."""

from __future__ import annotations

from typing import Any, Optional


class EngineArgs:
    """What an engine is started with: ``LLM.from_engine_args(EngineArgs(model=…))``.

    The keyword arguments are those of :class:`eagleray.LLM`, and attributes that may be set. The
    engine checks them when it starts.
    """

    def __init__(self, model: Optional[str] = None, **engine_args: Any) -> None:
        self.model = model
        self.__dict__.update(engine_args)

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({fields})"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)


class AsyncEngineArgs(EngineArgs):
    """The same for :meth:`eagleray.AsyncLLM.from_engine_args`."""
