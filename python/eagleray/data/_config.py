"""What a processor is asked for, with the names of ``ray.data.llm``."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any, Callable, Optional, Union

from .._bundles import actor_options
from ._stages import (
    ChatTemplateStageConfig,
    DetokenizeStageConfig,
    HttpRequestStageConfig,
    PrepareMultimodalStageConfig,
    StageConfig,
    TokenizerStageConfig,
    read_stage,
    without_effect,
)

GENERATE, EMBED, SCORE, CLASSIFY = TASKS = "generate", "embed", "score", "classify"

Stage = Union[bool, Mapping[str, Any], StageConfig]


class ProcessorConfig:
    """What any processor is asked for: how its actors are made, and how rows reach them."""

    batch_size: int
    concurrency: Union[int, tuple[int, int]]
    should_continue_on_error: bool
    log_interval_s: float
    max_concurrent_batches: int

    def check(self) -> None:
        """Check everything. Raises ValueError, which names the field at fault."""
        for name in ("batch_size", "max_concurrent_batches"):
            _positive(name, getattr(self, name))
        if not self.log_interval_s > 0:
            raise ValueError(f"log_interval_s: {self.log_interval_s!r} is not positive")
        if isinstance(self.concurrency, int):
            _positive("concurrency", self.concurrency)
        else:
            least, most = self.concurrency
            _positive("concurrency", least)
            if most < least:
                raise ValueError(f"concurrency: {self.concurrency!r}: the least is above the most")

    @property
    def model(self) -> str:
        """What people read as the name of what answers."""
        raise NotImplementedError

    @property
    def columns(self) -> dict[str, str]:
        """The columns that rows need, after preprocess, with what is in them."""
        raise NotImplementedError

    @property
    def without_effect(self) -> list[str]:
        """Options that were given and change nothing."""
        return []

    def actor_options(self) -> dict[str, Any]:
        """Return what an actor asks Ray for."""
        return {}

    def pool(self) -> dict[str, Any]:
        """Return the arguments of Ray's ActorPoolStrategy."""
        if isinstance(self.concurrency, int):
            return {"size": self.concurrency}
        return {"min_size": self.concurrency[0], "max_size": self.concurrency[1]}


