"""An engine for programs that run an event loop: answers come as streams."""

from __future__ import annotations

import asyncio
import collections
import itertools
import threading
import weakref
from collections.abc import AsyncGenerator
from typing import Any, Optional

from . import errors
from ._arguments import command_line
from ._completion import ROUTE, Completion, PromptType
from ._engine import Engine
from .outputs import RequestOutput
from .sampling_params import SamplingParams


class AsyncLLM:
    """A model and its engine. Any event loop of any thread may use it.

    The keyword arguments are the engine's flags with vLLM's names: ``tensor_parallel_size=2``.
    Without a model it is the built-in one. A wrong argument is a ConfigError, a ValueError.
    """

    def __init__(self, model: Optional[str] = None, **engine_args: Any) -> None:
        self._engine = Engine(command_line({"model": model, **engine_args}))
        self._close = weakref.finalize(self, self._engine.close)
        self._inboxes: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Inbox] = (
            weakref.WeakKeyDictionary()
        )
        self._lock = threading.Lock()
        self._names = itertools.count()
        self._running: dict[str, tuple[int, _Receiver]] = {}

    async def generate(
        self,
        prompt: PromptType,
        sampling_params: Optional[SamplingParams] = None,
        request_id: Optional[str] = None,
        *,
        priority: int = 0,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Yield the output of a prompt as it comes; the last one is ``finished``.

        Whoever stops iterating ends the request. Raises BadRequestError, RequestError or
        EngineDeadError.
        """
        name = request_id if request_id is not None else str(next(self._names))
        request = Completion(prompt, sampling_params, name, priority)
        if request.final_only:
            request.take(await self.request(ROUTE, request.body))
            yield request.shown(finished=True)
            return
        receiver = self._ask(ROUTE, request.stream_body, name=name)
        try:
            while not receiver.over:
                for event in await receiver.events():
                    request.take(event)
                if receiver.over or not request.complete:
                    yield request.shown(finished=receiver.over)
        finally:
            receiver.close()

    async def request(
        self, route: str, body: Optional[dict[str, Any]] = None, method: str = "POST"
    ) -> Any:
        """Ask any route of the server's API, and return the body of the answer."""
        receiver = self._ask(route, body, method)
        try:
            while not receiver.over:
                await receiver.events()
            return receiver.body
        finally:
            receiver.close()

    async def stream(
        self, route: str, body: dict[str, Any]
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Ask a route whose body says ``"stream": True``, and yield the events."""
        receiver = self._ask(route, body)
        try:
            while not receiver.over:
                for event in await receiver.events():
                    yield event
        finally:
            receiver.close()

    async def abort(self, request_id: str) -> None:
        """End the request of a name: whoever waits for it has a RequestError."""
        number, receiver = self._running.get(request_id, (0, None))
        if receiver is not None:
            self._engine.cancel(number)
            receiver.fail(errors.RequestError(f"request {request_id} was aborted", 499))

    def shutdown(self) -> None:
        """End the engine. Requests that are running fail. Calling it twice is harmless."""
        self._close()

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self.shutdown)

    def _ask(
        self,
        route: str,
        body: Optional[dict[str, Any]],
        method: str = "POST",
        name: Optional[str] = None,
    ) -> _Receiver:
        loop = asyncio.get_running_loop()
        with self._lock:
            inbox = self._inboxes.get(loop)
            if inbox is None:
                inbox = self._inboxes[loop] = _Inbox(loop)
        receiver = _Receiver(inbox)
        number = self._engine.send(route, body, receiver, method)
        receiver.cancel = lambda: self._engine.cancel(number)
        if name is not None:
            self._running[name] = (number, receiver)
            receiver.forget = lambda: self._running.pop(name, None)
        return receiver


class _Inbox:
    """Hands what was read on to an event loop: all that has come, at each turn of it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._lock = threading.Lock()
        self._items: list[tuple[_Receiver, Any]] = []

    def put(self, receiver: _Receiver, item: Any) -> None:
        """Hand an item on, from any thread."""
        with self._lock:
            self._items.append((receiver, item))
            if len(self._items) > 1:
                return  # a turn is on its way
        loop = self._loop()
        try:
            if loop is not None:
                loop.call_soon_threadsafe(self._deliver)
        except RuntimeError:
            pass  # the loop was closed, with all that waited in it

    def _deliver(self) -> None:
        with self._lock:
            items, self._items = self._items, []
        for receiver, item in items:
            receiver.deliver(item)


class _Receiver:
    """Takes what comes of a request on the reader's thread, for a task of an event loop."""

    def __init__(self, inbox: _Inbox) -> None:
        self._inbox = inbox
        self._events: collections.deque[dict[str, Any]] = collections.deque()
        self._error: Optional[errors.EagleRayError] = None
        self._waiter: Optional[asyncio.Future[None]] = None
        self._ended = False
        self.body: Any = None
        self.cancel: Any = lambda: None
        self.forget: Any = lambda: None

    def event(self, event: dict[str, Any]) -> None:
        self._inbox.put(self, event)

    def answer(self, status: int, body: Any) -> None:
        ok = 200 <= status < 300
        self._inbox.put(self, _End(body) if ok else errors.of_answer(status, body))

    def fail(self, error: errors.EagleRayError) -> None:
        self._inbox.put(self, error)

    @property
    def over(self) -> bool:
        """Whether nothing more comes."""
        return self._ended and self._error is None and not self._events

    def deliver(self, item: Any) -> None:
        """Take an item, in the event loop."""
        if self._ended:
            return
        if isinstance(item, errors.EagleRayError):
            self._error = item
            self._ended = True
        elif isinstance(item, _End):
            self.body = item.body
            self._ended = True
        elif "error" in item:
            self._error = errors.of_answer(item["error"].get("code") or 500, item)
        else:
            self._events.append(item)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def events(self) -> list[dict[str, Any]]:
        """Wait for something to come, and return the events; none at the end."""
        if not (self._ended or self._error or self._events):
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
            self._waiter = None
        if self._error is not None and not self._events:
            raise self._error
        events = list(self._events)
        self._events.clear()
        return events

    def close(self) -> None:
        """Have nothing come any more."""
        self.forget()
        if not self._ended:
            self._ended = True
            self.cancel()


class _End:
    """The answer, or the end of a stream."""

    def __init__(self, body: Any) -> None:
        self.body = body
