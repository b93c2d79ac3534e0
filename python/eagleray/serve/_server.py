"""The deployment of one model: each replica is an engine, whose API it passes through."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Mapping, Sequence
from typing import Any, Callable, Optional, Union

import ray
from ray import serve

from .._bundles import bundle_of_replica
from .._engine import Engine
from .._http import Answer, Client, Headers, decode, encode
from ..errors import EagleRayError, EngineDeadError, of_answer
from . import openai_api_models as models
from ._asgi import Receive, RequestError, Scope, Send, read_body, send_all, send_start, target_of
from ._callers import CallerWatch
from ._handover import transfer_flag
from ._metrics import read_load

# How long an engine may not be healthy, as while it replaces a lost rank, before its replica is.
# The requests that it holds go on after that; they would be lost with the replica.
UNHEALTHY_SECONDS = 60.0

# What has come of an answer and was not read; beyond it the engine waits.
_MOST_UNREAD_BYTES = 256 * 1024

# How long requests of an ended engine have to tell that, before the replica ends.
_LAST_WORDS_SECONDS = 0.5

Head = tuple[int, Headers, bytes, bool]
"""Status, headers, the beginning of the body, and whether more comes."""


class LLMServer:
    """A replica. Its engine ends with it, and it with its engine."""

    def __init__(
        self,
        arguments: Sequence[str],
        on_ray: bool,
        key: Optional[str],
        exchange: Optional[tuple[Mapping[str, Any], str]] = None,
        more: Optional[Mapping[str, str]] = None,
        adapters: int = 0,
    ) -> None:
        """Start the engine. Raises ConfigError or EngineDeadError with the engine's line.

        ``exchange`` is kv_transfer_config and the secret of the engines that exchange KV blocks,
        ``more`` what the engine's environment has beside the replica's, ``adapters`` how many the
        engine keeps.
        """
        self._keep: Optional[Callable[[str], Awaitable[str]]] = None
        if adapters:
            # Serve learns of it which adapters a replica has, and sends their requests there.
            self._keep = serve.multiplexed(max_num_models_per_replica=adapters)(_kept)
        env = {**os.environ, **(more or {})}
        if on_ray:
            env.update(_group_of_replica())
            arguments = [*arguments, f"--ray-python={sys.executable}"]
        token = None
        if exchange is not None:
            config, token = exchange
            if not on_ray:  # actors know where they are
                node = ray.util.get_node_ip_address()
                arguments = [*arguments, transfer_flag(config, node)]
        try:
            self._engine = Engine(arguments, env, token, private=False)
        except EagleRayError as e:
            # Serve's status has all of the traceback, which begins with the cause.
            raise e from type(e)(*e.args)
        self._stops = stops = threading.Event()
        self._engine.when_ended(lambda: None if stops.is_set() else _end_replica())
        self._client = Client(self._engine.path, most=_MOST_UNREAD_BYTES)
        self._callers = CallerWatch(self._client)
        self._key = [(b"authorization", b"Bearer " + key.encode())] if key else []
        self._well = time.monotonic()

    async def relay(
        self,
        method: bytes,
        target: bytes,
        headers: Headers,
        body: bytes,
        caller: bytes = b"",
        *_: Any,
    ) -> AsyncGenerator[Union[Head, bytes], None]:
        """Answer a request of an ingress: the head, then what follows of the body.

        ``caller`` is the name of the actor with whose end the request ends. Further arguments are
        for the router. Raises EngineDeadError when the engine ends.
        """
        if caller:
            self._callers.watch()
        answer = await self._client.ask(method, target, headers, body, caller)
        try:
            await self._note_adapter(answer)
            # An answer that is not streamed comes as one.
            part = await (answer.read() if answer.streamed else answer.read_all())
            yield answer.status, answer.headers, part, not answer.complete
            while not answer.complete:
                if part := await answer.read():
                    yield part
        finally:
            answer.close()

    async def relay_again(
        self,
        method: bytes,
        target: bytes,
        headers: Headers,
        body: bytes,
        caller: bytes = b"",
        *_: Any,
    ) -> AsyncGenerator[Union[Head, bytes, None], None]:
        """Answer as relay does, after None: this replica has the request.

        It is for a request with which a replica has died: only one that has taken it can die of it.
        """
        answer = self.relay(method, target, headers, body, caller)
        try:
            yield None
            async for item in answer:
                yield item
        finally:
            await answer.aclose()

    async def whole(self, message: bytes, *_: Any) -> bytes:
        """Answer a request of an ingress that asks for no stream.

        ``message`` and the result are :func:`encode`'s, their first lines ``METHOD target caller``
        and the status: a call with one result is a third cheaper than one with a stream of them.
        """
        self._callers.watch()
        line, headers, body = decode(message)
        method, target, caller = line.split(b" ", 2)
        answer = await self._client.ask(method, target, headers, body, caller)
        try:
            await self._note_adapter(answer)
            body = await answer.read_all()
            return encode(b"%d" % answer.status, answer.headers, body)
        finally:
            answer.close()

    async def _note_adapter(self, answer: Answer) -> None:
        """Tell Serve that the engine has the adapter that a request was for."""
        if self._keep is not None and answer.status == 200:
            if adapter := serve.get_multiplexed_model_id():
                await self._keep(adapter)

    async def model_name(self) -> str:
        """Return the name by which clients ask for the model."""
        return str(self._engine.ready["model"])

    async def chat(self, request: Mapping[str, Any], *_: Any) -> AsyncGenerator[Any, None]:
        """Answer a conversation: a ChatCompletionResponse, or the text of a stream in pieces.

        It raises BadRequestError or RequestError, as :meth:`completions` and the others.
        """
        route, kind = "/v1/chat/completions", models.ChatCompletionResponse
        async for part in self._body(route, request, kind):
            yield part

    async def completions(self, request: Mapping[str, Any], *_: Any) -> AsyncGenerator[Any, None]:
        """Complete a prompt: a CompletionResponse, or the text of a stream in pieces."""
        async for part in self._body("/v1/completions", request, models.CompletionResponse):
            yield part

    async def embeddings(self, request: Mapping[str, Any], *_: Any) -> AsyncGenerator[Any, None]:
        """Embed texts: an EmbeddingResponse."""
        async for part in self._body("/v1/embeddings", request, models.EmbeddingResponse):
            yield part

    async def score(self, request: Mapping[str, Any], *_: Any) -> AsyncGenerator[Any, None]:
        """Score pairs of texts: a ScoreResponse."""
        async for part in self._body("/v1/score", request, models.ScoreResponse):
            yield part

    async def tokenize(self, request: Mapping[str, Any], *_: Any) -> AsyncGenerator[Any, None]:
        """Return the tokens of a text or a conversation: a TokenizeResponse."""
        async for part in self._body("/tokenize", request, models.TokenizeResponse):
            yield part

    async def cards(self) -> list[dict[str, Any]]:
        """Return what the engine lists as models, its adapters too."""
        _, text = await self._get(b"/v1/models")
        cards: list[dict[str, Any]] = json.loads(text)["data"]
        return cards

    async def metrics(self) -> tuple[str, str]:
        """Return the name of this replica, and its engine's metrics."""
        _, text = await self._get(b"/metrics")
        return str(serve.get_replica_context().replica_id.unique_id), text

    async def _body(
        self, route: str, request: Mapping[str, Any], kind: type[models.Body]
    ) -> AsyncGenerator[Any, None]:
        headers = [*self._key, (b"content-type", b"application/json")]
        body = json.dumps(dict(request)).encode()
        answer = await self._client.ask(b"POST", route.encode(), headers, body)
        try:
            if answer.streamed and 200 <= answer.status < 300:
                while not answer.complete:
                    if part := await answer.read():
                        yield part.decode()
                return
            said = json.loads(await answer.read_all())
            if not 200 <= answer.status < 300:
                raise of_answer(answer.status, said)
            yield kind(said)
        finally:
            answer.close()

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request of Serve's proxy."""
        try:
            body = await read_body(receive)
            answer = await self._ask(scope["method"].encode(), target_of(scope), scope, body)
        except RequestError as e:
            await e.send(scope, send)
            return
        try:
            if not answer.streamed:
                body = await answer.read_all()
                await send_all(send, answer.status, answer.headers, body)
                return
            await send_start(send, answer.status, answer.headers)
            while not answer.complete:
                part = await answer.read()
                await send(
                    {
                        "type": "http.response.body",
                        "body": part,
                        "more_body": not answer.complete,
                    }
                )
        finally:
            answer.close()

    async def _ask(self, method: bytes, target: bytes, scope: Scope, body: bytes) -> Answer:
        try:
            return await self._client.ask(method, target, scope["headers"], body)
        except EngineDeadError as e:
            raise RequestError(503, str(e), retry_after=1) from None

    async def check_health(self) -> None:
        """Tell Serve whether this replica lives. Raises EngineDeadError with the reason."""
        self._engine.check()
        status, text = await self._get(b"/health")
        if status == 200:
            self._well = time.monotonic()
        elif time.monotonic() - self._well > UNHEALTHY_SECONDS:
            raise EngineDeadError(f"the engine is not healthy: {text}")

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Tell Serve's autoscaler how many requests the engine runs, and how many wait."""
        return await self._load()

    async def record_routing_stats(self) -> dict[str, float]:
        """Tell request routers the same."""
        return await self._load()

    async def _load(self) -> dict[str, float]:
        _, text = await self._get(b"/metrics")
        return read_load(text)

    async def _get(self, path: bytes) -> tuple[int, str]:
        answer = await self._client.ask(b"GET", path, self._key, b"")
        try:
            return answer.status, (await answer.read_all()).decode(errors="replace")
        finally:
            answer.close()

    def __del__(self) -> None:
        """End the engine, once Serve has drained the replica."""
        if hasattr(self, "_stops"):
            self._stops.set()
            self._engine.close()


async def _kept(adapter: str) -> str:
    """Stand for an adapter, which the engine has loaded itself and gives up itself."""
    return adapter


def _group_of_replica() -> dict[str, str]:
    """Return what the engine must know to take the other bundles of the replica's group."""
    context = ray.get_runtime_context()
    group = ray.util.get_current_placement_group()
    env = {
        "EAGLERAY_RAY_ADDRESS": context.gcs_address,
        "EAGLERAY_RAY_NAMESPACE": context.namespace,
        "EAGLERAY_NODE_IP": ray.util.get_node_ip_address(),
    }
    if group is not None:
        env["EAGLERAY_RAY_PLACEMENT_GROUP"] = group.id.hex()
        row = ray.util.placement_group_table(group)
        env["EAGLERAY_RAY_SKIP_BUNDLE"] = str(bundle_of_replica(row, context.get_node_id()))
    return env


def _end_replica() -> None:
    """End this process soon: Serve then starts another replica at once, and callers try others."""
    threading.Timer(_LAST_WORDS_SECONDS, os._exit, args=(1,)).start()
