"""What an application is built from, checked by name: one error tells all that is wrong."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, Optional, Union

from ..errors import ConfigError

# Flags that a replica sets itself, and what says the same in its configuration.
_OWN_FLAGS = {
    "model": "model_loading_config.model_source",
    "tokenizer": "model_loading_config.tokenizer_source",
    "served_model_name": "model_loading_config.model_id",
    "host": "Serve's http_options",
    "port": "Serve's http_options",
    "uds": "nothing: the replica has its own",
    "config": "engine_kwargs itself",
    "check": "nothing: the builder checks",
    "headless": "distributed_executor_backend: ray",
    "ray_placement_group": "placement_group_config",
    "ray_skip_bundle": "placement_group_config",
}

_INGRESSES = "num_ingress_replicas"
_ADAPTERS = "dynamic_lora_loading_path"
_BUCKETS = ("s3://", "gs://")

# Sizes whose product is how many ranks an engine has.
_DIMENSIONS = (
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "prefill_context_parallel_size",
    "data_parallel_size",
)


@dataclasses.dataclass
class CloudMirrorConfig:
    """A model in a bucket, ``s3://name/path`` or ``gs://name/path``, as ``model_source``."""

    bucket_uri: Optional[str] = None
    extra_files: Sequence[Any] = ()
    """Refused where there are any: the engine reads the model alone."""


@dataclasses.dataclass
class LoraConfig:
    """Adapters, for which clients ask by ``model_id:adapter``."""

    dynamic_lora_loading_path: Optional[str] = None
    """The folder of the adapters' folders: on the replicas' nodes, or in a bucket."""
    max_num_adapters_per_replica: int = 16
    download_timeout_s: Optional[float] = None
    """Accepted, without effect: a download goes on while bytes come."""
    max_download_tries: int = 3
    """Accepted, without effect: what may succeed is tried again."""


@dataclasses.dataclass
class ModelLoadingConfig:
    """Which model, and under which name clients ask for it."""

    model_id: str
    model_source: Optional[Union[str, CloudMirrorConfig, Mapping[str, Any]]] = None
    """A folder on the replicas' nodes, a Hub repo or a bucket's address; without it ``model_id`` is
    that."""
    tokenizer_source: Optional[str] = None

    def __getitem__(self, name: str) -> Any:
        """Return a field, as programs do that have given a dict and find it here."""
        return getattr(self, self._field(name))

    def __setitem__(self, name: str, value: Any) -> None:
        setattr(self, self._field(name), value)

    def _field(self, name: str) -> str:
        if name not in (f.name for f in dataclasses.fields(self)):
            raise KeyError(name)
        return name


