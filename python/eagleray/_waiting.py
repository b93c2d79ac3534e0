"""Waiting for the engine in a thread."""

from __future__ import annotations

import itertools
import queue
from collections.abc import Sequence
from typing import Any, Optional, TypeVar

from . import errors
from ._calls import Call, Calls
from ._jobs import Job
from ._progress import Bar

_Result = TypeVar("_Result")


class _Receiver:
    """Hands the answer of a request on to the thread that waits."""

    def __init__(self, index: int, answers: queue.SimpleQueue[tuple[int, Any]]) -> None:
        self._index, self._answers = index, answers

    def answer(self, body: Any) -> None:
        """Take the body of the answer."""
        self._answers.put((self._index, body))

    def fail(self, error: errors.EagleRayError) -> None:
        """Take what there is instead."""
        self._answers.put((self._index, error))


def ask(calls: Calls, route: str, body: Optional[dict[str, Any]], method: str = "POST") -> Any:
    """Ask a route, and return the body of the answer."""
    answers: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
    call = calls.ask(route, body, _Receiver(0, answers), method)
    try:
        _, answer = answers.get()
    except BaseException:
        calls.cancel(call)
        raise
    if isinstance(answer, errors.EagleRayError):
        raise answer
    return answer


def run(calls: Calls, jobs: Sequence[Job[_Result]], bar: Bar) -> list[_Result]:
    """Run jobs, as many at a time as keep the engine busy, and return their results in order.

    The first that fails ends all of them with its error.
    """
    answers: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
    results: list[Any] = [None] * len(jobs)
    running: dict[int, Call] = {}  # the request of each job
    waiting = iter(range(len(jobs)))

    def advance(index: int, answer: Any) -> None:
        """Have a job take an answer, and ask what comes next."""
        try:
            route, body = jobs[index].send(answer)
        except StopIteration as end:
            results[index] = end.value
            running.pop(index, None)
            bar.update(1)
            return
        running[index] = calls.ask(route, body, _Receiver(index, answers))

    try:
        for index in itertools.islice(waiting, calls.window):
            advance(index, None)
        while running:
            index, answer = answers.get()
            if isinstance(answer, errors.EagleRayError):
                running.pop(index)
                raise answer
            advance(index, answer)
            if index not in running:
                for following in itertools.islice(waiting, 1):
                    advance(following, None)
    finally:
        for call in running.values():
            calls.cancel(call)
        bar.close()
    return results
