"""The end of requests whose caller has ended: Ray tells an actor nothing of a caller's death."""

from __future__ import annotations

import asyncio
import logging
from typing import Optional

import ray
import ray.util

from .._http import Client

_log = logging.getLogger("ray.serve")

# How often callers are looked for while they have requests here. It bounds what is computed in
# vain.
_LOOK_SECONDS = 2.0


def own_name() -> bytes:
    """Return the name by which :class:`CallerWatch` knows this actor, b"" outside of one."""
    if not ray.is_initialized():
        return b""  # asking would start a cluster
    return (ray.get_runtime_context().get_actor_name() or "").encode()


class CallerWatch:
    """Looks for the actors that requests of an engine come from. Of one event loop."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._looks: Optional[asyncio.Task[None]] = None

    def watch(self) -> None:
        """Look from time to time, as long as requests with a caller are under way."""
        if self._looks is None:
            self._looks = asyncio.ensure_future(self._look())

    async def _look(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            await asyncio.sleep(_LOOK_SECONDS)
            # Those who ask later than this may not be among the living that are found.
            while callers := self._client.callers():
                try:
                    living = await loop.run_in_executor(None, _living)
                except Exception as e:  # noqa: BLE001
                    _log.warning("it is not known which ingresses live: %s", e)
                else:
                    self._client.end(callers - living)
                await asyncio.sleep(_LOOK_SECONDS)
        finally:
            self._looks = None


def _living() -> set[bytes]:
    """Return the names of actors. A replica of Serve has one of its own, which dies with it."""
    return {a["name"].encode() for a in ray.util.list_named_actors(all_namespaces=True)}
