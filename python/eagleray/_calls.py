"""Requests to an engine from any thread: an event loop on a thread of its own has them."""

from __future__ import annotations

import asyncio
import json
import resource
import threading
from collections.abc import Iterable, Mapping
from typing import Any, Callable, Optional, Protocol
from urllib.parse import quote

from . import errors
from ._decoder import Decoder
from ._engine import Engine
from ._http import Client, Exchange, Headers, request_of

# Descriptors that are left to the program.
_SPARE_DESCRIPTORS = 256

# How long an answer that broke off waits for the engine to say that it has ended.
PATIENCE_SECONDS = 5.0

_JSON = [(b"content-type", b"application/json")]


class Receiver(Protocol):
    """Takes what comes of a request, on the thread of the event loop: it must not wait."""

    def answer(self, body: Any) -> None:
        """Take the body of the answer. Nothing comes after it."""

    def fail(self, error: errors.EagleRayError) -> None:
        """Take what there is instead."""


class Call:
    """A request of :meth:`Calls.call`."""

    def __init__(self, calls: Calls, request: bytes, receiver: Receiver) -> None:
        self.request, self.receiver = request, receiver
        self.exchange: Optional[Exchange] = None
        self.over = False
        self._calls = calls
        self._status = 0
        self._decoder = Decoder([])

    # What the connection hands on.

    def head(self, status: int, headers: Headers) -> None:
        self._status, self._decoder = status, Decoder(headers)

    def data(self, part: bytes) -> None:
        self._decoder.events(part)  # of which none was asked for

    def end(self) -> None:
        self._calls.guard(self._end)

    def _end(self) -> None:
        body = self._decoder.body()
        if 200 <= self._status < 300:
            self.receiver.answer(body)
        else:
            self.receiver.fail(error_of(self._calls.engine, self._status, body))
        self._calls.finished(self)

    def fail(self, error: errors.EngineDeadError) -> None:
        self._calls.broke(self, error)


