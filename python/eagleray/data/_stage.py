"""An actor with an engine, which is kept full with the rows of several blocks."""

from __future__ import annotations

import os
import pickle
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import Any, Callable, Optional, Union, cast

from eagleray import EagleRayError, EngineDeadError

from .._arguments import command_and_environment
from .._calls import Calls
from .._engine import Engine
from . import _checkpoint, _place
from ._checkpoint import Checkpoint
from ._config import EngineProcessorConfig
from ._feed import Answer, Feed, Request
from ._stats import StatLogger
from ._rows import failed, outputs_of, request_of, shows_text
from ._table import Tables

# A block travels as one value, its rows pickled. They come out as they went in, with what JSON has
# no form for: bytes, times, arrays, whatever preprocess returns. Nothing is trusted by it that is
# not already: Ray brings the functions of the job, and this class with its arguments, in the same
# way (docs/security.md).
BLOCK = "__eagleray_block__"


def rows_of(block: Any) -> list[dict[str, Any]]:
    """Return the rows of a block."""
    (packed,) = block.column(BLOCK).to_pylist()
    return [pickle.loads(row) for row in pickle.loads(packed)]


class EngineStage:
    """Answers blocks of rows. Several threads call it, each with a block.

    It is no asynchronous one: those of Ray 2.35 wait for ever where the last row of a block comes
    just before the end of it.
    """

    def __init__(
        self,
        config: EngineProcessorConfig,
        postprocess: Optional[Callable[[dict[str, Any]], Mapping[str, Any]]] = None,
        line: Any = None,
    ) -> None:
        self._config = config
        self._tables = Tables(postprocess, config.should_continue_on_error)
        folder = config.checkpoint()
        self._checkpoint = None if folder is None else Checkpoint(folder)
        self._stats = StatLogger(config.model, config.log_interval_s, line)
        try:
            # Ray runs its workers at the lowest priority, below whatever else the node does.
            os.setpriority(os.PRIO_PROCESS, 0, 0)
        except OSError:
            pass  # only root may
        arguments = {"model": config.model_source, **_place.engine_args(config)}
        self._calls = Calls(Engine(*command_and_environment(arguments)))
        self._feed = Feed(self._calls, config.pending)

    def __call__(self, block: Any) -> Iterator[Any]:
        """Yield the answers to a block's rows in their order, in pieces as they are ready."""
        rows = rows_of(block)
        if self._checkpoint is not None:
            # An actor may have died that had this block.
            self._checkpoint.refresh()
        size = self._config.batch_size
        pieces: list[_Piece] = []
        try:
            # The engine begins with the first rows while the others are made requests.
            for start in range(0, len(rows), size):
                pieces.append(self._ask(rows[start : start + size]))
            yield from self._tables.make(piece.rows() for piece in pieces)
        finally:
            self._feed.drop(row for piece in pieces for row in piece.asked)

    def __del__(self) -> None:
        feed = getattr(self, "_feed", None)
        if feed is not None:
            feed.close()
            self._calls.close()
            self._stats.close()

    def end(self, row: _Row, answer: Answer) -> None:
        """Take what the engine says of a row."""
        if isinstance(answer, EngineDeadError):
            # Ray starts an actor that dies anew, and gives its blocks to others. One that only
            # raises an error would be given the same block again.
            print(f"eagleray data: {answer}", file=sys.stderr, flush=True)
            os._exit(1)
        try:
            if isinstance(answer, Exception):
                raise answer
            text = shows_text(row.row, self._config)
            outputs = outputs_of(row.row, row.body, answer, text)
            outputs["time_taken_llm"] = row.ended - row.begun
            if self._checkpoint is not None:
                self._checkpoint.add(row.key, row.digest, outputs)
        except Exception as err:  # a caller must not wait for ever
            row.piece.end(row.index, self._failed(row.row, err))
            return
        tokens = outputs["num_input_tokens"], outputs.get("num_generated_tokens", 0)
        self._stats.end("answered", *tokens)
        row.piece.end(row.index, {**row.row, **outputs})

    def _ask(self, rows: list[dict[str, Any]]) -> _Piece:
        """Have rows asked that come out together, but those that a checkpoint has."""
        piece = _Piece(len(rows))
        self._stats.begin(len(rows))
        for index, row in enumerate(rows):
            try:
                request = _Row(self, self._feed, piece, index, row, request_of(row, self._config))
                outputs = self._kept(request)
            except (ValueError, TypeError) as err:
                piece.end(index, self._failed(row, err))
                continue
            if outputs is None:
                piece.asked.append(request)
            else:
                self._stats.end("kept")
                piece.end(index, {**row, **outputs})
        self._feed.put(piece.asked)
        return piece

    def _kept(self, row: _Row) -> Optional[dict[str, Any]]:
        """Return what a checkpoint has of a row."""
        if self._checkpoint is None:
            return None
        row.key = self._key(row.row)
        row.digest = _checkpoint.digest_of(self._config.model_source, row.route, row.body)
        return self._checkpoint.find(row.key, row.digest)

    def _key(self, row: dict[str, Any]) -> str:
        column = self._config.checkpoint_id_column
        if column not in row:
            raise ValueError(f"checkpoint_id_column: the row has no column {column!r}")
        try:
            return _checkpoint.key_of(row[column])
        except ValueError as err:
            raise ValueError(f"checkpoint_id_column: {column}: {err}") from None

    def _failed(self, row: dict[str, Any], err: Exception) -> _Result:
        """Return what comes out of a row that has no answer."""
        self._stats.end("failed")
        goes_on = self._config.should_continue_on_error
        if goes_on and isinstance(err, (EagleRayError, ValueError, TypeError)):
            return {**row, **failed(row, f"{type(err).__name__}: {err}", self._config)}
        return err


_Result = Union[dict[str, Any], Exception]


class _Piece:
    """What comes of rows that come out together."""

    def __init__(self, count: int) -> None:
        self.results: list[_Result] = [{}] * count
        self.asked: list[_Row] = []
        self.done = threading.Event()
        self._left = count
        self._lock = threading.Lock()

    def rows(self) -> list[dict[str, Any]]:
        """Wait for all of them, and return them. Raises what a row has raised."""
        self.done.wait()
        for result in self.results:
            if isinstance(result, Exception):
                raise result
        return cast(list[dict[str, Any]], self.results)

    def end(self, index: int, result: _Result) -> None:
        """Take the result of a row."""
        self.results[index] = result
        with self._lock:
            self._left -= 1
            if self._left == 0:
                self.done.set()


class _Row(Request):
    """A row that the engine is asked for."""

    key = digest = ""

    def __init__(
        self,
        stage: EngineStage,
        feed: Feed,
        piece: _Piece,
        index: int,
        row: dict[str, Any],
        asked: tuple[str, dict[str, Any]],
    ) -> None:
        super().__init__(feed, *asked)
        self._stage = stage
        self.piece, self.index, self.row = piece, index, row

    def take(self, answer: Answer) -> None:
        """Take what came."""
        self._stage.end(self, answer)
