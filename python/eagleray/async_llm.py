"""An engine for programs that run an event loop: answers come as streams."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import weakref
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Optional, TypeVar

from . import _jobs, _waiting, errors
from ._arguments import command_and_environment
from ._calls import PATIENCE_SECONDS, Calls, error_of, json_request, room_of, why_lost
from ._completion import ROUTE, Completion, PromptType
from ._decoder import Decoder
from ._engine import Engine
from ._http import Answer, Client
from ._jobs import Job, Message
from ._trainable import AsyncTrainable
from .engine_args import EngineArgs
from .lora import ROUTE as LOAD_ADAPTER
from .lora import Adapters, LoRARequest
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
        self._engine = Engine(*command_and_environment({"model": model, **engine_args}))
        self._calls = Calls(self._engine)  # of threads that wait
        self._finalizer = weakref.finalize(self, self._calls.close)
        self._clients: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Client] = (
            weakref.WeakKeyDictionary()
        )
        self._room = room_of(self._engine)
        self._lock = threading.Lock()  # of what runs
        self._names = itertools.count()
        self._running: dict[str, _Running] = {}
        self._adapters = Adapters()

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs) -> AsyncLLM:
        """Start an engine with arguments that are an object."""
        return cls(**vars(engine_args))

    async def generate(
        self,
        prompt: PromptType,
        sampling_params: Optional[SamplingParams] = None,
        request_id: Optional[str] = None,
        *,
        lora_request: Optional[LoRARequest] = None,
        priority: int = 0,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Yield the output of a prompt as it comes; the last one is ``finished``.

        To stop iterating ends the request. Raises BadRequestError, RequestError or
        EngineDeadError.
        """
        await self._load(lora_request)
        name = self._name(request_id)
        request = Completion(prompt, sampling_params, name, self._length, priority, lora_request)
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
        lora_request: Optional[LoRARequest] = None,
        priority: int = 0,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Yield the answer to a conversation as it comes, as :meth:`generate` does."""
        await self._load(lora_request)
        name = self._name(request_id)
        options = {
            "chat_template": chat_template,
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": continue_final_message,
            "tools": None if tools is None else list(tools),
            "chat_template_kwargs": chat_template_kwargs,
        }
        text, tokens = await self._do(_jobs.conversation(messages, options), name)
        request = Completion(tokens, sampling_params, name, self._length, priority, lora_request)
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
        async with self._ask(route, body, method, self._name(request_id)) as running:
            while not running.over:
                await running.events()
            return running.body

    async def stream(
        self, route: str, body: Mapping[str, Any], request_id: Optional[str] = None
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Ask a route whose body says ``"stream": True``, and yield the events."""
        async with self._ask(route, body, "POST", self._name(request_id)) as running:
            while not running.over:
                for event in await running.events():
                    yield event

    async def get_tokenizer(self) -> Tokenizer:
        """Return the tokenizer, which is in the engine; its calls are short, and wait."""
        ready = self._engine.ready
        return Tokenizer(lambda route, body: _waiting.ask(self._calls, route, body), ready)

    @property
    def trainable(self) -> Trainable:
        """The calls of a trainer for threads that wait, and what a ``WeightTransfer`` takes."""
        return _Blocking(self._calls)

    def get_default_sampling_params(self) -> SamplingParams:
        """Return what the model's generation_config.json says, else vLLM's defaults."""
        return SamplingParams(**self._engine.ready["sampling"])

    async def abort(self, request_id: str) -> None:
        """End a request: its caller has a RequestError of status 499."""
        running = self._running.get(request_id)
        if running is not None:
            running.abort(errors.RequestError(f"request {request_id} was aborted", 499))

    @property
    def max_concurrency(self) -> int:
        """How many requests at a time keep the engine busy; more only wait."""
        return self._calls.window

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
        async with self._ask(ROUTE, request.stream_body, "POST", name) as running:
            while not running.over:
                for event in await running.events():
                    request.take(event)
                if running.over and request.aborted:
                    self._engine.check()  # an engine that ends aborts what runs
                if running.over or not request.complete:  # its end is on the way
                    yield request.shown(finished=running.over)

    async def _load(self, lora_request: Optional[LoRARequest]) -> None:
        """Have the engine load an adapter that is missing."""
        body = self._adapters.missing(lora_request)
        if body is None:
            return
        try:
            await self.request(LOAD_ADAPTER, body)
        except errors.BadRequestError as error:
            self._adapters.loaded(body, error)
        else:
            self._adapters.loaded(body)

    async def _do(self, job: Job[_Result], name: str) -> _Result:
        answer: Any = None
        while True:
            try:
                route, body = job.send(answer)
            except StopIteration as end:
                result: _Result = end.value
                return result
            answer = await self.request(route, body, "POST", name)

    @contextlib.asynccontextmanager
    async def _ask(
        self, route: str, body: Optional[Mapping[str, Any]], method: str, name: str
    ) -> AsyncGenerator[_Running, None]:
        """Have a request run, to the end of the block."""
        request = json_request(self._engine, route, body, method)
        client = await self._client()
        with self._lock:
            if name in self._running:
                raise ValueError(f"request_id: {name} is running already")
            running = self._running[name] = _Running(self._engine, client.start(request))
        try:
            yield running
        except errors.EngineDeadError as lost:
            # The process may say why in a moment.
            await asyncio.get_running_loop().run_in_executor(
                None, self._engine.wait_ended, PATIENCE_SECONDS
            )
            raise why_lost(self._engine, lost) from None
        finally:
            running.close()
            del self._running[name]

    async def _client(self) -> Client:
        """Return the connections of the event loop that runs."""
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None:
            client = self._clients[loop] = Client(self._engine.path, self._room)
            await client.close_with_loop()
        return client


class _Blocking(Trainable):
    """Asks an engine and waits."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def request(
        self, route: str, body: Optional[dict[str, Any]] = None, method: str = "POST"
    ) -> Any:
        """Ask any route of the server's API, and return the body of the answer."""
        return _waiting.ask(self._calls, route, body, method)


class _Running:
    """An answer on its way to a task."""

    def __init__(self, engine: Engine, answer: Answer) -> None:
        self._engine, self._answer = engine, answer
        self._loop = asyncio.get_running_loop()
        self._decoder: Optional[Decoder] = None
        self._error: Optional[errors.EagleRayError] = None
        self.body: Any = None

    @property
    def over(self) -> bool:
        """Whether nothing more comes."""
        return self._answer.complete and self._error is None

    async def events(self) -> list[dict[str, Any]]:
        """Wait for something to come, and return the events; none at the end."""
        if self._error is not None:
            raise self._error
        if self._decoder is None:
            await self._answer.wait_head()
            self._decoder = Decoder(self._answer.headers)
        events: list[dict[str, Any]] = []
        while not events and not self._answer.complete:
            events = self._decoder.events(await self._answer.read())
        if self._answer.complete:
            self.body = self._decoder.body()
            if not 200 <= self._answer.status < 300:
                raise error_of(self._engine, self._answer.status, self.body)
        for index, event in enumerate(events):
            if "error" in event:
                code = event["error"].get("code") or 500
                status = code if isinstance(code, int) else 400  # a word is of the request's fault
                self._error = error_of(self._engine, status, event)
                if index == 0:
                    raise self._error
                return events[:index]
        return events

    def abort(self, error: Exception) -> None:
        """End it with an error, from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop was closed, with all that waited in it
            self._loop.call_soon_threadsafe(self._answer.abort, error)

    def close(self) -> None:
        """Have nothing come any more."""
        self._answer.close()
