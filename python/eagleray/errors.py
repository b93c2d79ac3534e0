"""Errors. The message of each is the engine's own line."""

from __future__ import annotations

from typing import Any, Optional


class EagleRayError(Exception):
    """Any error of this package."""


class ConfigError(EagleRayError, ValueError):
    """An argument of the engine is wrong, or the model that it names.

    The message names the flag or the file.
    """


class EngineDeadError(EagleRayError, RuntimeError):
    """The engine has not started, or has ended, or was closed; nothing answers any more."""


class RequestError(EagleRayError, RuntimeError):
    """A request failed. ``status`` is that of HTTP."""

    def __init__(self, message: str, status: int = 500, param: Optional[str] = None) -> None:
        super().__init__(message)
        self.status = status
        self.param = param


class BadRequestError(RequestError, ValueError):
    """A request is wrong; ``param`` is the field at fault, None for none."""


def of_answer(status: int, body: Any) -> RequestError:
    """Return the error that an answer other than success tells."""
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict):
        return RequestError(str(body or f"status {status}"), status)
    kind = BadRequestError if 400 <= status < 500 else RequestError
    return kind(str(error.get("message")), status, error.get("param"))