@dataclasses.dataclass
class LLMConfig:
    """One model, as ``ray.serve.llm.LLMConfig`` has it.

    Its fields may be set: the builder checks them again.
    """

    model_loading_config: Union[ModelLoadingConfig, Mapping[str, Any]]
    engine_kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Flags of ``eagleray serve``, with underscores."""
    deployment_config: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Options of a Serve deployment, of the version of Ray that is there."""
    accelerator_type: Optional[str] = None
    """Ray's name of the GPU that each rank takes; without it ranks compute on CPUs."""
    placement_group_config: Optional[Mapping[str, Any]] = None
    """``bundles`` of the ranks, or ``bundle_per_worker``, and ``strategy``. Where ranks are actors
    (``distributed_executor_backend: ray``) the replica's own bundle is put before them; else they
    are in the replica, which asks for the sum."""
    runtime_env: Optional[Mapping[str, Any]] = None
    lora_config: Optional[Union[LoraConfig, Mapping[str, Any]]] = None
    """Where adapters are that clients ask for; replicas load one with the first request."""
    llm_engine: str = "vLLM"
    """Accepted: there is one engine."""
    accelerator_config: Optional[Any] = None
    """Accepted, without effect: ``accelerator_type`` and the bundles say what ranks take."""
    server_cls: Optional[Any] = None
    """Refused: the deployment has one class."""
    experimental_configs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Accepted, without effect but for ``num_ingress_replicas``."""
    log_engine_metrics: Optional[bool] = True
    """Accepted: the engine's metrics are at ``/metrics``."""
    callback_config: Optional[Any] = None
    """Refused: an engine starts without Python."""

    def __post_init__(self) -> None:
        """Check everything. Raises ConfigError, with a line for each field that is wrong."""
        wrong: list[str] = []
        loading = self.model_loading_config
        if isinstance(loading, Mapping):
            read = _read(ModelLoadingConfig, loading, "model_loading_config", wrong)
            object.__setattr__(self, "model_loading_config", read)
        elif not isinstance(loading, ModelLoadingConfig):
            wrong.append(f"model_loading_config: {loading!r} is not an object")
        wrong += _mistyped(self)
        if not wrong:
            wrong += self._check_loading() + self._check_unserved()
            wrong += self._check_engine() + self._check_group()
        if wrong:
            raise ConfigError("\n".join(wrong))

    @classmethod
    def from_file(cls, path: str) -> LLMConfig:
        """Read a YAML file. Raises ConfigError."""
        return read_model(path)

    @classmethod
    def model_validate(cls, given: Any) -> LLMConfig:
        """Read a mapping. Raises ConfigError."""
        return read_model(given)

    @property
    def without_effect(self) -> list[str]:
        """Fields that were given and change nothing."""
        found = [f"experimental_configs.{k}" for k in self.experimental_configs if k != _INGRESSES]
        if self.accelerator_config is not None:
            found.append("accelerator_config")
        if self.lora is not None:
            found += [
                f"lora_config.{f.name}"
                for f in dataclasses.fields(LoraConfig)[2:]
                if getattr(self.lora, f.name) != f.default
            ]
        return found

    @property
    def ingress_replicas(self) -> Optional[int]:
        """How many replicas of the ingress this model asks for, None for those of the builder."""
        return self.experimental_configs.get(_INGRESSES)

    @property
    def loading(self) -> ModelLoadingConfig:
        """``model_loading_config``, read."""
        assert isinstance(self.model_loading_config, ModelLoadingConfig)
        return self.model_loading_config

    @property
    def lora(self) -> Optional[LoraConfig]:
        """``lora_config``, read; None where no adapters are named."""
        given = self.lora_config
        if isinstance(given, Mapping):
            given = LoraConfig(**given)
        return given if given is not None and given.dynamic_lora_loading_path else None

    @property
    def model_id(self) -> str:
        """The name clients use."""
        return self.loading.model_id

    @property
    def source(self) -> str:
        """Where the model is: a folder, a Hub repo or a bucket's address."""
        given = self.loading.model_source
        if isinstance(given, CloudMirrorConfig):
            given = given.bucket_uri
        elif isinstance(given, Mapping):
            given = given["bucket_uri"]
        return given or self.model_id

    @property
    def world_size(self) -> int:
        """How many ranks an engine has."""
        size = 1
        for name in _DIMENSIONS:
            size *= int(self.engine_kwargs.get(name) or 1)
        return size

    @property
    def on_ray(self) -> bool:
        """Whether ranks are actors in the bundles of the replica's placement group."""
        return self.engine_kwargs.get("distributed_executor_backend") == "ray"

    def _check_loading(self) -> list[str]:
        at, given = "model_loading_config.model_source", self.loading.model_source
        if given is None:
            return []
        if isinstance(given, str):
            return [] if given else [f"{at}: {given!r} is not a text"]
        mirror = given if isinstance(given, CloudMirrorConfig) else None
        if mirror is None and isinstance(given, Mapping):
            wrong: list[str] = []
            mirror = _read(CloudMirrorConfig, given, at, wrong)
            if wrong:
                return wrong
        if mirror is None:
            return [f"{at}: {given!r} is neither a text nor an object"]
        uri = mirror.bucket_uri
        if not isinstance(uri, str) or not uri.startswith(_BUCKETS):
            return [f"{at}.bucket_uri: {uri!r} does not begin with {' or '.join(_BUCKETS)}"]
        if mirror.extra_files:
            return [f"{at}.extra_files: are not read: put them into the image or the bucket"]
        return []

    def _check_unserved(self) -> list[str]:
        wrong = self._check_adapters()
        if self.llm_engine != "vLLM":
            wrong.append(f"llm_engine: {self.llm_engine!r} is not vLLM, whose options are taken")
        if self.server_cls is not None:
            wrong.append("server_cls: the deployment has one class; bind another one yourself")
        if self.callback_config is not None:
            wrong.append("callback_config: an engine starts without Python, nothing is called back")
        replicas = self.ingress_replicas
        if replicas is not None and (not _whole(replicas) or replicas < 1):
            wrong.append(f"experimental_configs.{_INGRESSES}: {replicas!r} is not 1 or more")
        return wrong

    def _check_adapters(self) -> list[str]:
        at, given, wrong = "lora_config", self.lora_config, []
        if isinstance(given, Mapping):
            read: list[str] = []
            given = _read(LoraConfig, given, at, read)
            if read:
                return read
        if given is None:
            return []
        if not isinstance(given, LoraConfig):
            return [f"{at}: {given!r} is not an object"]
        path, most = given.dynamic_lora_loading_path, given.max_num_adapters_per_replica
        if path is not None and (not isinstance(path, str) or not path):
            wrong.append(f"{at}.{_ADAPTERS}: {path!r} is not a text")
        if not _whole(most) or most < 1:
            wrong.append(f"{at}.max_num_adapters_per_replica: {most!r} is not 1 or more")
        if path:
            wrong += [
                f"engine_kwargs.{name}: is said by {at}"
                for name in ("lora_resolver", "max_cpu_loras")
                if name in self.engine_kwargs
            ]
        return wrong

    def _check_engine(self) -> list[str]:
        wrong = [
            f"engine_kwargs.{name}: is said by {instead}"
            for name, instead in _OWN_FLAGS.items()
            if name in self.engine_kwargs
        ]
        for name in _DIMENSIONS:
            size = self.engine_kwargs.get(name)
            if size is not None and (not _whole(size) or size < 1):
                wrong.append(f"engine_kwargs.{name}: {size!r} is not a number of 1 or more")
        return wrong

    def _check_group(self) -> list[str]:
        group = self.placement_group_config
        if group is None:
            return []
        at = "placement_group_config"
        wrong = _unknown(group, ("bundles", "bundle_per_worker", "strategy"), at)
        if ("bundles" in group) == ("bundle_per_worker" in group):
            wrong.append(f"{at}: has either bundles or bundle_per_worker")
        bundles = group.get("bundles", [group.get("bundle_per_worker", {})])
        if not isinstance(bundles, Sequence) or not all(_resources(b) for b in bundles):
            wrong.append(f"{at}: {bundles!r} are not bundles, such as {{GPU: 1}}")
        strategies = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")
        if group.get("strategy", "PACK") not in strategies:
            wrong.append(f"{at}.strategy: {group['strategy']!r} is none of {', '.join(strategies)}")
        if "placement_group_bundles" in self.deployment_config:
            wrong.append(f"{at}: deployment_config.placement_group_bundles says the same")
        return wrong