@dataclasses.dataclass
class EngineProcessorConfig(ProcessorConfig):
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
    tokenize_stage: Stage = True
    """False when rows bring ``tokenized_prompt``."""
    detokenize_stage: Stage = True
    """False leaves ``generated_text`` empty, but of rows whose ``sampling_params`` ask for it."""
    checkpoint_path: Optional[str] = None
    """A folder that every node sees. What is answered is kept in it, and is not asked again by a
    later run over the same rows, nor by another actor after one that died."""
    checkpoint_id_column: str = "id"
    """The column that names a row, unique in the dataset."""
    log_interval_s: float = 10.0
    """Seconds between two lines of progress of an engine."""
    log_engine_metrics: bool = True
    """Accepted: rows and tokens are always counted in Ray's metrics."""
    prepare_multimodal_stage: Stage = False
    """True is refused: the engine takes text and token ids."""
    dynamic_lora_loading_path: Optional[str] = None
    """A folder of adapters that every node sees: the column ``model`` of a row names one of its
    folders, or the model itself."""
    apply_chat_template: Optional[bool] = None
    """The former name of ``chat_template_stage``."""
    chat_template: Optional[str] = None
    """The former name of ``chat_template_stage["chat_template"]``."""
    tokenize: Optional[bool] = None
    """The former name of ``tokenize_stage``."""
    detokenize: Optional[bool] = None
    """The former name of ``detokenize_stage``."""
    has_image: bool = False
    """The former name of ``prepare_multimodal_stage``."""

    def __post_init__(self) -> None:
        self._rename()
        self.check()

    def _rename(self) -> None:
        """Give options that have former names those of today."""
        for former, stage in (
            ("apply_chat_template", "chat_template_stage"),
            ("tokenize", "tokenize_stage"),
            ("detokenize", "detokenize_stage"),
        ):
            if getattr(self, former) is not None:
                setattr(self, stage, getattr(self, former))
                setattr(self, former, None)
        if self.chat_template is not None:
            template = dataclasses.replace(self.template, chat_template=self.chat_template)
            self.chat_template_stage, self.chat_template = template, None

    def check(self) -> None:
        """Check everything. Raises ValueError, which names the field at fault."""
        super().check()
        for name in ("max_pending_requests", "max_tasks_in_flight_per_actor"):
            if getattr(self, name) is not None:
                _positive(name, getattr(self, name))
        if self.task_type not in TASKS:
            raise ValueError(f"task_type: {self.task_type!r} is none of {', '.join(TASKS)}")
        if "model" in self.engine_kwargs:
            raise ValueError("engine_kwargs: the model is model_source")
        if self.checkpoint_path is not None and "://" in self.checkpoint_path:
            raise ValueError(
                f"checkpoint_path: {self.checkpoint_path!r} is no folder: answers are appended to "
                "files, which object stores cannot; mount it, or name a shared file system's folder"
            )
        if self.has_image or self._prepare.enabled:
            raise ValueError(
                "prepare_multimodal_stage: the engine takes text and token ids, no images, sound "
                "or video"
            )
        adapters = self.dynamic_lora_loading_path
        if adapters is not None and ("://" in adapters or self.task_type != GENERATE):
            raise ValueError(
                f"dynamic_lora_loading_path: {adapters!r} is no folder of adapters for text: mount "
                "what is elsewhere"
            )
        _ = self.template, self.tokenizing, self.detokenizing  # raise
        self.bundles  # noqa: B018 - raises

    @property
    def template(self) -> ChatTemplateStageConfig:
        """``chat_template_stage``, read."""
        return read_stage("chat_template_stage", self.chat_template_stage, ChatTemplateStageConfig)

    @property
    def tokenizing(self) -> TokenizerStageConfig:
        """``tokenize_stage``, read."""
        return read_stage("tokenize_stage", self.tokenize_stage, TokenizerStageConfig)

    @property
    def detokenizing(self) -> DetokenizeStageConfig:
        """``detokenize_stage``, read."""
        return read_stage("detokenize_stage", self.detokenize_stage, DetokenizeStageConfig)

    @property
    def _prepare(self) -> PrepareMultimodalStageConfig:
        name = "prepare_multimodal_stage"
        return read_stage(name, self.prepare_multimodal_stage, PrepareMultimodalStageConfig)

    @property
    def without_effect(self) -> list[str]:
        """Options that were given and change nothing."""
        return (
            without_effect("chat_template_stage", self.template)
            + without_effect("tokenize_stage", self.tokenizing)
            + without_effect("detokenize_stage", self.detokenizing)
        )

    @property
    def columns(self) -> dict[str, str]:
        """The columns that rows need, after preprocess, with what is in them."""
        if self.task_type == SCORE:
            return {"text_1": "A text.", "text_2": "The text that it is compared with."}
        if self.task_type == GENERATE and self.template.enabled:
            return {"messages": "A list of messages in OpenAI's chat format; or else a prompt."}
        if self.tokenizing.enabled:
            return {"prompt": "A text."}
        return {"tokenized_prompt": "A list of token ids; or else a prompt."}

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
            options.update({"num_cpus": 0, **actor_options(self.bundles)})
            if options.get("num_gpus"):
                del options["num_cpus"]  # Ray Data takes one of them
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
        return {"max_tasks_in_flight_per_actor": ahead, **super().pool()}

    def checkpoint(self) -> Optional[str]:
        """Return the folder of the checkpoint as every process sees it."""
        return None if self.checkpoint_path is None else os.path.abspath(self.checkpoint_path)


