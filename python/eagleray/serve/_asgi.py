"""The little of ASGI that deployments here share."""

from __future__ import annotations

import json
import uuid
import zlib
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
    415: "UnsupportedMediaTypeError",
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


# The words of Anthropic's API for them; other errors of clients are invalid_request_error.
_ANTHROPIC_TYPES = {
    404: "not_found_error",
    413: "request_too_large",
    503: "overloaded_error",
}

# The status of Anthropic's API for 503.
_OVERLOADED = 529

_GZIP = (b"gzip", b"x-gzip")


class RequestError(Exception):
    """An answer other than success, in the shape of its client's dialect."""

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
        """The answer's body in OpenAI's shape."""
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

    def anthropic_body(self, request_id: str) -> bytes:
        """Return the answer's body in Anthropic's shape, with the name of its request."""
        other = "api_error" if self.status >= 500 else "invalid_request_error"
        detail = {"type": _ANTHROPIC_TYPES.get(self.status, other), "message": str(self)}
        return json.dumps({"type": "error", "error": detail, "request_id": request_id}).encode()

    def event(self, scope: Scope) -> bytes:
        """Return the event that tells of it within a stream."""
        body = self.anthropic_body(_new_id()) if is_anthropic(scope) else self.body
        return error_event(scope, body)

    async def send(self, scope: Scope, send: Send) -> None:
        """Answer a request with it."""
        status, body = self.status, self.body
        headers = [(b"content-type", b"application/json")]
        if is_anthropic(scope):
            name = _new_id()
            status = _OVERLOADED if status == 503 else status
            body = self.anthropic_body(name)
            headers.append((b"request-id", name.encode()))
        if status == 415:
            headers.append((b"accept-encoding", b"gzip, deflate"))
        if self.retry_after is not None:
            headers.append((b"retry-after", b"%d" % self.retry_after))
        await send_all(send, status, headers, body)


def error_event(scope: Scope, body: bytes) -> bytes:
    """Return the event of a stream that has the body of an error."""
    name = b"event: error\n" if is_anthropic(scope) else b""
    return name + b"data: " + body.strip() + b"\n\n"


def _new_id() -> str:
    return "req_" + uuid.uuid4().hex


def is_anthropic(scope: Scope) -> bool:
    """Say whether a client speaks Anthropic's dialect, as the server does (ShapeOf)."""
    path = path_of(scope)
    if path == "/v1/messages" or path.startswith("/v1/messages/"):
        return True
    return any(name == b"anthropic-version" and value for name, value in scope["headers"])


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


def expand(headers: Headers, body: bytes) -> bytes:
    """Return a body as its client means it: what gzip or deflate has compressed is expanded.

    Raises RequestError for another coding, for what is in none, and for more than MAX_BODY_BYTES.
    """
    named = [value for name, value in headers if name == b"content-encoding"]
    coding = b", ".join(named).strip().lower()
    if coding in (b"", b"identity"):
        return body
    name = coding.decode("latin-1")[:100]
    if coding not in (*_GZIP, b"deflate"):
        raise RequestError(
            415,
            f"Content-Encoding {name} is not supported: a body may be compressed with gzip or "
            "deflate",
        )
    bits = _bits_of(coding, body)
    parts: list[bytes] = []
    size = 0
    while True:
        reader = zlib.decompressobj(bits)
        try:
            # One byte more than may be: the whole of a bomb is never there.
            part = reader.decompress(body, MAX_BODY_BYTES + 1 - size)
        except zlib.error as e:
            raise RequestError(400, f"request body is not in the coding {name}: {e}") from None
        size += len(part)
        if size > MAX_BODY_BYTES:
            raise RequestError(413, f"the body is longer than {MAX_BODY_BYTES} bytes")
        parts.append(part)
        if not reader.eof:
            raise RequestError(400, f"request body is not in the coding {name}: it has no end")
        body = reader.unused_data
        if not body or coding not in _GZIP:  # gzip's format may have several members
            return b"".join(parts)


def _bits_of(coding: bytes, body: bytes) -> int:
    """Return zlib's word for a coding: some clients send deflate without zlib's head."""
    if coding in _GZIP:
        return 16 + zlib.MAX_WBITS
    headed = len(body) > 1 and body[0] & 15 == 8 and (body[0] << 8 | body[1]) % 31 == 0
    return zlib.MAX_WBITS if headed else -zlib.MAX_WBITS


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
