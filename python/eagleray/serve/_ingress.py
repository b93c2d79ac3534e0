"""The deployment in front of several models: it finds the model of a request, and a replica.

It calls replicas by Serve's handles. ``eagleray route`` does for servers with addresses what is
here and in ``_resume`` and ``_split``; as a child of this deployment it would send requests past
the handles, which count them: Serve would not scale by them, nor refuse what is too much, and would
stop replicas in the middle of them.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from typing import Any, Optional
from urllib.parse import unquote

from ray.serve.exceptions import BackPressureError

from .._binary import version
from .._http import decode, encode
from ._asgi import Receive, RequestError, Scope, Send, error_event, expand, path_of, read_body
from ._asgi import send_all, send_start, target_of
from ._callers import own_name
from ._metrics import merge
from ._prefix import blocks_of
from ._resume import LOST, UNAVAILABLE, Attempts, Progress, without_token
from ._server import Head
from ._status import Deployments

# What a body has whose answer may be a stream.
_STREAM = re.compile(rb'"stream"\s*:\s*true')

_JSON = [(b"content-type", b"application/json")]

_TEXT = [(b"content-type", b"text/plain; version=0.0.4; charset=utf-8")]

_HEALTH = ("/health", "/readyz", "/ping", "/livez")

# What changes the engines of one server.
_ELASTIC = ("/scale_elastic", "/scale_elastic_ep", "/is_scaling_elastic_ep")

# How long a replica has to tell its metrics, or its models.
_TELL_SECONDS = 5.0

# How long a request waits before it is looked whether anything can answer it, and then again.
_LOOK_SECONDS = 1.0

# An error of an engine in what Serve says of a deployment.
_OWN_LINE = re.compile(r"eagleray\.errors\.\w+: (.+)")

# How many adapters' handles are kept.
_MOST_ADAPTERS = 1024


class OpenAIIngress:
    """A replica of the ingress."""

    def __init__(self, models: Sequence[str], handles: Sequence[Any], routed: bool) -> None:
        """Take a handle for each model; routed says that their router looks at prefixes."""
        self._relays: dict[str, Any] = {}
        self._again: dict[str, Any] = {}
        self._wholes: dict[str, Any] = {}
        self._handles: dict[str, Any] = {}
        self._adapted: dict[tuple[int, str], Any] = {}
        for model, handle in zip(models, handles):
            self._add(model, handle)
        self.unnamed: list[Any] = []
        """Handles whose models are asked for with the first request."""
        self._naming = asyncio.Lock()
        self._routed = routed
        self._name = own_name()
        self._created = int(time.time())
        self._serve = Deployments()

    def _add(self, model: str, handle: Any) -> None:
        self._handles[model] = handle
        self._relays[model] = handle.options(method_name="relay", stream=True)
        self._again[model] = handle.options(method_name="relay_again", stream=True)
        self._wholes[model] = handle.options(method_name="whole")

    async def _name_models(self) -> None:
        async with self._naming:
            while self.unnamed:
                handle = self.unnamed[0]
                self._add(await handle.options(method_name="model_name").remote(), handle)
                del self.unnamed[0]

    @property
    def _deployments(self) -> frozenset[str]:
        return frozenset(h.deployment_name for h in (*self._handles.values(), *self.unnamed))

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request of Serve's proxy."""
        try:
            method, path = scope["method"], path_of(scope)
            if self.unnamed and path not in _HEALTH:
                await self._name_models()
            if method in ("GET", "HEAD") and path.startswith("/v1/models"):
                await send_all(send, 200, _JSON, await self._models(path))
            elif method in ("GET", "HEAD") and path in _HEALTH:
                if path != "/livez":
                    await self._check_deployments()
                await send_all(send, 200, [], b"")
            elif path == "/version" and method == "GET" and len(self._relays) > 1:
                said = await asyncio.get_running_loop().run_in_executor(None, version)
                await send_all(send, 200, _JSON, json.dumps({"version": said}).encode())
            elif path == "/metrics" and method == "GET" and len(self._relays) > 1:
                await send_all(send, 200, _TEXT, (await self._metrics()).encode())
            elif path in _ELASTIC:
                raise RequestError(
                    409,
                    "Serve decides how many engines there are: change num_replicas or "
                    "autoscaling_config of the model's deployment, or its engine_kwargs, and "
                    "deploy the application again",
                )
            else:
                await self._relay(scope, await read_body(receive), send)
        except RequestError as e:
            await e.send(scope, send)

    async def _models(self, path: str) -> bytes:
        cards: list[dict[str, Any]] = []
        told = await self._tell("cards")
        for m in self._relays:
            cards.append(
                {"id": m, "object": "model", "created": self._created, "owned_by": "eagleray"}
            )
            # What has a parent is an adapter that a replica has loaded: it is asked for by both.
            cards += [
                {**card, "id": f"{m}:{card['id']}"}
                for card in told.get(m, ())
                if card.get("parent")
            ]
        if path in ("/v1/models", "/v1/models/"):
            return json.dumps({"object": "list", "data": cards}).encode()
        name = unquote(path[len("/v1/models/") :])
        for card in cards:
            if card["id"] == name:
                return json.dumps(card).encode()
        raise _no_model(name)

    async def _check_deployments(self) -> None:
        """Raise RequestError when no model has a replica, and Serve knows of no way to one.

        Otherwise something can be served here, and who balances load should send it.
        """
        found = _down(self._deployments, await self._serve.look())
        if len(found) == len(self._deployments):
            text = ", ".join(found.values())
            raise RequestError(503, text, retry_after=1)

    async def _metrics(self) -> str:
        """Return the metrics of a replica of each model that has one."""
        return merge((await self._tell("metrics")).values())

    async def _tell(self, method: str) -> dict[str, Any]:
        """Return what a replica of each model tells, of those that have one and answer."""
        found = await self._serve.look()
        asked = {
            model: asyncio.wait_for(_told(handle.options(method_name=method)), _TELL_SECONDS)
            for model, handle in self._handles.items()
            # Asking would start one.
            if handle.deployment_name in found
            and found[handle.deployment_name].replica_states.get("RUNNING")
        }
        told = await asyncio.gather(*asked.values(), return_exceptions=True)
        return {m: said for m, said in zip(asked, told) if not isinstance(said, BaseException)}

    async def _relay(self, scope: Scope, body: bytes, send: Send) -> None:
        model, adapter, fields = await self._model_of(scope, body)
        prefix = blocks_of(fields) if self._routed else ()
        progress, attempts = Progress(scope["headers"]), Attempts()
        method, target = scope["method"].encode(), target_of(scope)
        while True:
            request = (method, target, progress.headers(), body, prefix, adapter)
            answer = self._ask(model, request, attempts)
            again = True
            try:
                refused = await _pass_on(answer, progress, attempts, send)
                if refused is None:
                    return
                status, said = refused
                failed = error_event(scope, said)
                again = status in (503, 529)  # Anthropic's clients get 529 for 503
            except LOST as e:
                if not progress.begun:
                    text = f"no replica has answered: {e}"
                    raise RequestError(503, text, retry_after=1) from None
                failed = RequestError(503, "the replica that was answering has ended").event(scope)
            except RequestError as e:
                if not progress.begun:
                    raise
                failed = e.event(scope)
            finally:
                await answer.aclose()
            if not again or not progress.resumable or not attempts.may_wait():
                break
            await attempts.pause()
        # What cannot go on: its reader learns of it within the stream.
        event = b"\n\n" + failed
        await send({"type": "http.response.body", "body": event, "more_body": False})

    async def _ask(
        self, model: str, request: tuple[Any, ...], attempts: Attempts
    ) -> AsyncGenerator[Any, None]:
        """Give a request to a replica, and to another one while none has begun to answer."""
        while True:
            again = attempts.deaths > 0
            stream = self._call(model, request, again)
            wait = _Wait(stream, self._handles[model].deployment_name, self._serve)
            ended = False
            begun = False
            # Of the replicas of a node that is gone most are dead before they are asked.
            received = not again
            try:
                async for item in stream:
                    if item is None:
                        received = True
                        continue
                    begun = True
                    wait.end()
                    # There is nothing to cancel after a head with all of the body.
                    ended = isinstance(item, tuple) and not item[3]
                    yield item
                ended = True
                return
            except LOST as e:
                ended = True
                if not attempts.count_death(e, received) or begun:
                    raise
            except BackPressureError as e:
                ended = True
                raise RequestError(503, str(e), retry_after=1) from None
            except UNAVAILABLE:
                ended = True
                raise RequestError(503, await self._reason(model), retry_after=1) from None
            except BaseException:
                if wait.reason is None:
                    raise
                ended = True
                raise RequestError(503, wait.reason, retry_after=1) from None
            finally:
                wait.end()
                if not ended:
                    stream.cancel()
            await attempts.pause()

    async def _reason(self, model: str) -> str:
        """Return why a model's deployment answers nothing."""
        name: str = self._handles[model].deployment_name
        found = _down((name,), await self._serve.look())
        return found.get(name, f"{name} has no replica")

    def _call(self, model: str, request: tuple[Any, ...], again: bool) -> Any:
        """Call a replica, and return what may be iterated over and cancelled.

        One that is asked again first says that it has the request, by None.
        """
        method, target, headers, body, prefix, adapter = request
        hints = (prefix,) if prefix else ()
        if again:
            called = self._with(self._again[model], adapter).remote
        elif not body.startswith(b"{") or _STREAM.search(body):
            called = self._with(self._relays[model], adapter).remote
        else:
            # Ray takes bytes as they are, and everything else through a pickler of its own.
            line = b"%s %s %s" % (method, target, self._name)
            whole = self._with(self._wholes[model], adapter)
            return _Whole(whole.remote(encode(line, headers, body), *hints))
        return called(method, target, headers, body, self._name, *hints)

    def _with(self, handle: Any, adapter: str) -> Any:
        """Return a handle whose requests go to replicas that have an adapter, "" for any."""
        if not adapter:
            return handle
        key = (id(handle), adapter)
        found = self._adapted.get(key)
        if found is None:
            if len(self._adapted) >= _MOST_ADAPTERS:
                self._adapted.clear()
            found = self._adapted[key] = handle.options(multiplexed_model_id=adapter)
        return found

    def _base(self, name: Any) -> tuple[str, str]:
        """Return the model of a name, and the name if it has an adapter behind it, else ""."""
        if isinstance(name, str):
            if name in self._relays:
                return name, ""
            model, colon, adapter = name.rpartition(":")
            if colon and adapter and model in self._relays:
                return model, name
        raise _no_model(name)

    async def _model_of(self, scope: Scope, body: bytes) -> tuple[str, str, dict[str, Any]]:
        """Return the model of a request, its adapter, "" for none, and the members of its body.

        One that is compressed is expanded for this alone: its replica gets it as it came.
        """
        first = next(iter(self._relays))
        if any(name == b"content-encoding" for name, _ in scope["headers"]):
            if len(self._relays) == 1 and not self._routed:
                return first, "", {}  # nothing is chosen by the body
            loop = asyncio.get_running_loop()
            body = await loop.run_in_executor(None, expand, scope["headers"], body)
        if not body:
            if len(self._relays) == 1 or scope["method"] == "OPTIONS":
                return first, "", {}
            raise RequestError(
                404, "the ingress of several models has this route only for requests with a model"
            )
        try:
            fields = json.loads(body)
        except (ValueError, RecursionError):  # deeper than any request is
            fields = None
        if not isinstance(fields, dict):
            if len(self._relays) == 1:
                return first, "", {}  # the engine says what is wrong with it
            raise RequestError(400, "the body is not a JSON object")
        name = fields.get("model")
        if name is None and len(self._relays) == 1:
            return first, "", fields
        if name is None:
            raise RequestError(400, f"model is missing: one of {self._names()}", "model")
        return (*self._base(name), fields)

    def _names(self) -> str:
        return ", ".join(self._relays)


