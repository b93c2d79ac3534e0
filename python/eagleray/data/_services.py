"""Actors whose rows are answered elsewhere: by an HTTP service, or by a deployment of Ray Serve."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Coroutine, Iterator, Mapping
from typing import Any, Callable, Optional

from ..errors import RequestError
from ._config import HttpRequestProcessorConfig, ProcessorConfig, ServeDeploymentProcessorConfig
from ._rows import ERROR, plain
from ._stage import rows_of
from ._stats import StatLogger
from ._table import Tables

# Answers of a server that may do better in a moment.
_BUSY = (408, 429, 502, 503, 504)

# Errors of a row, and not of what answers rows.
_OF_ROWS = (ValueError, TypeError, TimeoutError, RequestError)


class _ServiceStage:
    """Answers blocks of rows, those of a batch at a time."""

    def __init__(
        self,
        config: ProcessorConfig,
        postprocess: Optional[Callable[[dict[str, Any]], Mapping[str, Any]]] = None,
        line: Any = None,
    ) -> None:
        self._size, self._goes_on = config.batch_size, config.should_continue_on_error
        self._tables = Tables(postprocess, self._goes_on)
        self._stats = StatLogger(config.model, config.log_interval_s, line)

    def __call__(self, block: Any) -> Iterator[Any]:
        """Yield the answers to a block's rows in their order, batch by batch."""
        rows = rows_of(block)
        batches = (rows[start : start + self._size] for start in range(0, len(rows), self._size))
        yield from self._tables.make(asyncio.run(self._batch(batch)) for batch in batches)

    def __del__(self) -> None:
        if hasattr(self, "_stats"):
            self._stats.close()

    async def _batch(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        raise NotImplementedError

    async def _together(
        self, rows: list[dict[str, Any]], calls: list[Coroutine[Any, Any, dict[str, Any]]]
    ) -> list[dict[str, Any]]:
        """Return the rows with what their calls return."""
        self._stats.begin(len(rows))
        answers = await asyncio.gather(*calls, return_exceptions=True)
        answered = []
        for row, answer in zip(rows, answers):
            if not isinstance(answer, BaseException):
                self._stats.end("answered")
                answered.append({**row, **answer})
                continue
            self._stats.end("failed")
            # Ray wraps what a replica has raised in what is of its class, too.
            if not self._goes_on or not isinstance(answer, _OF_ROWS):
                raise answer
            why = getattr(answer, "cause", answer)  # without the traceback of the replica
            answered.append({**row, ERROR: f"{type(why).__name__}: {why}"})
        return answered


class HttpStage(_ServiceStage):
    """Posts the ``payload`` of rows; the body of the answer is ``http_response``."""

    def __init__(self, config: HttpRequestProcessorConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        self._config = config

    async def _batch(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        import aiohttp

        factory = self._config.session_factory or aiohttp.ClientSession
        begun = time.monotonic()
        async with factory() as session:
            calls = [self._post(session, row, n, begun) for n, row in enumerate(rows)]
            return await self._together(rows, calls)

    async def _post(
        self, session: Any, row: Mapping[str, Any], place: int, begun: float
    ) -> dict[str, Any]:
        """Send the row at a place of its batch; each is sent once its turn has come."""
        import aiohttp

        if "payload" not in row:
            raise ValueError(f"the row has no payload: its columns are {', '.join(sorted(row))}")
        config, body = self._config, json.dumps(plain(row["payload"])).encode()
        headers = {"Content-Type": "application/json", **(config.headers or {})}
        if config.qps is not None:
            await asyncio.sleep(begun + place / config.qps - time.monotonic())
        said = ""
        for attempt in range(config.max_retries + 1):
            if attempt:
                await asyncio.sleep(config.base_retry_wait_time_in_s * 2 ** (attempt - 1))
            try:
                async with session.post(config.url, data=body, headers=headers) as answer:
                    text = await answer.text()
                    said = f"status {answer.status}: {text[:500]}"
            except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as e:
                said = f"{type(e).__name__}: {e}"
                continue
            if answer.status not in _BUSY:
                try:
                    return {"http_response": json.loads(text)}
                except ValueError:
                    raise ValueError(f"{config.url}: the answer is no JSON: {said}") from None
        raise TimeoutError(f"{config.url}: no answer in {config.max_retries + 1} attempts: {said}")


class ServeStage(_ServiceStage):
    """Calls the ``method`` of a deployment that rows name; the answer's members are columns."""

    def __init__(self, config: ServeDeploymentProcessorConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        from ray import serve

        self._config = config
        handle = serve.get_deployment_handle(config.deployment_name, config.app_name)
        self._handle = handle.options(stream=True)

    async def _batch(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        without = [{k: v for k, v in row.items() if k != "request_kwargs"} for row in rows]
        return await self._together(without, [self._call(row) for row in rows])

    async def _call(self, row: Mapping[str, Any]) -> dict[str, Any]:
        request: Any = plain(row.get("request_kwargs"))
        if not isinstance(request, dict) or not isinstance(row.get("method"), str):
            raise ValueError(
                f"the row has no method with request_kwargs: its columns are {sorted(row)}"
            )
        kind = row.get("dtype")
        if kind is not None:
            kinds = self._config.dtype_mapping or {}
            if kind not in kinds:
                raise ValueError(f"dtype_mapping: {kind!r} is not there")
            request = kinds[kind](**request)
        begun = time.monotonic()
        answers = getattr(self._handle, row["method"]).remote(request)
        try:
            # The first is all of an answer that is no stream.
            answer = await asyncio.wait_for(answers.__anext__(), self._config.request_timeout_s)
        except asyncio.TimeoutError:
            answers.cancel()
            raise TimeoutError(
                f"{self._config.model}: no answer in {self._config.request_timeout_s} s"
            ) from None
        if hasattr(answer, "model_dump"):
            answer = answer.model_dump()
        return {**answer, "time_taken": time.monotonic() - begun}