class Calls:
    """Requests of threads that wait, and of those that do not. Any thread may use it."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._lock = threading.Lock()  # of the three below
        self._thread: Optional[threading.Thread] = None
        self._closed = False
        self._to_do: list[tuple[Callable[[Any], None], Any]] = []
        # Of the thread, which begins with the first request.
        self._loop = asyncio.new_event_loop()
        self._client = Client(engine.path, room_of(engine))
        self._running: set[Call] = set()

    @property
    def window(self) -> int:
        """How many requests keep the engine busy."""
        return int(self.engine.ready["window"])

    def call(
        self,
        route: str,
        body: Optional[Mapping[str, Any]],
        receiver: Receiver,
        method: str = "POST",
    ) -> Call:
        """Return a request that is not sent yet: several go together.

        Raises EngineDeadError, BadRequestError of one that is too long, and what json does.
        """
        return Call(self, json_request(self.engine, route, body, method), receiver)

    def send(self, calls: Iterable[Call]) -> None:
        """Send requests. Each receiver has an answer, or why there is none."""
        given = list(calls)
        if not self._do(self._begin, given):  # it was closed a moment ago
            for call in given:
                call.receiver.fail(self.engine.dead())

    def ask(
        self,
        route: str,
        body: Optional[Mapping[str, Any]],
        receiver: Receiver,
        method: str = "POST",
    ) -> Call:
        """Send one request. Raises what ``call`` does."""
        call = self.call(route, body, receiver, method)
        self.send([call])
        return call

    def cancel(self, call: Call) -> None:
        """End the wait for a request, and the request. Its receiver takes nothing after this."""
        call.over = True
        self._do(self._cancel, call)

    def close(self) -> None:
        """End the engine, and wait for it. Requests that are running fail."""
        if not self.engine.owned:
            return
        self.engine.close()
        with self._lock:
            thread, closed, self._closed = self._thread, self._closed, True
        if closed:
            return
        if thread is None:
            self._loop.close()
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        if threading.current_thread() is not thread:  # where the last reference may have gone
            thread.join()

    # On the thread of the loop.

    def _run(self) -> None:
        self.engine.when_ended(self._ended)
        self._loop.run_forever()
        self._loop.run_until_complete(self._client.shut())
        self._loop.close()

    def _ended(self) -> None:
        self._do(self._fail_all, None)

    def _do(self, what: Callable[[Any], None], argument: Any) -> bool:
        """Have the thread do something. It returns False once it is closed."""
        with self._lock:
            if self._closed:
                return False
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="eagleray", daemon=True)
                self._thread.start()
            self._to_do.append((what, argument))
            if len(self._to_do) == 1:  # else the thread is on its way
                self._loop.call_soon_threadsafe(self._work)
            return True

    def _work(self) -> None:
        with self._lock:
            to_do, self._to_do = self._to_do, []
        for what, argument in to_do:
            what(argument)

    def _begin(self, calls: list[Call]) -> None:
        for call in calls:
            if not call.over:
                self._running.add(call)
                call.exchange = self._client.send(call.request, call)
        if self.engine.ended:  # before that, there is a call when it ends
            self._fail_all(None)

    def _cancel(self, call: Call) -> None:
        self._running.discard(call)
        if call.exchange is not None:
            call.exchange.close()

    def finished(self, call: Call) -> None:
        """Take the end of an answer."""
        self._running.discard(call)

    def broke(self, call: Call, error: errors.EngineDeadError) -> None:
        """Take an answer that broke off. If that is the engine's end, there is a reason soon."""
        self._loop.call_later(PATIENCE_SECONDS, self._broken, call, error)

    def _broken(self, call: Call, error: errors.EngineDeadError) -> None:
        if call in self._running:
            self.finished(call)
            if not call.over:
                self.guard(call.receiver.fail, why_lost(self.engine, error))

    def guard(self, take: Callable[..., None], *what: Any) -> None:
        """Hand something on. A receiver that fails ends the engine: its caller must not wait."""
        try:
            take(*what)
        except Exception as err:
            self.engine.end(
                errors.EngineDeadError(f"the engine's answers are not understood: {err!r}")
            )

    def _fail_all(self, _: None) -> None:
        running, self._running = self._running, set()
        for call in running:
            if call.exchange is not None:
                call.exchange.close()
            if not call.over:
                self.guard(call.receiver.fail, self.engine.dead())


def json_request(
    engine: Engine, route: str, body: Optional[Mapping[str, Any]], method: str
) -> bytes:
    """Return a request as it is sent.

    Raises EngineDeadError, BadRequestError of one that is too long, and what json does.
    """
    text = b""
    if body is not None:
        text = json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    most = engine.ready["max_body"]
    if len(text) > most:
        raise errors.BadRequestError(
            f"a request of {len(text)} bytes is longer than {most} bytes (max_request_body_bytes)",
            413,
        )
    engine.check()
    target = quote(route, safe="%/:@!$&'()*+,;=~-._?").encode()
    return request_of(method.encode(), target, [] if body is None else _JSON, text)


def error_of(engine: Engine, status: int, body: Any) -> errors.EagleRayError:
    """Return the error that an answer other than success tells."""
    error = errors.of_answer(status, body)
    # An engine that ends refuses requests.
    return why_lost(engine, error) if status >= 500 else error


def why_lost(engine: Engine, error: errors.EagleRayError) -> errors.EagleRayError:
    """Return why there is no answer: the engine's end, or else an error."""
    try:
        engine.check()
    except errors.EagleRayError as reason:
        return reason
    if isinstance(error, errors.EngineDeadError):
        return errors.RequestError(f"the answer broke off: {error}")
    return error


def room_of(engine: Engine) -> int:
    """Return how many connections there may be, of which there is one for each request.

    The limit of descriptors is raised where as many as keep the engine busy would not fit.
    """
    most, soft, hard = 1 << 14, *resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return most
    want = int(engine.ready["window"]) + _SPARE_DESCRIPTORS
    if hard != resource.RLIM_INFINITY:
        want = min(want, hard)
    if soft < want:
        resource.setrlimit(resource.RLIMIT_NOFILE, (want, hard))
        soft = want
    return max(1, min(most, soft - _SPARE_DESCRIPTORS))
