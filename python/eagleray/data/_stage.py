"""An actor with an engine, which is kept full with the rows of several blocks."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import pickle
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any, Callable, Optional

from eagleray import AsyncLLM, EagleRayError, EngineDeadError

from . import _checkpoint, _place
from ._checkpoint import Checkpoint
from ._config import EngineProcessorConfig
from ._progress import Progress
from ._rows import ERROR, failed, outputs_of, request_of

BLOCK = "__eagleray_block__"


class EngineStage:
    """Answers blocks of rows. Several threads call it, each with a block.

    It is no asynchronous one: those of Ray 2.35 wait for ever where the last row of a block comes
    just before the end of it.
    """

    def __init__(
        self,
        config: EngineProcessorConfig,
        postprocess: Optional[Callable[[dict[str, Any]], Mapping[str, Any]]] = None,
    ) -> None:
        self._config = config
        self._postprocess = postprocess
        folder = config.checkpoint()
        self._checkpoint = None if folder is None else Checkpoint(folder)
        self._progress = Progress(config.model_source or "built-in", config.log_interval_s)
        try:
            # Ray runs its workers at the lowest priority, below whatever else the node does.
            os.setpriority(os.PRIO_PROCESS, 0, 0)
        except OSError:
            pass  # only root may
        self._llm = AsyncLLM(config.model_source, **_place.engine_args(config))
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="rows", daemon=True).start()
        self._room = asyncio.run_coroutine_threadsafe(self._limit(), self._loop).result()

    def __call__(self, block: Any) -> Iterator[Any]:
        """Yield the answers to a block's rows in their order, in pieces as they are ready."""
        (packed,) = block.column(BLOCK).to_pylist()
        rows = [pickle.loads(row) for row in pickle.loads(packed)]
        if self._checkpoint is not None:
            # An actor may have died that had this block.
            self._checkpoint.refresh()
        answers = [asyncio.run_coroutine_threadsafe(self._row(row), self._loop) for row in rows]
        try:
            for start in range(0, len(answers), self._config.batch_size):
                piece = answers[start : start + self._config.batch_size]
                yield table([self._result(answer) for answer in piece])
        finally:
            for answer in answers:
                answer.cancel()

    def __del__(self) -> None:
        llm = getattr(self, "_llm", None)
        if llm is not None:
            llm.shutdown()
            self._progress.close()

    def _result(self, answer: concurrent.futures.Future[dict[str, Any]]) -> dict[str, Any]:
        row = answer.result()
        if row.get(ERROR):
            return row
        result = dict(self._postprocess(row)) if self._postprocess else row
        if self._config.should_continue_on_error:
            result[ERROR] = ""
        return result

    async def _limit(self) -> asyncio.Semaphore:
        """Return the limit of rows in the engine: before Python 3.10 it is the loop's it is made in."""
        return asyncio.Semaphore(self._config.pending)

    async def _row(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return a row with its answer."""
        self._progress.begin()
        ended: tuple[Any, ...] = ("failed",)
        try:
            outputs, ended = await self._answer(row)
            return {**row, **outputs}
        except EngineDeadError as err:
            # Ray starts an actor that dies anew, and gives its blocks to others. One that only
            # raises an error would be given the same block again.
            print(f"eagleray data: {err}", file=sys.stderr, flush=True)
            os._exit(1)
        except (EagleRayError, ValueError, TypeError) as err:
            if not self._config.should_continue_on_error:
                raise
            return {**row, **failed(row, f"{type(err).__name__}: {err}", self._config)}
        finally:
            self._progress.end(*ended)

    async def _answer(self, row: dict[str, Any]) -> tuple[dict[str, Any], tuple[Any, ...]]:
        config, kept = self._config, self._checkpoint
        route, body = request_of(row, config)
        key = digest = ""
        if kept is not None:
            key = self._key(row)
            digest = _checkpoint.digest_of(config.model_source, route, body)
            outputs = kept.find(key, digest)
            if outputs is not None:
                return outputs, ("kept",)
        async with self._room:
            begun = time.monotonic()
            answer = await self._llm.request(route, body)
        outputs = outputs_of(row, body, answer, config.detokenize_stage)
        outputs["time_taken_llm"] = time.monotonic() - begun
        if kept is not None:
            kept.add(key, digest, outputs)
        tokens = outputs["num_input_tokens"], outputs.get("num_generated_tokens", 0)
        return outputs, ("answered", *tokens)

    def _key(self, row: dict[str, Any]) -> str:
        column = self._config.checkpoint_id_column
        if column not in row:
            raise ValueError(f"checkpoint_id_column: the row has no column {column!r}")
        try:
            return _checkpoint.key_of(row[column])
        except ValueError as err:
            raise ValueError(f"checkpoint_id_column: {column}: {err}") from None


def table(rows: list[dict[str, Any]]) -> Any:
    """Return rows as Ray takes them: what Arrow has a type for as its table, else as columns."""
    import pyarrow

    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = {name: [row.get(name) for row in rows] for name in names}
    try:
        return pyarrow.table({name: pyarrow.array(column) for name, column in columns.items()})
    except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError, pyarrow.ArrowNotImplementedError):
        return columns
