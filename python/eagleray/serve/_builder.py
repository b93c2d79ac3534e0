"""Builds applications of Serve out of configurations."""

from __future__ import annotations

import copy
import dataclasses
import functools
import importlib
import inspect
import logging
import os
import secrets
from collections.abc import Mapping
from typing import Any, Callable, Optional, TypeVar, Union, cast

from .._arguments import command_and_environment
from .._bundles import OPTIONS, actor_options, threads_of_rank
from .._engine import check
from ..errors import ConfigError
from ._config import LLMConfig, LLMServingArgs, read_args, read_model, read_one_model
from ._handover import PDServingArgs, read_pd_args

# Serve's proxy logs each request. Its line once more in the file and the standard error of the
# ingress and of the replica costs each of them a tenth of what they spend on a request.
_LOGGING = {"enable_access_log": False}

# What a deployment of engines is unless its configuration says otherwise.
_DEFAULTS: dict[str, Any] = {
    # The engine has a queue of its own, which knows what is running.
    "max_ongoing_requests": 8192,
    "health_check_period_s": 2,
    # Streams last: a replica that is drained answers them to their end.
    "graceful_shutdown_timeout_s": 3600,
    # What is wrong with an engine is wrong with the next one (Ray 2.35 tries three).
    "max_constructor_retry_count": 1,
    "logging_config": _LOGGING,
}

INGRESS_DEFAULTS: dict[str, Any] = {
    "max_ongoing_requests": 100_000,
    "graceful_shutdown_timeout_s": 3600,
    "logging_config": _LOGGING,
}

_log = logging.getLogger("ray.serve")

_Build = TypeVar("_Build", bound=Callable[..., Any])

# Options that only make things better: a version of Ray without them does without.
_OPTIONAL = ("max_constructor_retry_count", "request_router_config")


def _line_first(build: _Build) -> _Build:
    """Return a builder whose errors show their line before the traceback, too.

    Serve's status has all of a traceback, which begins with the cause.
    """

    @functools.wraps(build)
    def built(*args: Any, **kwargs: Any) -> Any:
        try:
            return build(*args, **kwargs)
        except ConfigError as e:
            raise e from ConfigError(*e.args)

    return cast(_Build, built)


@_line_first
def build_openai_app(args: Union[Mapping[str, Any], LLMServingArgs]) -> Any:
    """Return the application that serves models over OpenAI's API.

    One model without a second replica is its deployment alone, to which Serve's proxy hands the
    bytes; several models, or several replicas, have an ingress before them.

    ``args`` are those of :class:`LLMServingArgs`, also as ``args`` of a Serve configuration file
    with ``import_path: eagleray.serve:build_openai_app``. Raises ConfigError, with a line for each
    field that is wrong, with those of the engines.
    """
    return _app(read_args(args), always_ingress=False)


@_line_first
def build_dp_openai_app(args: Mapping[str, Any]) -> Any:
    """Return the application that serves a model in copies, ``data_parallel_size``.

    An engine has the ranks of all copies, so it is what :func:`build_openai_app` returns, with an
    ingress. ``args`` are ``llm_config`` and the options of the ingress. Raises ConfigError.
    """
    return _app(read_one_model(args), always_ingress=True)


def _app(given: LLMServingArgs, always_ingress: bool) -> Any:
    models = given.models
    options, wrong = [], []
    for i, model in enumerate(models):
        options.append(_options(model))
        wrong += [f"llm_configs[{i}]: {line}" for line in _mistakes(model, options[i])]
        _tell(model)
    own = _ingress_options(given.ingress_deployment_config, models)
    wrong += _unknown(own, "ingress_deployment_config")
    cls: Any = None
    extra: dict[str, Any] = {}
    try:
        cls, extra = _ingress_class(given.ingress_cls_config or {})
    except ConfigError as e:
        wrong.append(str(e))
    if wrong:
        raise ConfigError("\n".join(wrong))
    plain = cls is None and given.ingress_deployment_config is None and not always_ingress
    if plain and len(models) == 1 and _single(options[0]):
        return _deploy(models[0], options[0], front=True)
    from ray import serve

    from ._asgi import Front
    from ._ingress import OpenAIIngress

    ingress = _with_options(
        serve.deployment(serve.ingress(Front())(cls or OpenAIIngress)),
        own,
        "ingress_deployment_config",
    )
    handles = [_deploy(m, o, front=False) for m, o in zip(models, options)]
    if cls is not None:
        return ingress.bind(dict(zip([m.model_id for m in models], handles)), **extra)
    routed = any("request_router_config" in o for o in options)
    return ingress.bind([m.model_id for m in models], handles, routed)


