"""The ingress of a model whose prompts one deployment computes and another one goes on from.

It does what internal/api/pdproxy does for servers with addresses; ``_ingress`` says why it is not
that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from typing import Any, Optional

from ._asgi import RequestError
from ._handover import decode_body, prefill_body, refuses_transfer, renounce, transfer_params
from ._ingress import OpenAIIngress
from ._resume import Attempts

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
        self._partings: set[asyncio.Task[None]] = set()

    async def _ask(
        self, model: str, request: tuple[Any, ...], attempts: Attempts
    ) -> AsyncGenerator[Any, None]:
        found = await self._split(model, request)
        # Parameters that the decode replica must not follow, such as those of an engine that was
        # deployed with another secret, are no mistake of the client's.
        for params in (None,) if found is None else (found, None):
            answer = super()._ask(model, _going_on(request, params), attempts)
            complete = False
            try:
                head = await answer.__anext__()
                if params is not None and refuses_transfer(head[0], head[2]):
                    continue
                complete = head[0] == 200 and not head[3]
                yield head
                async for part in answer:
                    yield part
                complete = head[0] == 200
                return
            finally:
                # The decode replica may never have heard of the blocks, have refused the request,
                # or be gone.
                if params is not None and not complete:
                    self._part(params)
                await answer.aclose()

    def _part(self, params: dict[str, Any]) -> None:
        """Have a prefill replica told, soon, that its blocks are not needed."""

        async def tell() -> None:
            try:
                await renounce(params)
            except (OSError, ValueError, asyncio.TimeoutError, asyncio.IncompleteReadError) as e:
                _log.debug("blocks were not given up: %s", e)

        task = asyncio.ensure_future(tell())
        self._partings.add(task)
        task.add_done_callback(self._partings.discard)

    async def _split(self, model: str, request: tuple[Any, ...]) -> Optional[dict[str, Any]]:
        """Have a prompt computed, and return the parameters of requests that go on from it.

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
                found = (await self._serve.look()).get(self._prefill_name)
                # Before it is known the deployment is asked.
                if found and not found.replica_states.get("RUNNING"):
                    _log.warning("no prefill replica: the prompt is computed where it is decoded")
                    return None
            status, answer = task.result()
        except Exception as e:  # noqa: BLE001
            _log.warning("the prompt is computed where it is decoded: %s", e)
            return None
        finally:
            task.cancel()
        return transfer_params(status, answer)

    async def _compute(self, model: str, request: tuple[Any, ...]) -> tuple[int, bytes]:
        # Where it dies the decode replica computes the prompt.
        answer = self._prefill._ask(model, request, Attempts(1))
        try:
            status, _, part, more = await answer.__anext__()
            if more:
                raise RequestError(503, "a prefill replica answers with a stream")
            return status, part
        finally:
            await answer.aclose()


def _going_on(request: tuple[Any, ...], params: Optional[dict[str, Any]]) -> tuple[Any, ...]:
    """Return a request that goes on from what a prefill replica has computed, if one has."""
    if params is None:
        return request
    method, target, headers, body, *rest = request
    return (method, target, headers, decode_body(body, params), *rest)