@dataclasses.dataclass
class HttpRequestProcessorConfig(ProcessorConfig):
    """An HTTP service that each row's ``payload`` is posted to. Raises ValueError."""

    url: str
    headers: Optional[Mapping[str, Any]] = None
    qps: Optional[float] = None
    """The most requests per second of an actor; None is as many as a batch has rows."""
    max_retries: int = 0
    """How often a request is sent again that finds no server, or one that is busy."""
    base_retry_wait_time_in_s: float = 1.0
    """The first pause; each is twice the one before."""
    session_factory: Optional[Callable[[], Any]] = None
    """Makes the aiohttp.ClientSession."""
    batch_size: int = 64
    """Rows that are sent together."""
    concurrency: Union[int, tuple[int, int]] = 1
    accelerator_type: Optional[str] = None
    """Accepted: no device is asked for."""
    http_request_stage: Stage = True
    should_continue_on_error: bool = False
    """Whether a row that fails says so in its column ``__inference_error__``."""
    log_interval_s: float = 10.0

    max_concurrent_batches = 1

    def __post_init__(self) -> None:
        stage = self._stage
        if stage.batch_size is not None:
            self.batch_size = stage.batch_size
        if stage.concurrency is not None:
            self.concurrency = stage.concurrency
        self.check()

    def check(self) -> None:
        """Check everything. Raises ValueError, which names the field at fault."""
        super().check()
        if not self.url.startswith(("http://", "https://")):
            raise ValueError(f"url: {self.url!r} is neither http:// nor https://")
        if self.qps is not None and not self.qps > 0:
            raise ValueError(f"qps: {self.qps!r} is not positive")
        if self.max_retries < 0:
            raise ValueError(f"max_retries: {self.max_retries!r} is negative")
        if not self._stage.enabled:
            raise ValueError("http_request_stage: without it nothing is left")

    @property
    def _stage(self) -> HttpRequestStageConfig:
        return read_stage("http_request_stage", self.http_request_stage, HttpRequestStageConfig)

    @property
    def model(self) -> str:
        """What people read as the name of what answers."""
        return self.url

    @property
    def columns(self) -> dict[str, str]:
        """The columns that rows need, after preprocess, with what is in them."""
        return {"payload": "The body of the request, as JSON has it."}

    def actor_options(self) -> dict[str, Any]:
        """Return what an actor asks Ray for."""
        stage = self._stage
        given = {n: getattr(stage, n) for n in ("num_cpus", "memory", "runtime_env")}
        return {name: value for name, value in given.items() if value is not None}


@dataclasses.dataclass
class ServeDeploymentProcessorConfig(ProcessorConfig):
    """A deployment of Ray Serve that rows call. Raises ValueError."""

    deployment_name: str
    app_name: str = "default"
    dtype_mapping: Optional[Mapping[str, Callable[..., Any]]] = None
    """The classes of requests by the names that rows have for them in ``dtype``."""
    batch_size: int = 32
    """Rows that are sent together."""
    concurrency: Union[int, tuple[int, int]] = 1
    accelerator_type: Optional[str] = None
    """Accepted: no device is asked for."""
    should_continue_on_error: bool = False
    """Whether a row that fails says so in its column ``__inference_error__``."""
    request_timeout_s: Optional[float] = None
    """How long a row waits for its answer; None is for ever."""
    log_interval_s: float = 10.0

    max_concurrent_batches = 1

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Check everything. Raises ValueError, which names the field at fault."""
        super().check()
        if self.request_timeout_s is not None and not self.request_timeout_s > 0:
            raise ValueError(f"request_timeout_s: {self.request_timeout_s!r} is not positive")

    @property
    def model(self) -> str:
        """What people read as the name of what answers."""
        return f"{self.app_name}#{self.deployment_name}"

    @property
    def columns(self) -> dict[str, str]:
        """The columns that rows need, after preprocess, with what is in them."""
        return {
            "method": "The method of the deployment that is called.",
            "request_kwargs": "The members of the request.",
        }


def _positive(name: str, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name}: {value!r} is no positive number")
