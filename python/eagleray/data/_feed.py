"""Requests on their way to an engine and back, many in one step of either."""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Iterable
from typing import Any, Optional, Union

from .. import errors
from .._calls import Call, Calls

Answer = Union[errors.EagleRayError, ValueError, TypeError, Any]
"""The body of the answer, or what there is instead."""


class Request:
    """What the engine is asked once."""

    def __init__(self, feed: Feed, route: str, body: dict[str, Any]) -> None:
        self.route, self.body = route, body
        self.begun = self.ended = 0.0
        """When it was sent and when the answer was there, as ``time.monotonic``."""
        self.call: Optional[Call] = None
        self.over = False
        self._feed = feed

    def take(self, answer: Answer) -> None:
        """Take what came, on the thread of the feed. A request that was dropped takes nothing."""
        raise NotImplementedError

    def answer(self, body: Any) -> None:
        """Hand the answer on, on the thread that reads it."""
        self.ended = time.monotonic()
        self._feed.come(self, body)

    def fail(self, error: errors.EagleRayError) -> None:
        """Hand on what there is instead."""
        self.ended = time.monotonic()
        self._feed.come(self, error)


class Feed:
    """Keeps an engine full: all that there is room for goes to it together, in order.

    Any thread may use it. It has a thread of its own, which ends with ``close``.
    """

    def __init__(self, calls: Calls, room: int) -> None:
        """Have at most so many requests in the engine at a time."""
        self._calls = calls
        self._room = room  # of the thread, as are call and over of each request
        self._changed = threading.Condition()
        self._waiting: collections.deque[Request] = collections.deque()
        self._come: list[tuple[Request, Answer]] = []
        self._dropped: list[Request] = []
        self._closed = False
        threading.Thread(target=self._run, name="rows", daemon=True).start()

    def put(self, requests: Iterable[Request]) -> None:
        """Have requests asked, after those that wait already."""
        with self._changed:
            self._waiting.extend(requests)
            self._changed.notify()

    def drop(self, requests: Iterable[Request]) -> None:
        """End the wait for requests."""
        with self._changed:
            self._dropped.extend(requests)
            self._changed.notify()

    def close(self) -> None:
        """Ask nothing more, and hand on nothing more."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def come(self, request: Request, answer: Answer) -> None:
        """Take what came for a request. It does not wait."""
        with self._changed:
            self._come.append((request, answer))
            self._changed.notify()

    def _run(self) -> None:
        while self._step():
            pass

    def _step(self) -> bool:
        """Wait for something to do, and do it. Return False at the end."""
        with self._changed:
            while not (
                self._come or self._dropped or self._closed or (self._waiting and self._room)
            ):
                self._changed.wait()
            if self._closed:
                return False
            come, self._come = self._come, []
            dropped, self._dropped = self._dropped, []
            if dropped:
                gone = set(dropped)
                self._waiting = collections.deque(r for r in self._waiting if r not in gone)
            come = [(request, answer) for request, answer in come if not request.over]
            self._room += len(come)
            count = min(self._room, len(self._waiting))
            self._room -= count
            asked = [self._waiting.popleft() for _ in range(count)]
        # The engine goes on with these while the answers are looked at.
        self._send(asked)
        for request, answer in come:
            request.over = True
            request.take(answer)
        for request in dropped:
            if request.call is not None and not request.over:
                request.over = True
                self._room += 1
                self._calls.cancel(request.call)
        return True

    def _send(self, requests: list[Request]) -> None:
        calls = []
        for request in requests:
            request.begun = time.monotonic()
            try:
                request.call = self._calls.call(request.route, request.body, request)
            except (errors.EagleRayError, ValueError, TypeError) as err:
                self.come(request, err)
                continue
            calls.append(request.call)
        if calls:
            self._calls.send(calls)
