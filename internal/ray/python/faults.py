"""Calls of the engine and the shape in which exceptions travel to it. Needs no Ray."""

from __future__ import annotations

import re
import threading
import time
from typing import Any

# The longest a wait goes on before it looks whether it is still wanted.
SLICE_SECONDS = 0.5

MAX_MESSAGE = 4000
MAX_CAUSES = 8

# Ray puts tracebacks into texts; their last line is what says something.
TRACEBACK = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n|\n)+(\S.*)")

COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class Cancelled(Exception):
    """The answer is not wanted any more."""


class Pending(Exception):
    """An actor has not answered in time; Ray gives no reason."""


class Unreachable(Exception):
    """Nothing listens at the address of the cluster."""


class PlacementGroupRemoved(Exception):
    """The placement group is gone, or never was."""


class Call:
    """One request: its arguments, its deadline, and whether its answer is still wanted."""

    def __init__(
        self,
        number: int,
        op: str,
        args: dict[str, Any],
        timeout: float | None,
        stopping: threading.Event,
    ) -> None:
        self.id = number
        self.op = op
        self.args = args
        self.deadline = None if timeout is None else time.monotonic() + timeout
        self.cancelled = threading.Event()
        self.stopping = stopping

    def slice(self, deadline: float | None = None) -> float:
        """Returns how long to wait next, 0 at the deadline (the call's own if it is sooner)."""
        if self.cancelled.is_set() or self.stopping.is_set():
            raise Cancelled(
                "the bridge is shutting down" if self.stopping.is_set() else "cancelled"
            )
        ends = [d for d in (deadline, self.deadline) if d is not None]
        if not ends:
            return SLICE_SECONDS
        return max(0.0, min(SLICE_SECONDS, min(ends) - time.monotonic()))


def fault(error: BaseException) -> dict[str, Any]:
    """Returns an exception and the chain of its causes. Ray's top line often hides what matters: a
    refused token is a bare ConnectionError that was raised from the real one."""
    # An exception that an actor of ours raised comes back wrapped, with the whole traceback for a
    # text.
    if type(error).__name__.startswith("RayTaskError") and isinstance(
        getattr(error, "cause", None), BaseException
    ):
        error = error.cause
    out = describe(error)
    causes, seen, e = [], {id(error)}, following(error)
    while e is not None and id(e) not in seen and len(causes) < MAX_CAUSES:
        seen.add(id(e))
        causes.append(describe(e))
        e = following(e)
    out["causes"] = causes
    return out


def describe(error: BaseException) -> dict[str, Any]:
    text = TRACEBACK.sub(r"\1", COLOURS.sub("", str(error))).strip()
    if len(text) > MAX_MESSAGE:
        # The beginning names the operation, the end the reason.
        text = text[:500] + " … " + text[-MAX_MESSAGE + 500 :]
    return {"class": type(error).__name__, "message": text}


def following(error: BaseException) -> BaseException | None:
    return error.__cause__ or (None if error.__suppress_context__ else error.__context__)