def _ingress_options(given: Optional[Mapping[str, Any]], models: list[LLMConfig]) -> dict[str, Any]:
    options = {**INGRESS_DEFAULTS, **(given or {})}
    replicas = [m.ingress_replicas for m in models if m.ingress_replicas is not None]
    if replicas and "autoscaling_config" not in options:
        options.setdefault("num_replicas", max(replicas))
    return options


def _ingress_class(given: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the class of an ingress, None for that of the builder, and what it gets."""
    at, cls = "ingress_cls_config", given.get("ingress_cls")
    unknown = set(given) - {"ingress_cls", "ingress_extra_kwargs"}
    if unknown:
        raise ConfigError(f"{at}: {', '.join(sorted(unknown))}: not known")
    if cls is None:
        return None, {}
    from .ingress import OpenAiIngress

    found = _imported(cls, f"{at}.ingress_cls")
    if not (isinstance(found, type) and issubclass(found, OpenAiIngress)):
        raise ConfigError(f"{at}.ingress_cls: {cls!r} is not made of OpenAiIngress")
    return found, dict(given.get("ingress_extra_kwargs") or {})


def _imported(named: Any, at: str) -> Any:
    """Return what an import path names, ``module:name`` or ``module.name``; else the thing."""
    if not isinstance(named, str):
        return named
    module, _, name = named.replace(":", ".").rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as e:
        raise ConfigError(f"{at}: {named!r}: {e}") from None


def _tell(model: LLMConfig) -> None:
    """Log what a configuration has that changes nothing, once for each build."""
    if model.without_effect:
        _log.warning("%s: without effect: %s", model.model_id, ", ".join(model.without_effect))


@_line_first
def build_pd_openai_app(args: Union[Mapping[str, Any], PDServingArgs]) -> Any:
    """Return the application that serves a model over OpenAI's API by two deployments.

    Replicas of one compute prompts, those of the other go on from them (``kv_transfer_config``).

    ``args`` are those of :class:`PDServingArgs`, also as ``args`` of a Serve configuration file
    with ``import_path: eagleray.serve:build_pd_openai_app``. Raises ConfigError, with a line for
    each field that is wrong, with those of the engines.
    """
    given = read_pd_args(args)
    # Replicas know by it whose blocks they may take; each build has another one.
    token = secrets.token_hex(32)
    handles, wrong = [], []
    routed = False
    for name, model in (("prefill", given.prefill), ("decode", given.decode)):
        options = _options(model)
        if "name" not in model.deployment_config:
            options["name"] = f"{name.capitalize()}:{options['name']}"
        routed = routed or "request_router_config" in options
        mistakes = _mistakes(model, options)
        wrong += [f"{name}_config: {line}" for line in mistakes]
        if not mistakes:
            handles.append(_deploy(model, options, front=False, token=token))
    _tell(given.prefill)
    _tell(given.decode)
    own = _ingress_options(given.ingress_deployment_config, [given.decode])
    wrong += _unknown(own, "ingress_deployment_config")
    if wrong:
        raise ConfigError("\n".join(wrong))
    from ray import serve

    from ._asgi import Front
    from ._split import PDIngress

    ingress = serve.deployment(serve.ingress(Front())(PDIngress))
    return _with_options(ingress, own, "ingress_deployment_config").bind(
        given.decode.model_id, *handles, routed
    )


@_line_first
def build_llm_deployment(
    llm_config: Union[Mapping[str, Any], LLMConfig],
    *,
    name_prefix: Optional[str] = None,
    bind_kwargs: Optional[Mapping[str, Any]] = None,
    override_serve_options: Optional[Mapping[str, Any]] = None,
    deployment_cls: Optional[type[Any]] = None,
) -> Any:
    """Return the deployment of one model, for applications with an ingress of their own.

    Its handle has ``relay(method, target, headers, body)``, a stream, and ``chat``, ``completions``
    and others, which take the bodies of ``openai_api_models``. ``override_serve_options`` come
    before ``deployment_config``. ``deployment_cls`` is a class that is made of
    :class:`eagleray.serve.deployment.LLMServer`; it gets ``llm_config``, and ``bind_kwargs``.
    Raises ConfigError.
    """
    model = read_model(llm_config)
    if override_serve_options:
        deployment = {**model.deployment_config, **override_serve_options}
        model = dataclasses.replace(model, deployment_config=deployment)
    options = checked_options(model)
    if name_prefix is not None:
        options["name"] = name_prefix + options["name"]
    _tell(model)
    if deployment_cls is None and not bind_kwargs:
        return _deploy(model, options, front=False)
    from ray import serve

    from .deployment import LLMServer

    cls = deployment_cls or LLMServer
    if not issubclass(cls, LLMServer):
        raise ConfigError(f"deployment_cls: {cls!r} is not made of LLMServer")
    deployment = _with_options(serve.deployment(cls), options, "deployment_config")
    return deployment.bind(model, **(bind_kwargs or {}))


build_dp_deployment = build_llm_deployment
"""Its name for a model in copies, whose ranks one engine has."""


def checked_options(model: LLMConfig) -> dict[str, Any]:
    """Return the options of a model's deployment. Raises ConfigError, also for its engine."""
    options = _options(model)
    wrong = _mistakes(model, options)
    if wrong:
        raise ConfigError("\n".join(wrong))
    known = _known_options()
    return {k: v for k, v in options.items() if k in known}


def server_arguments(model: LLMConfig) -> tuple[Any, ...]:
    """Return what a replica's constructor gets."""
    arguments, environment = _command(model)
    more = {} if environment is None else {"HF_TOKEN": environment["HF_TOKEN"]}
    most = model.lora.max_num_adapters_per_replica if model.lora else 0
    return arguments, model.on_ray, _key(model), None, more, most


def _deploy(model: LLMConfig, options: dict[str, Any], front: bool, token: str = "") -> Any:
    from ray import serve

    from ._asgi import Front
    from ._server import LLMServer

    cls = serve.ingress(Front())(LLMServer) if front else LLMServer
    arguments, on_ray, key, _, more, adapters = server_arguments(model)
    exchange = (model.engine_kwargs["kv_transfer_config"], token) if token else None
    return _with_options(serve.deployment(cls), options, "deployment_config").bind(
        arguments, on_ray, key, exchange, more, adapters
    )


def _mistakes(model: LLMConfig, options: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with a model's options and with its engine, a line for each."""
    wrong = _unknown(options, "deployment_config") + _wrong_router(options)
    try:
        check(_arguments(model))
    except (ConfigError, TypeError) as e:
        wrong += str(e).splitlines()
    return wrong


def _wrong_router(options: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with a request router, which Serve would find with each request."""
    at, config = "deployment_config.request_router_config", options.get("request_router_config")
    if config is None:
        return []
    names = ("request_router_class", "request_router_kwargs")
    named, kwargs = (
        config.get(n) if isinstance(config, Mapping) else getattr(config, n, None) for n in names
    )
    if named is None:
        return [f"{at}.{names[1]}: there is no {names[0]}"] if kwargs else []
    try:
        cls = _imported(named, f"{at}.{names[0]}")
        takes = inspect.signature(cls.initialize_state)
    except ConfigError as e:
        return [str(e)]
    except AttributeError:
        return [f"{at}.{names[0]}: {named!r} is no class of a request router"]
    known = {n: p for n, p in takes.parameters.items() if n != "self"}
    others = any(p.kind is p.VAR_KEYWORD for p in known.values())
    wrong = []
    for name, value in (kwargs or {}).items():
        if name in known:
            what = _wrong_kind(value, known[name])
        else:
            what = "" if others else f"is not known (known are {', '.join(known)})"
        wrong += [f"{at}.{names[1]}.{name}: {what}"] if what else []
    return wrong


def _wrong_kind(value: Any, parameter: inspect.Parameter) -> str:
    """Say what is wrong with a value where a parameter's default tells its kind; "" for nothing."""
    default = parameter.default
    if value is None and "Optional" in str(parameter.annotation):
        return ""
    if isinstance(default, bool):
        return "" if isinstance(value, bool) else f"{value!r} is neither true nor false"
    if isinstance(default, (int, float)):
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return "" if number else f"{value!r} is not a number"
    return ""


def _unknown(options: Mapping[str, Any], at: str) -> list[str]:
    import ray

    known = _known_options()
    return [
        f"{at}.{name}: Ray {ray.__version__} has no such option"
        for name in options
        if name not in known and name not in _OPTIONAL
    ]


def _known_options() -> set[str]:
    from ray import serve

    return set(inspect.signature(serve.Deployment.options).parameters) - {"self", "func_or_class"}


def _with_options(deployment: Any, options: dict[str, Any], at: str) -> Any:
    known = _known_options()
    try:
        return deployment.options(**{k: v for k, v in options.items() if k in known})
    except (TypeError, ValueError) as e:
        raise ConfigError(f"{at}: {e}") from None


def _options(model: LLMConfig) -> dict[str, Any]:
    """Return the options of a model's deployment."""
    given = copy.deepcopy(dict(model.deployment_config))
    options = {**_DEFAULTS, "name": _deployment_name(model), **given}
    actor = dict(options.get("ray_actor_options") or {})
    if model.runtime_env is not None:
        actor.setdefault("runtime_env", dict(model.runtime_env))
    if model.on_ray:
        actor.setdefault("num_cpus", 1)
        if "placement_group_bundles" not in options:
            # The replica takes the first bundle; its engine skips that one.
            options["placement_group_bundles"] = [_own_bundle(actor), *_bundles(model)]
            group = model.placement_group_config or {}
            options["placement_group_strategy"] = group.get("strategy", "PACK")
    elif model.placement_group_config is not None:
        for name, value in actor_options(_bundles(model)).items():
            actor.setdefault(name, value)
    elif model.accelerator_type is not None:
        actor.setdefault("num_gpus", model.world_size)
        actor.setdefault("accelerator_type", model.accelerator_type)
    if actor:
        options["ray_actor_options"] = actor
    scaling = options.get("autoscaling_config")
    if isinstance(scaling, Mapping) and scaling.get("min_replicas") == 0:
        # One starts, and goes again without requests: what is wrong with it fails the deployment,
        # not the first client.
        options["autoscaling_config"] = {"initial_replicas": 1, **scaling}
    return options


def _own_bundle(actor: Mapping[str, Any]) -> dict[str, float]:
    bundle = {k: float(actor[name]) for k, name in OPTIONS.items() if actor.get(name)}
    return {**bundle, **(actor.get("resources") or {})} or {"CPU": 0.001}


def _bundles(model: LLMConfig) -> list[dict[str, float]]:
    """Return the bundles of a model's ranks."""
    group = model.placement_group_config or {}
    if "bundles" in group:
        bundles = group["bundles"]
    else:
        share = float(model.engine_kwargs.get("ray_devices_per_worker") or 1)
        one = group.get("bundle_per_worker") or {_device(model): share}
        bundles = [one] * model.world_size
    name = model.accelerator_type
    type_ = {} if name is None else {f"accelerator_type:{name}": 0.001}
    return [{**type_, **bundle} for bundle in bundles]


def _device(model: LLMConfig) -> str:
    default = "CPU" if model.accelerator_type is None else "GPU"
    return str(model.engine_kwargs.get("ray_device_key") or default)


def _deployment_name(model: LLMConfig) -> str:
    return "LLMServer:" + model.model_id.replace("/", "--").replace(".", "_")


def _single(options: Mapping[str, Any]) -> bool:
    """Say whether a deployment never has a second replica, to which a request could go."""
    scaling = options.get("autoscaling_config")
    if options.get("num_replicas") == "auto":
        return False
    if scaling is not None:
        most = scaling.get("max_replicas", 1) if isinstance(scaling, Mapping) else 2
        return bool(most == 1)
    return options.get("num_replicas") in (None, 1)


def _arguments(model: LLMConfig) -> list[str]:
    """Return the flags of a model's engine."""
    return _command(model)[0]


def _command(model: LLMConfig) -> tuple[list[str], Optional[dict[str, str]]]:
    """Return the flags of a model's engine, and its environment, None for the replica's."""
    loading = model.loading
    flags: dict[str, Any] = {
        "served_model_name": model.model_id,
        "model": model.source,
        "tokenizer": loading.tokenizer_source,
    }
    if model.on_ray:
        flags["ray_device_key"] = _device(model)
    cpus = _options(model).get("ray_actor_options", {}).get("num_cpus")
    if cpus and not model.on_ray:
        flags["cpu_threads"] = threads_of_rank(cpus, model.world_size)
    if (lora := model.lora) is not None:
        flags["enable_lora"] = True
        flags["lora_resolver"] = lora.dynamic_lora_loading_path
        flags["max_cpu_loras"] = lora.max_num_adapters_per_replica
    flags["log_format"] = "logfmt"
    return command_and_environment({**flags, **model.engine_kwargs})


def _key(model: LLMConfig) -> Optional[str]:
    """Return a key with which a replica may ask its engine."""
    keys = model.engine_kwargs.get("api_key") or os.environ.get("VLLM_API_KEY")
    if isinstance(keys, (list, tuple)):
        return str(keys[0]) if keys else None
    return keys and str(keys)