async def _pass_on(
    answer: AsyncGenerator[Any, None], progress: Progress, attempts: Attempts, send: Send
) -> Optional[tuple[int, bytes]]:
    """Give the client what it does not have of an answer.

    Returns the status and the body with which a replica refuses to go on. Raises the errors of
    LOST, and RequestError.
    """
    head: Head = await answer.__anext__()
    status, headers, part, more = head
    if progress.begun and status != 200:
        return status, part
    if not progress.begun and not more:
        await send_all(send, status, without_token(headers), part)
        return None
    attempts.end_wait()
    if not progress.begun:
        await send_start(send, status, progress.begin(headers))
    while True:
        progress.add(part)
        await send({"type": "http.response.body", "body": part, "more_body": True})
        try:
            part = await answer.__anext__()
        except StopAsyncIteration:
            break
    await send({"type": "http.response.body", "body": b"", "more_body": False})
    return None


class _Wait:
    """The wait for an answer to begin, which ends where nothing can answer."""

    def __init__(self, stream: Any, deployment: str, deployments: Deployments) -> None:
        self._stream, self._deployment, self._serve = stream, deployment, deployments
        self._loop = asyncio.get_running_loop()
        self._timer: Optional[asyncio.TimerHandle] = None
        self._look: Optional[asyncio.Task[None]] = None
        self.reason: Optional[str] = None
        """Why the stream was cancelled."""
        self._later()

    def end(self) -> None:
        """Look no more. It may be called again."""
        if self._timer is not None:
            self._timer.cancel()
        if self._look is not None:
            self._look.cancel()

    def _later(self) -> None:
        self._timer = self._loop.call_later(_LOOK_SECONDS, self._begin)

    def _begin(self) -> None:
        self._look = asyncio.ensure_future(self._check())

    async def _check(self) -> None:
        found = _down((self._deployment,), await self._serve.look())
        if found:
            self.reason = found[self._deployment]
            self._stream.cancel()
        else:
            self._later()


async def _told(handle: Any) -> Any:
    """Return what a replica tells."""
    return await handle.remote()


class _Whole:
    """A complete answer, as a stream has it: its head, with all of its body."""

    def __init__(self, response: Any) -> None:
        self._response = response

    async def __aiter__(self) -> AsyncGenerator[Head, None]:
        status, headers, body = decode(await self._response)
        yield int(status), headers, body, False

    def cancel(self) -> None:
        """Have the replica stop."""
        self._response.cancel()


def _no_model(name: Any) -> RequestError:
    return RequestError(404, f"The model `{str(name)[:200]}` does not exist.", "model")


def _down(deployments: Collection[str], found: Mapping[str, Any]) -> dict[str, str]:
    """Return those of the deployments that cannot answer, with the reason."""
    return {
        deployment: _why(deployment, status)
        for deployment, status in found.items()
        if deployment in deployments
        and status.status.value in ("UNHEALTHY", "DEPLOY_FAILED")
        and not status.replica_states.get("RUNNING")
    }


def _why(deployment: str, status: Any) -> str:
    """Return an engine's line out of what Serve says of a deployment, else its status."""
    line = _OWN_LINE.search(status.message)
    return line.group(1) if line else f"{deployment} is {status.status.value}"
