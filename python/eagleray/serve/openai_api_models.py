"""Requests and answers of a deployment's methods, with the names of ``ray.serve.llm``.

They are dicts whose members are attributes, too. The engine checks requests, as it checks those of
HTTP: what it does not know it refuses by name.
"""

from __future__ import annotations

from typing import Any


class Body(dict[str, Any]):
    """A JSON object."""

    def __getattr__(self, name: str) -> Any:
        try:
            return _shown(self[name])
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (dict(self),)

    def model_dump(self) -> dict[str, Any]:
        """Return it as a plain dict, as pydantic's models do."""
        return dict(self)


class ChatCompletionRequest(Body):
    """What POST /v1/chat/completions takes."""


class CompletionRequest(Body):
    """What POST /v1/completions takes."""


class EmbeddingRequest(Body):
    """What POST /v1/embeddings takes."""


class ScoreRequest(Body):
    """What POST /v1/score takes."""


class TokenizeRequest(Body):
    """What POST /tokenize takes."""


class ChatCompletionResponse(Body):
    """What POST /v1/chat/completions answers."""


class CompletionResponse(Body):
    """What POST /v1/completions answers."""


class EmbeddingResponse(Body):
    """What POST /v1/embeddings answers."""


class ScoreResponse(Body):
    """What POST /v1/score answers."""


class TokenizeResponse(Body):
    """What POST /tokenize answers."""


class ErrorResponse(Body):
    """What a route answers to a request that it refuses."""


def _shown(value: Any) -> Any:
    """Return a member as it is shown: objects with attributes."""
    if isinstance(value, dict) and not isinstance(value, Body):
        return Body(value)
    if isinstance(value, list):
        return [_shown(item) for item in value]
    return value
