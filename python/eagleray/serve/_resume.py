"""Answers that go on at another replica when theirs has died.

The engine computes the answer again and leaves out what the client has: see ``X-Eagleray-Resume``
in internal/api/server/resume.go. ``eagleray route`` asks for it in the same way
(internal/api/pdproxy/resume.go); what differs is how a replica dies here, which Ray tells.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from typing import Optional

import ray.exceptions
import ray.serve.exceptions

from .._http import Headers, UnaskedError
from ..errors import EngineDeadError

_HEADER = b"x-eagleray-resume"

# How many replicas may die with a request: it may be what ends them.
DEATHS = 3

# How long a request looks for a replica that takes it, and how long it waits in between at most.
_PATIENCE_SECONDS = 60.0
_PAUSE_SECONDS = 1.0

# What a caller sees of a replica that has died, or whose engine or node has.
LOST = tuple(
    getattr(ray.exceptions, name)
    for name in (
        "RayActorError",
        "ObjectLostError",
        "NodeDiedError",
        "WorkerCrashedError",
        "LocalRayletDiedError",
    )
    if hasattr(ray.exceptions, name)
) + (EngineDeadError,)


# What a caller sees of a deployment that Serve has given up. Older versions wait.
UNAVAILABLE = tuple(
    getattr(ray.serve.exceptions, name)
    for name in ("DeploymentUnavailableError",)
    if hasattr(ray.serve.exceptions, name)
)


class Attempts:
    """How often a request was given to a replica, and whether it may be given to another one."""

    def __init__(self, most_deaths: int = DEATHS) -> None:
        """Take how many replicas may die with it."""
        self._most_deaths = most_deaths
        self.deaths = 0
        self._pauses = 0
        self._until: Optional[float] = None

    def count_death(self, error: Exception, received: bool) -> bool:
        """Count the death of a replica, and say whether the request may be asked again.

        ``received`` says whether the replica had the request, and may have died of it.
        """
        if isinstance(error, UnaskedError) or not received:
            return self.may_wait()  # the engine, or its replica, had died before
        self.deaths += 1
        return self.deaths < self._most_deaths

    def may_wait(self) -> bool:
        """Say whether the request may look on for a replica that takes it."""
        if self._until is None:
            self._until = time.monotonic() + _PATIENCE_SECONDS
        return self.deaths < self._most_deaths and time.monotonic() < self._until

    def end_wait(self) -> None:
        """Note that a replica answers."""
        self._until = None

    async def pause(self) -> None:
        """Give Serve a moment to learn of it, too."""
        self._pauses += 1
        await asyncio.sleep(min(_PAUSE_SECONDS, 0.05 * 2**self._pauses))


class Progress:
    """What the client has of an answer."""

    def __init__(self, headers: Headers) -> None:
        """Take the headers of the request."""
        self._headers = [h for h in headers if h[0] != _HEADER]
        self._token: Optional[bytes] = None
        self._bytes = 0
        self._sum = 0
        self.begun = False

    @property
    def resumable(self) -> bool:
        """Whether the rest may come from another replica."""
        return self._token is not None

    def headers(self) -> Headers:
        """Return the headers with which a replica is asked for what the client does not have."""
        value = b"begin"
        if self._token is not None:
            value = b"%s;%d;%08x" % (self._token, self._bytes, self._sum)
        return [*self._headers, (_HEADER, value)]

    def begin(self, headers: Headers) -> Headers:
        """Take the head of the answer, and return what the client gets of it."""
        self.begun = True
        for name, value in headers:
            if name == _HEADER:
                self._token = value
        return without_token(headers)

    def add(self, part: bytes) -> None:
        """Note a part of the answer that the client gets."""
        self._bytes += len(part)
        self._sum = zlib.crc32(part, self._sum)


def without_token(headers: Headers) -> Headers:
    """Return what the client gets of the head of an answer."""
    return [h for h in headers if h[0] != _HEADER]