@dataclasses.dataclass
class LLMServingArgs:
    """The arguments of :func:`eagleray.serve.build_openai_app`."""

    llm_configs: Sequence[Union[LLMConfig, Mapping[str, Any], str]]
    """Models; a string is a YAML file with one."""
    ingress_deployment_config: Optional[Mapping[str, Any]] = None
    """Options of the ingress. Given, even empty, one model has an ingress too."""
    ingress_cls_config: Optional[Mapping[str, Any]] = None
    """``ingress_cls``, a class that is made of :class:`eagleray.serve.ingress.OpenAiIngress` or
    its import path, and ``ingress_extra_kwargs``, which its constructor gets."""

    def __post_init__(self) -> None:
        """Check everything. Raises ConfigError, with a line for each field that is wrong."""
        configs = self.llm_configs
        if isinstance(configs, (str, Mapping)) or not isinstance(configs, Sequence) or not configs:
            raise ConfigError(f"llm_configs: {configs!r} is not a list of one model or more")
        wrong = _mistyped(self)
        models = []
        for i, given in enumerate(configs):
            try:
                models.append(read_model(given))
            except ConfigError as e:
                wrong += [f"llm_configs[{i}].{line}" for line in str(e).splitlines()]
        ids = [m.model_id for m in models]
        wrong += [
            f"llm_configs: {name!r} is the model_id of several models"
            for name in sorted({i for i in ids if ids.count(i) > 1})
        ]
        if wrong:
            raise ConfigError("\n".join(wrong))
        object.__setattr__(self, "llm_configs", models)

    @property
    def models(self) -> list[LLMConfig]:
        """``llm_configs``, read."""
        return [m for m in self.llm_configs if isinstance(m, LLMConfig)]


