"""What Serve says of the deployments of an application."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any, Optional

from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException

# How long what Serve says is remembered, and how long it has to say it.
_STATUS_SECONDS = 1.0
_SAY_SECONDS = 1.0


class Deployments:
    """This application's deployments, as Serve says or has said last.

    Its controller answers nobody while Ray's GCS or head node is away, but replicas do: what needs
    to know of them does not wait for it.
    """

    def __init__(self) -> None:
        """Know of none yet."""
        self._known: Mapping[str, Any] = {}
        self._asked = self._said = -_STATUS_SECONDS
        self._asking: Optional[asyncio.Future[None]] = None

    async def look(self) -> Mapping[str, Any]:
        """Return the status of each deployment by name, nothing before Serve has told."""
        now = time.monotonic()
        if self._asking is None and now - self._said >= _STATUS_SECONDS:
            self._asked, self._asking = now, asyncio.ensure_future(self._ask())
        rest = self._asked + _SAY_SECONDS - now
        if self._asking is not None and rest > 0:
            await asyncio.wait({self._asking}, timeout=rest)
        return self._known

    async def _ask(self) -> None:
        try:
            loop = asyncio.get_running_loop()
            self._known = await loop.run_in_executor(None, own_deployments)
        except (RayError, RayServeException):
            pass  # it says nothing just now
        finally:
            self._said, self._asking = time.monotonic(), None


def own_deployments() -> Mapping[str, Any]:
    """Return what Serve says of this application's deployments, nothing before it knows of them."""
    application = serve.status().applications.get(serve.get_replica_context().app_name)
    return application.deployments if application else {}
