"""The little of ASGI that deployments here share."""

from __future__ import annotations

import json
from collections.abc import Awaitable, MutableMapping
from typing import Any, Callable, Optional, Protocol
from urllib.parse import quote

from ray import serve

from .._http import Headers

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

# The largest body that is taken. Engines have a lower bound (max_request_body_bytes).
MAX_BODY_BYTES = 512 * 1024 * 1024

_TYPES = {
    400: "BadRequestError",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    409: "ConflictError",
    413: "RequestEntityTooLargeError",
    503: "ServiceUnavailableError",
}


class Answers(Protocol):
    """A deployment that answers HTTP requests itself."""

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""


class Front:
    """The ASGI application of such deployments: the replica that it runs in."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or one event of the server's life."""
        if scope["type"] == "http":
            replica: Answers = serve.get_replica_context().servable_object
            await replica.answer(scope, receive, send)
        elif scope["type"] == "lifespan":
            while True:
                event = await receive()
                await send({"type": event["type"] + ".complete"})
                if event["type"] == "lifespan.shutdown":
                    return
        else:
            await send({"type": "websocket.close", "code": 1003})


class RequestError(Exception):
    """An answer other than success, in OpenAI's shape."""

    def __init__(
        self,
        status: int,
        message: str,
        param: Optional[str] = None,
        retry_after: Optional[int] = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.retry_after = retry_after

    @property
    def body(self) -> bytes:
        """The answer's body."""
        return json.dumps(
            {
                "error": {
                    "message": str(self),
                    "type": _TYPES.get(self.status, "InternalServerError"),
                    "param": self.param,
                    "code": self.status,
                }
            }
        ).encode()

    async def send(self, send: Send) -> None:
        """Answer with it."""
        headers = [(b"content-type", b"application/json")]
        if self.retry_after is not None:
            headers.append((b"retry-after", b"%d" % self.retry_after))
        await send_all(send, self.status, headers, self.body)


async def send_all(send: Send, status: int, headers: Headers, body: bytes) -> None:
    """Send an answer that is complete; its length replaces what the headers say of it."""
    others = [(k, v) for k, v in headers if k not in (b"content-length", b"transfer-encoding")]
    await send_start(send, status, [*others, (b"content-length", b"%d" % len(body))])
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def send_start(send: Send, status: int, headers: Headers) -> None:
    """Send the head of an answer."""
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def read_body(receive: Receive) -> bytes:
    """Return the body of a request. Raises RequestError when it is too long."""
    parts: list[bytes] = []
    size = 0
    while True:
        event = await receive()
        if event["type"] == "http.disconnect":
            raise RequestError(400, "the client went away within its request")
        part = event.get("body", b"")
        size += len(part)
        if size > MAX_BODY_BYTES:
            raise RequestError(413, f"the body is longer than {MAX_BODY_BYTES} bytes")
        parts.append(part)
        if not event.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


def path_of(scope: Scope) -> str:
    """Return the path of a request below the application's route prefix."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "").rstrip("/")
    if root and path.startswith(root + "/"):
        return path[len(root) :]
    return path


def target_of(scope: Scope) -> bytes:
    """Return what the request line has for path and query."""
    target = quote(path_of(scope), safe="/:@!$&'()*+,;=~-._").encode()
    query: bytes = scope.get("query_string", b"")
    return target + b"?" + query if query else target