def read_args(given: Any) -> LLMServingArgs:
    """Read the arguments of an application. Raises ConfigError."""
    if isinstance(given, LLMServingArgs):
        return dataclasses.replace(given)  # it may have been changed
    args: LLMServingArgs = read_or_raise(LLMServingArgs, given)
    return args


def read_one_model(given: Any) -> LLMServingArgs:
    """Read the arguments of an application of one ``llm_config``. Raises ConfigError."""
    if not isinstance(given, Mapping):
        raise ConfigError(f"arguments: {given!r} is not an object")
    if "llm_config" not in given:
        raise ConfigError("llm_config: is missing")
    others = {k: v for k, v in given.items() if k != "llm_config"}
    return read_args({"llm_configs": [given["llm_config"]], **others})


def read_model(given: Any) -> LLMConfig:
    """Read a model: an object, or the name of a YAML file with one. Raises ConfigError."""
    if isinstance(given, LLMConfig):
        return dataclasses.replace(given)  # it may have been changed
    if isinstance(given, str):
        import yaml  # Ray needs it too

        try:
            given = yaml.safe_load(pathlib.Path(given).read_text(encoding="utf-8"))
        except (OSError, ValueError, yaml.YAMLError) as e:
            raise ConfigError(f"file: {e}") from None
    config: LLMConfig = read_or_raise(LLMConfig, given)
    return config


def read_or_raise(cls: type[Any], given: Any) -> Any:
    """Make an object of a class of arguments out of a mapping. Raises ConfigError."""
    wrong: list[str] = []
    try:
        value = _read(cls, given, "", wrong)
    except ConfigError as e:
        wrong += str(e).splitlines()
    if wrong:
        raise ConfigError("\n".join(wrong))
    return value


def _read(cls: type[Any], given: Any, at: str, wrong: list[str]) -> Any:
    """Make an object of a class out of a mapping, without fields that it does not know."""
    if not isinstance(given, Mapping):
        wrong.append(f"{at or 'arguments'}: {given!r} is not an object")
        return None
    fields = {f.name: f for f in dataclasses.fields(cls)}
    wrong += _unknown(given, tuple(fields), at)
    needed = [
        name
        for name, f in fields.items()
        if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    ]
    missing = [name for name in needed if name not in given]
    wrong += [f"{_join(at, name)}: is missing" for name in missing]
    if missing:
        return None
    value = cls(**{name: v for name, v in given.items() if name in fields})
    if cls is ModelLoadingConfig:
        wrong += [f"{at}.{line}" for line in _mistyped(value)]
    return value


def _unknown(given: Mapping[str, Any], known: Sequence[str], at: str) -> list[str]:
    return [
        f"{_join(at, str(name))}: is not known (known are {', '.join(known)})"
        for name in given
        if name not in known
    ]


def _join(at: str, name: str) -> str:
    return f"{at}.{name}" if at else name


def _mistyped(value: Any) -> list[str]:
    """Name the fields of a dataclass that have values of another type."""
    wrong = []
    for f in dataclasses.fields(value):
        v = getattr(value, f.name)
        if "Optional" in str(f.type) and v is None:
            continue
        if "Mapping" in str(f.type) and "Union" not in str(f.type):
            if not isinstance(v, Mapping) or not all(isinstance(k, str) for k in v):
                wrong.append(f"{f.name}: {v!r} is not an object")
        elif str(f.type) in ("str", "Optional[str]") and (not isinstance(v, str) or not v):
            wrong.append(f"{f.name}: {v!r} is not a text")
    return wrong


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _resources(bundle: Any) -> bool:
    return (
        isinstance(bundle, Mapping)
        and bool(bundle)
        and all(isinstance(k, str) and isinstance(v, (int, float)) for k, v in bundle.items())
    )
