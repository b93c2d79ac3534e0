"""What a processor is asked for, with the names of ``ray.data.llm``."""

from __future__ import annotations

import collections
import dataclasses
import os
from collections.abc import Mapping
from typing import Any, Optional, Union

GENERATE, EMBED, SCORE, CLASSIFY = TASKS = "generate", "embed", "score", "classify"

Stage = Union[bool, Mapping[str, Any]]


@dataclasses.dataclass(frozen=True)
class EngineProcessorConfig:
    """An engine for each actor of a pool, and how rows reach it. Raises ValueError."""

    model_source: Optional[str] = None
    """A folder or a name on Hugging Face's hub; None is the built-in model."""
    engine_kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """The engine's flags with vLLM's names: ``{"tensor_parallel_size": 2}``."""
    task_type: str = GENERATE
    """``generate``, ``embed``, ``score`` or ``classify``."""
    batch_size: int = 32
    """Rows of a piece of output. Blocks with fewer rows are put together before the engine."""
    concurrency: Union[int, tuple[int, int]] = 1
    """Engines: a number, or the least and the most of a pool that scales by itself."""
    accelerator_type: Optional[str] = None
    """Ray's name of a GPU; None is the CPU."""
    runtime_env: Optional[dict[str, Any]] = None
    max_pending_requests: Optional[int] = None
    """Most rows in an engine at a time; None is twice as many as run in it."""
    max_concurrent_batches: int = 8
    """Blocks of rows that are in an engine at a time."""
    max_tasks_in_flight_per_actor: Optional[int] = None
    """Blocks that Ray Data sends to an actor ahead; None is twice max_concurrent_batches."""
    should_continue_on_error: bool = False
    """Whether a row that fails says so in its column ``__inference_error__``, and is no failure
    of the job. The column is empty where a row did not fail."""
    placement_group_config: Optional[Mapping[str, Any]] = None
    """``{"bundle_per_worker": {…}}`` or ``{"bundles": […]}``, one for each rank. Where ranks are
    actors (``distributed_executor_backend`` is ``ray``) it is one device each, packed; else they
    are in the actor, which asks for the sum."""
    chat_template_stage: Stage = True
    """Whether ``messages`` are rendered; ``{"chat_template": …, "chat_template_kwargs": {…}}``."""
    tokenize_stage: bool = True
    """False when rows bring ``tokenized_prompt``."""
    detokenize_stage: bool = True
    """False leaves ``generated_text`` empty."""
    checkpoint_path: Optional[str] = None
    """A folder that every node sees. What is answered is kept in it, and is not asked again by a
    later run over the same rows, nor by another actor after one that died."""
    checkpoint_id_column: str = "id"
    """The column that names a row, unique in the dataset."""
    log_interval_s: float = 10.0
    """Seconds between two lines of progress of an engine."""

    def __post_init__(self) -> None:
        for name in ("batch_size", "max_concurrent_batches"):
            _positive(name, getattr(self, name))
        for name in ("max_pending_requests", "max_tasks_in_flight_per_actor"):
            if getattr(self, name) is not None:
                _positive(name, getattr(self, name))
        if self.task_type not in TASKS:
            raise ValueError(f"task_type: {self.task_type!r} is none of {', '.join(TASKS)}")
        if "model" in self.engine_kwargs:
            raise ValueError("engine_kwargs: the model is model_source")
        if not self.log_interval_s > 0:
            raise ValueError(f"log_interval_s: {self.log_interval_s!r} is not positive")
        if self.checkpoint_path is not None and "://" in self.checkpoint_path:
            raise ValueError(
                f"checkpoint_path: {self.checkpoint_path!r} is no folder: answers are appended to "
                "files, which object stores cannot; mount it, or name a shared file system's folder"
            )
        if isinstance(self.concurrency, int):
            _positive("concurrency", self.concurrency)
        else:
            least, most = self.concurrency
            _positive("concurrency", least)
            if most < least:
                raise ValueError(f"concurrency: {self.concurrency!r}: the least is above the most")
        for name in ("tokenize_stage", "detokenize_stage"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name}: {getattr(self, name)!r} is neither True nor False")
        unknown = set(self.template) - {"enabled", "chat_template", "chat_template_kwargs"}
        if unknown:
            raise ValueError(f"chat_template_stage: unknown {sorted(unknown)}")
        self.bundles  # noqa: B018 - raises

    @property
    def template(self) -> Mapping[str, Any]:
        """The options of the chat template."""
        stage = self.chat_template_stage
        return {"enabled": stage} if isinstance(stage, bool) else {"enabled": True, **stage}

    @property
    def model(self) -> str:
        """What people read as the model's name."""
        return self.model_source or "built-in"

    @property
    def on_ray(self) -> bool:
        """Whether the ranks of an engine are actors."""
        return self.engine_kwargs.get("distributed_executor_backend") == "ray"

    @property
    def world_size(self) -> int:
        """Ranks of an engine."""
        size = 1
        for name in (
            "tensor_parallel_size",
            "pipeline_parallel_size",
            "prefill_context_parallel_size",
            "data_parallel_size",
        ):
            size *= int(self.engine_kwargs.get(name) or 1)
        return size

    @property
    def bundles(self) -> Optional[list[dict[str, float]]]:
        """The bundles of placement_group_config, one for each rank; None without it."""
        group = self.placement_group_config
        if group is None:
            return None
        unknown = set(group) - {"bundles", "bundle_per_worker", "strategy"}
        if unknown:
            raise ValueError(f"placement_group_config: unknown {sorted(unknown)}")
        if ("bundles" in group) == ("bundle_per_worker" in group):
            raise ValueError("placement_group_config: give one of bundles and bundle_per_worker")
        if "bundles" in group:
            bundles = [dict(bundle) for bundle in group["bundles"]]
        else:
            bundles = [dict(group["bundle_per_worker"]) for _ in range(self.world_size)]
        if len(bundles) != self.world_size:
            raise ValueError(
                f"placement_group_config: {len(bundles)} bundles for {self.world_size} ranks"
            )
        if not self.on_ray:
            return bundles
        if group.get("strategy", "PACK") != "PACK":
            raise ValueError(f"placement_group_config: strategy {group['strategy']!r} is not PACK")
        if any(len(bundle) != 1 or bundle != bundles[0] for bundle in bundles):
            raise ValueError(
                "placement_group_config: a rank that is an actor takes one device, the same in "
                f"every bundle: {bundles}"
            )
        return bundles

    @property
    def pending(self) -> int:
        """Most rows in an engine at a time."""
        if self.max_pending_requests is not None:
            return self.max_pending_requests
        running = int(self.engine_kwargs.get("max_num_seqs") or 256)
        return 2 * running * int(self.engine_kwargs.get("data_parallel_size") or 1)

    def actor_options(self) -> dict[str, Any]:
        """Return what an actor asks Ray for.

        One whose ranks are actors asks for nothing: their group does.
        """
        options: dict[str, Any] = {}
        if self.runtime_env is not None:
            options["runtime_env"] = self.runtime_env
        if self.on_ray:
            return {**options, "num_cpus": 0}
        if self.bundles is not None:
            total: collections.Counter[str] = collections.Counter()
            for bundle in self.bundles:
                total.update(bundle)
            cpus, gpus = total.pop("CPU", 0), total.pop("GPU", 0)
            # Ray Data takes one of them.
            options.update({"num_gpus": gpus} if gpus else {"num_cpus": cpus})
            if total:
                options["resources"] = dict(total)
        elif self.accelerator_type is not None:
            options["num_gpus"] = self.world_size
        else:
            threads = int(self.engine_kwargs.get("cpu_threads") or 1)
            options["num_cpus"] = threads * self.world_size
        if self.accelerator_type is not None:
            options["accelerator_type"] = self.accelerator_type
        return options

    def pool(self) -> dict[str, Any]:
        """Return the arguments of Ray's ActorPoolStrategy."""
        ahead = self.max_tasks_in_flight_per_actor or 2 * self.max_concurrent_batches
        pool: dict[str, Any] = {"max_tasks_in_flight_per_actor": ahead}
        if isinstance(self.concurrency, int):
            return {**pool, "size": self.concurrency}
        return {**pool, "min_size": self.concurrency[0], "max_size": self.concurrency[1]}

    def checkpoint(self) -> Optional[str]:
        """Return the folder of the checkpoint as every process sees it."""
        return None if self.checkpoint_path is None else os.path.abspath(self.checkpoint_path)


def _positive(name: str, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name}: {value!r} is no positive number")
