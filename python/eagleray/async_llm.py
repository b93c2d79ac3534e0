"""An engine for programs that run an event loop: answers come as streams."""

from __future__ import annotations

import asyncio
import collections
import itertools
import threading
import weakref
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Callable, Optional, TypeVar

from . import _jobs, _waiting, errors
from ._arguments import command_line
from ._completion import ROUTE, Completion, PromptType
from ._engine import Engine
from ._jobs import Job, Message
from ._trainable import AsyncTrainable
from .outputs import (
    ClassificationRequestOutput,
    EmbeddingRequestOutput,
    PoolingOutput,
    PoolingRequestOutput,
    RequestOutput,
    ScoringRequestOutput,
)
from .sampling_params import SamplingParams
from .tokenizer import Tokenizer
from .weights import Trainable

_Result = TypeVar("_Result")


class AsyncLLM(AsyncTrainable):
    """A model and its engine, a process of its own that ends with this one.

    The keyword arguments are the engine's flags with vLLM's names: ``tensor_parallel_size=2``.
    Without a model it is the built-in one. A wrong argument is a ConfigError, a ValueError. The
    engine starts before this returns, which for a large model is minutes.

    Any event loop of any thread may use it.
    """

    def __init__(self, model: Optional[str] = None, **engine_args: Any) -> None:
        self._engine = Engine(command_line({"model": model, **engine_args}))
        self._finalizer = weakref.finalize(self, self._engine.close)
        self._inboxes: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Inbox] = (
            weakref.WeakKeyDictionary()
        )
        self._lock = threading.Lock()  # of the inboxes and of what runs
        self._names = itertools.count()
        self._running: dict[str, _Receiver] = {}

    async def generate(
        self,
        prompt: PromptType,
        sampling_params: Optional[SamplingParams] = None,
        request_id: Optional[str] = None,
        *,
        priority: int = 0,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Yield the output of a prompt as it comes; the last one is ``finished``.

        To stop iterating ends the request. Raises BadRequestError, RequestError or
        EngineDeadError.
        """
        name = self._name(request_id)
        request = Completion(prompt, sampling_params, name, self._length, priority)
        async for output in self._generate(request, name):
            yield output

    async def chat(
        self,
        messages: Sequence[Message],
        sampling_params: Optional[SamplingParams] = None,
        request_id: Optional[str] = None,
        *,
        chat_template: Optional[str] = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Optional[Sequence[Mapping[str, Any]]] = None,
        chat_template_kwargs: Optional[Mapping[str, Any]] = None,
        priority: int = 0,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Yield the answer to a conversation as it comes, as :meth:`generate` does."""
        name = self._name(request_id)
        options = {
            "chat_template": chat_template,
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": continue_final_message,
            "tools": None if tools is None else list(tools),
            "chat_template_kwargs": chat_template_kwargs,
        }
        text, tokens = await self._do(_jobs.conversation(messages, options), name)
        request = Completion(tokens, sampling_params, name, self._length, priority)
        async for output in self._generate(request, name):
            output.prompt = text
            yield output

    async def embed(
        self,
        prompt: PromptType,
        request_id: Optional[str] = None,
        *,
        truncate_prompt_tokens: Optional[int] = None,
        dimensions: Optional[int] = None,
        normalize: Optional[bool] = None,
    ) -> EmbeddingRequestOutput:
        """Embed a prompt, with a model that was started with ``runner="pooling"``."""
        name = self._name(request_id)
        options = {
            "truncate_prompt_tokens": truncate_prompt_tokens,
            "dimensions": dimensions,
            "normalize": normalize,
        }
        return await self._do(_jobs.embedding(prompt, options, name), name)

    async def classify(
        self,
        prompt: PromptType,
        request_id: Optional[str] = None,
        *,
        truncate_prompt_tokens: Optional[int] = None,
        use_activation: Optional[bool] = None,
    ) -> ClassificationRequestOutput:
        """Classify a prompt, with a ``…ForSequenceClassification`` model."""
        name = self._name(request_id)
        options = {
            "truncate_prompt_tokens": truncate_prompt_tokens,
            "use_activation": use_activation,
        }
        return await self._do(_jobs.classification(prompt, options, name), name)

    async def encode(
        self,
        prompt: PromptType,
        request_id: Optional[str] = None,
        *,
        truncate_prompt_tokens: Optional[int] = None,
        pooling_task: Optional[str] = None,
    ) -> PoolingRequestOutput[PoolingOutput]:
        """Pool a prompt for a task: ``embed``, or ``classify`` with a classifier."""
        name = self._name(request_id)
        options = {"truncate_prompt_tokens": truncate_prompt_tokens}
        return await self._do(_jobs.pooling(prompt, pooling_task, options, name), name)

    async def score(
        self,
        query: str,
        documents: Sequence[str],
        request_id: Optional[str] = None,
        *,
        truncate_prompt_tokens: Optional[int] = None,
    ) -> list[ScoringRequestOutput]:
        """Score documents for a query."""
        name = self._name(request_id)
        options = {"truncate_prompt_tokens": truncate_prompt_tokens}
        return await self._do(_jobs.scores(query, documents, options, name), name)

    async def request(
        self,
        route: str,
        body: Optional[Mapping[str, Any]] = None,
        method: str = "POST",
        request_id: Optional[str] = None,
    ) -> Any:
        """Ask any route of the server's API, and return the body of the answer."""
        receiver = self._ask(route, body, method, request_id)
        try:
            while not receiver.over:
                await receiver.events()
            return receiver.body
        finally:
            receiver.close()

    async def stream(
        self, route: str, body: Mapping[str, Any], request_id: Optional[str] = None
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Ask a route whose body says ``"stream": True``, and yield the events."""
        receiver = self._ask(route, body, "POST", request_id)
        try:
            while not receiver.over:
                for event in await receiver.events():
                    yield event
        finally:
            receiver.close()

    async def get_tokenizer(self) -> Tokenizer:
        """Return the tokenizer, which is in the engine; its calls are short, and wait."""
        return Tokenizer(lambda route, body: _waiting.ask(self._engine, route, body))

    @property
    def trainable(self) -> Trainable:
        """The calls of a trainer for threads that wait, and what a ``WeightTransfer`` takes."""
        return _Blocking(self._engine)

    def get_default_sampling_params(self) -> SamplingParams:
        """Return what the model's generation_config.json says, else vLLM's defaults."""
        return SamplingParams(**self._engine.ready["sampling"])

    async def abort(self, request_id: str) -> None:
        """End a request: its caller has a RequestError of status 499."""
        receiver = self._running.get(request_id)
        if receiver is not None:
            receiver.cancel()
            receiver.fail(errors.RequestError(f"request {request_id} was aborted", 499))

    @property
    def max_concurrency(self) -> int:
        """How many requests at a time keep the engine busy; more only wait."""
        return int(self._engine.ready["window"])

    def shutdown(self) -> None:
        """End the engine. Requests that are running fail. Calling it twice is harmless."""
        self._finalizer()

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self.shutdown)

    @property
    def _length(self) -> int:
        return int(self._engine.ready["max_model_len"])

    def _name(self, given: Optional[str]) -> str:
        return str(next(self._names)) if given is None else given

    async def _generate(
        self, request: Completion, name: str
    ) -> AsyncGenerator[RequestOutput, None]:
        if request.at_once:
            yield await self._do(_jobs.completion(request), name)
            return
        receiver = self._ask(ROUTE, request.stream_body, "POST", name)
        try:
            while not receiver.over:
                for event in await receiver.events():
                    request.take(event)
                if receiver.over or not request.complete:  # its end is on the way
                    yield request.shown(finished=receiver.over)
        finally:
            receiver.close()

    async def _do(self, job: Job[_Result], name: str) -> _Result:
        answer: Any = None
        while True:
            try:
                route, body = job.send(answer)
            except StopIteration as end:
                result: _Result = end.value
                return result
            answer = await self.request(route, body, "POST", name)

    def _ask(
        self,
        route: str,
        body: Optional[Mapping[str, Any]],
        method: str,
        request_id: Optional[str],
    ) -> _Receiver:
        loop = asyncio.get_running_loop()
        name = self._name(request_id)
        with self._lock:
            inbox = self._inboxes.get(loop)
            if inbox is None:
                inbox = self._inboxes[loop] = _Inbox(loop)
            if name in self._running:
                raise ValueError(f"request_id: {name} is running already")
            receiver = self._running[name] = _Receiver(inbox)
        try:
            number = self._engine.send(route, body, receiver, method)
        except BaseException:
            self._running.pop(name, None)
            raise
        receiver.begin(
            cancel=lambda: self._engine.cancel(number),
            forget=lambda: self._running.pop(name, None),
        )
        return receiver


class _Blocking(Trainable):
    """Asks an engine and waits."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def request(
        self, route: str, body: Optional[dict[str, Any]] = None, method: str = "POST"
    ) -> Any:
        """Ask any route of the server's API, and return the body of the answer."""
        return _waiting.ask(self._engine, route, body, method)


class _Inbox:
    """Hands what was read on to an event loop: all that has come, at each turn of it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._lock = threading.Lock()
        self._items: list[tuple[_Receiver, Any]] = []

    def put(self, receiver: _Receiver, item: Any) -> None:
        """Hand an item on, from any thread."""
        with self._lock:
            self._items.append((receiver, item))
            if len(self._items) > 1:
                return  # a turn is on its way
        loop = self._loop()
        try:
            if loop is not None:
                loop.call_soon_threadsafe(self._deliver)
        except RuntimeError:
            pass  # the loop was closed, with all that waited in it

    def _deliver(self) -> None:
        with self._lock:
            items, self._items = self._items, []
        for receiver, item in items:
            receiver.deliver(item)


class _Receiver:
    """Takes what comes of a request on the reader's thread, for a task of an event loop."""

    def __init__(self, inbox: _Inbox) -> None:
        self._inbox = inbox
        self._events: collections.deque[dict[str, Any]] = collections.deque()
        self._error: Optional[errors.EagleRayError] = None
        self._waiter: Optional[asyncio.Future[None]] = None
        self._ended = False
        self.body: Any = None

    def begin(self, cancel: Callable[[], None], forget: Callable[[], object]) -> None:
        """Take what ends the request early, and what frees its name."""
        self.cancel, self._forget = cancel, forget

    def event(self, event: dict[str, Any]) -> None:
        """Take an event of a stream."""
        self._inbox.put(self, event)

    def answer(self, status: int, body: Any) -> None:
        """Take the answer, or the end of a stream."""
        ok = 200 <= status < 300
        self._inbox.put(self, _End(body) if ok else errors.of_answer(status, body))

    def fail(self, error: errors.EagleRayError) -> None:
        """Take what comes instead of an answer."""
        self._inbox.put(self, error)

    @property
    def over(self) -> bool:
        """Whether nothing more comes."""
        return self._ended and self._error is None and not self._events

    def deliver(self, item: Any) -> None:
        """Take an item, in the event loop."""
        if self._ended:
            return
        if isinstance(item, errors.EagleRayError):
            self._error = item
            self._ended = True
        elif isinstance(item, _End):
            self.body = item.body
            self._ended = True
        elif "error" in item:
            self._error = errors.of_answer(item["error"].get("code") or 500, item)
        else:
            self._events.append(item)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def events(self) -> list[dict[str, Any]]:
        """Wait for something to come, and return the events; none at the end."""
        if not (self._ended or self._error or self._events):
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
            self._waiter = None
        if self._error is not None and not self._events:
            raise self._error
        events = list(self._events)
        self._events.clear()
        return events

    def close(self) -> None:
        """Have nothing come any more."""
        self._forget()
        if not self._ended:
            self._ended = True
            self.cancel()


class _End:
    """The answer, or the end of a stream."""

    def __init__(self, body: Any) -> None:
        self.body = body
