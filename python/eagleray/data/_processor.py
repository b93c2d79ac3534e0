"""A dataset of rows becomes a dataset of answers."""

from __future__ import annotations

import dataclasses
import inspect
import logging
import pickle
from collections.abc import Mapping
from typing import Any, Callable, Optional

from ._config import (
    EngineProcessorConfig,
    HttpRequestProcessorConfig,
    ProcessorConfig,
    ServeDeploymentProcessorConfig,
)
from ._progress_line import progress_line
from ._services import HttpStage, ServeStage
from ._stage import BLOCK, EngineStage
from ._table import Tables

Function = Callable[[dict[str, Any]], Mapping[str, Any]]

# Where people look for what Ray Data says.
_log = logging.getLogger("ray.data.llm")

_STAGES: dict[type[ProcessorConfig], type[Any]] = {
    EngineProcessorConfig: EngineStage,
    HttpRequestProcessorConfig: HttpStage,
    ServeDeploymentProcessorConfig: ServeStage,
}


class Processor:
    """Makes a dataset of a dataset, lazily, as every operation of Ray Data."""

    def __init__(
        self,
        config: ProcessorConfig,
        preprocess: Optional[Function] = None,
        postprocess: Optional[Function] = None,
        preprocess_map_kwargs: Optional[Mapping[str, Any]] = None,
        postprocess_map_kwargs: Optional[Mapping[str, Any]] = None,
    ) -> None:
        config.check()
        if not isinstance(config, tuple(_STAGES)):
            raise ValueError(f"config: {type(config).__name__} is no config of a processor")
        if config.without_effect:
            _log.warning(
                "without effect: %s: the engine has the template and the tokenizer",
                ", ".join(config.without_effect),
            )
        self.config = config
        self._preprocess = preprocess
        self._postprocess = postprocess
        self._preprocess_map_kwargs = preprocess_map_kwargs or {}
        self._postprocess_map_kwargs = postprocess_map_kwargs

    def log_input_column_names(self) -> None:
        """Log the columns that rows need, of the dataset or of preprocess."""
        columns = "\n".join(f"\t{name}: {what}" for name, what in self.config.columns.items())
        _log.info("Required input columns:\n%s", columns)

    def __call__(self, dataset: Any) -> Any:
        """Return the dataset of the answers.

        Nothing runs before the dataset is asked for its rows.
        """
        config, apart = self.config, self._postprocess_map_kwargs is not None
        # One task does both: Ray puts blocks together until they have the rows of a batch, and
        # then each block is one row. So an actor has whole blocks at once, not a batch after the
        # other.
        rows = dataset.map_batches(
            _packer(self._preprocess),
            batch_size=config.batch_size,
            batch_format="pyarrow",
            **self._preprocess_map_kwargs,
        )
        blocks = rows.map_batches(
            _whole, batch_size=None, batch_format="pyarrow", **self._preprocess_map_kwargs
        )
        answered = blocks.map_batches(
            next(stage for kind, stage in _STAGES.items() if isinstance(config, kind)),
            fn_constructor_kwargs={
                "config": config,
                "postprocess": None if apart else self._postprocess,
                "line": progress_line(config.model),
            },
            batch_size=1,
            batch_format="pyarrow",
            zero_copy_batch=True,
            **_pool(config),
            **config.actor_options(),
        )
        if not apart or self._postprocess is None:
            return answered
        if not config.should_continue_on_error:
            return answered.map(self._postprocess, **(self._postprocess_map_kwargs or {}))
        return answered.map_batches(
            _finisher(self._postprocess),
            batch_size=None,
            batch_format="pyarrow",
            **(self._postprocess_map_kwargs or {}),
        )


def build_processor(
    config: ProcessorConfig,
    preprocess: Optional[Function] = None,
    postprocess: Optional[Function] = None,
    preprocess_map_kwargs: Optional[Mapping[str, Any]] = None,
    postprocess_map_kwargs: Optional[Mapping[str, Any]] = None,
    builder_kwargs: Optional[Mapping[str, Any]] = None,
) -> Processor:
    """Return a processor: ``build_processor(config, …)(dataset)``.

    ``preprocess`` returns columns that are added to a row: ``messages``, ``prompt`` or
    ``tokenized_prompt``, and ``sampling_params``. ``postprocess`` takes the row with what was
    generated, and returns the row of the result; by default all of it. It runs beside the engine,
    with ``postprocess_map_kwargs`` in tasks of its own. ``builder_kwargs`` may have
    ``chat_template_kwargs``.
    """
    given = dict(builder_kwargs or {})
    if isinstance(config, EngineProcessorConfig) and "chat_template_kwargs" in given:
        more = given.pop("chat_template_kwargs")
        kwargs = {**(config.template.chat_template_kwargs or {}), **(more or {})}
        template = dataclasses.replace(config.template, chat_template_kwargs=kwargs)
        config = dataclasses.replace(config, chat_template_stage=template)
    if given:
        raise ValueError(f"builder_kwargs: {', '.join(sorted(given))}: not known for this config")
    return Processor(config, preprocess, postprocess, preprocess_map_kwargs, postprocess_map_kwargs)


def _pool(config: ProcessorConfig) -> dict[str, Any]:
    """Return what Ray wants to know of the pool: before 2.55 the calls are an option of actors."""
    from ray.data import ActorPoolStrategy

    calls = config.max_concurrent_batches
    if "max_concurrent_calls_per_actor" in inspect.signature(ActorPoolStrategy).parameters:
        return {"compute": ActorPoolStrategy(**config.pool(), max_concurrent_calls_per_actor=calls)}
    return {"compute": ActorPoolStrategy(**config.pool()), "max_concurrency": calls}


def _packer(preprocess: Optional[Function]) -> Callable[[Any], dict[str, list[bytes]]]:
    """Return a function of a block of rows that makes one column of them.

    So each row stays what it was: as columns, rows with different sampling_params would get each
    other's, and Ray would have to find a type for what is not of one.
    """

    def preprocessed(block: Any) -> dict[str, list[bytes]]:
        packed = []
        for row in block.to_pylist():
            added = preprocess(row) if preprocess else {}
            packed.append(pickle.dumps({**row, **added}, protocol=5))
        return {BLOCK: packed}

    return preprocessed


def _finisher(postprocess: Function) -> Callable[..., Any]:
    """Return a function of a block of answers that postprocesses those that did not fail."""

    def finished(block: Any, *args: Any, **kwargs: Any) -> Any:
        tables = Tables(lambda row: postprocess(row, *args, **kwargs), True)
        return next(tables.make([block.to_pylist()]))

    return finished


def _whole(block: Any) -> dict[str, list[bytes]]:
    return {BLOCK: [pickle.dumps(block.column(BLOCK).to_pylist(), protocol=5)]}
