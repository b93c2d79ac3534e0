"""The ingress of a model whose prompts one deployment computes and another one goes on from."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from typing import Any, Optional

from ray import serve

from .asgi import RequestError
from .handover import decode_body, prefill_body, refuses_transfer
from .ingress import OpenAIIngress
from .resume import Deaths

_log = logging.getLogger("ray.serve")

# How often a request that waits for a prefill replica looks whether there is one.
_LOOK_SECONDS = 1.0


class PDIngress(OpenAIIngress):
    """A replica of the ingress: a prompt is computed by one replica, its answer by another."""

    def __init__(self, model: str, prefill: Any, decode: Any, routed: bool) -> None:
        """Take the handles of both deployments of a model."""
        super().__init__([model], [decode], routed)
        self._prefill = OpenAIIngress([model], [prefill], routed)
        self._prefill_name: str = prefill.deployment_name

    async def _ask(
        self, model: str, request: tuple[Any, ...], deaths: Deaths
    ) -> AsyncGenerator[Any, None]:
        split = await self._split(model, request)
        # Parameters that the decode replica must not follow, such as those of an engine that was
        # deployed with another secret, are no mistake of the client's.
        for asked in (request,) if split is None else (split, request):
            answer = super()._ask(model, asked, deaths)
            try:
                head = await answer.__anext__()
                if asked is split and refuses_transfer(head[0], head[2]):
                    continue
                yield head
                async for part in answer:
                    yield part
                return
            finally:
                await answer.aclose()

    async def _split(self, model: str, request: tuple[Any, ...]) -> Optional[tuple[Any, ...]]:
        """Have a prompt computed, and return the request that goes on from it.

        None is for what is not split. Whatever goes wrong only means that the decode replica
        computes the prompt.
        """
        method, target, headers, body, *rest = request
        asked = prefill_body(target, body) if method == b"POST" else None
        if asked is None:
            return None
        headers_of_both = [h for h in headers if h[0] != b"accept-encoding"]
        task = asyncio.ensure_future(
            self._compute(model, (method, target, headers_of_both, asked, *rest))
        )
        try:
            while not (await asyncio.wait({task}, timeout=_LOOK_SECONDS))[0]:
                loop = asyncio.get_running_loop()
                if not await loop.run_in_executor(None, _running, self._prefill_name):
                    _log.warning("no prefill replica: the prompt is computed where it is decoded")
                    return None
            status, answer = task.result()
        except Exception as e:  # noqa: BLE001
            _log.warning("the prompt is computed where it is decoded: %s", e)
            return None
        finally:
            task.cancel()
        changed = decode_body(body, status, answer)
        return None if changed is None else (method, target, headers, changed, *rest)

    async def _compute(self, model: str, request: tuple[Any, ...]) -> tuple[int, bytes]:
        # Where it dies the decode replica computes the prompt.
        answer = self._prefill._ask(model, request, Deaths(1))
        try:
            status, _, part, more = await answer.__anext__()
            if more:
                raise RequestError(503, "a prefill replica answers with a stream")
            return status, part
        finally:
            await answer.aclose()


def _running(deployment: str) -> bool:
    """Say whether a deployment of this application has a replica that runs."""
    application = serve.status().applications.get(serve.get_replica_context().app_name)
    found = application and application.deployments.get(deployment)
    # Before it is known the deployment is asked.
    return not found or found.replica_states.get("RUNNING", 0) > 0
