"""Builds applications of Serve out of configurations."""

from __future__ import annotations

import copy
import inspect
import os
import secrets
from collections.abc import Mapping
from typing import Any, Optional, Union

from .._arguments import command_line
from .._engine import check
from ..errors import ConfigError
from ._config import LLMConfig, LLMServingArgs, read_args, read_model
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

_INGRESS_DEFAULTS: dict[str, Any] = {
    "max_ongoing_requests": 100_000,
    "graceful_shutdown_timeout_s": 3600,
    "logging_config": _LOGGING,
}

# Options that only make things better: a version of Ray without them does without.
_OPTIONAL = ("max_constructor_retry_count", "request_router_config")


def build_openai_app(args: Union[Mapping[str, Any], LLMServingArgs]) -> Any:
    """Return the application that serves models over OpenAI's API.

    One model without a second replica is its deployment alone, to which Serve's proxy hands the
    bytes; several models, or several replicas, have an ingress before them.

    ``args`` are those of :class:`LLMServingArgs`, also as ``args`` of a Serve configuration file
    with ``import_path: eagleray.serve:build_openai_app``. Raises ConfigError, with a line for each
    field that is wrong, with those of the engines.
    """
    given = read_args(args)
    models = given.models
    options, wrong = [], []
    for i, model in enumerate(models):
        options.append(_options(model))
        wrong += [f"llm_configs[{i}]: {line}" for line in _mistakes(model, options[i])]
    own = {**_INGRESS_DEFAULTS, **(given.ingress_deployment_config or {})}
    wrong += _unknown(own, "ingress_deployment_config")
    if wrong:
        raise ConfigError("\n".join(wrong))
    if len(models) == 1 and given.ingress_deployment_config is None and _single(options[0]):
        return _deploy(models[0], options[0], front=True)
    from ray import serve

    from ._asgi import Front
    from ._ingress import OpenAIIngress

    routed = any("request_router_config" in o for o in options)
    ingress = serve.deployment(serve.ingress(Front())(OpenAIIngress))
    return _with_options(ingress, own, "ingress_deployment_config").bind(
        [m.model_id for m in models],
        [_deploy(m, o, front=False) for m, o in zip(models, options)],
        routed,
    )


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
    own = {**_INGRESS_DEFAULTS, **(given.ingress_deployment_config or {})}
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


def build_llm_deployment(
    llm_config: Union[Mapping[str, Any], LLMConfig], *, name_prefix: Optional[str] = None
) -> Any:
    """Return the deployment of one model, for applications with an ingress of their own.

    Its handle has ``relay(method, target, headers, body)``, a stream.
    """
    model = read_model(llm_config)
    options = _options(model)
    wrong = _mistakes(model, options)
    if wrong:
        raise ConfigError("\n".join(wrong))
    if name_prefix is not None:
        options["name"] = name_prefix + options["name"]
    return _deploy(model, options, front=False)


def _deploy(model: LLMConfig, options: dict[str, Any], front: bool, token: str = "") -> Any:
    from ray import serve

    from ._asgi import Front
    from ._server import LLMServer

    cls = serve.ingress(Front())(LLMServer) if front else LLMServer
    return _with_options(serve.deployment(cls), options, "deployment_config").bind(
        _arguments(model),
        model.on_ray,
        _key(model),
        (model.engine_kwargs["kv_transfer_config"], token) if token else None,
    )


def _mistakes(model: LLMConfig, options: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with a model's options and with its engine, a line for each."""
    wrong = _unknown(options, "deployment_config")
    try:
        check(_arguments(model))
    except (ConfigError, TypeError) as e:
        wrong += str(e).splitlines()
    return wrong


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
    elif model.accelerator_type is not None:
        actor.setdefault("num_gpus", model.world_size)
        actor.setdefault("accelerator_type", model.accelerator_type)
    if actor:
        options["ray_actor_options"] = actor
    return options


def _own_bundle(actor: Mapping[str, Any]) -> dict[str, float]:
    names = {"num_cpus": "CPU", "num_gpus": "GPU", "memory": "memory"}
    bundle = {names[k]: float(actor[k]) for k in names if actor.get(k)}
    return {**bundle, **(actor.get("resources") or {})} or {"CPU": 0.001}


def _bundles(model: LLMConfig) -> list[dict[str, float]]:
    """Return the bundles of a model's ranks."""
    group = model.placement_group_config or {}
    if "bundles" in group:
        return [dict(b) for b in group["bundles"]]
    per_worker = dict(group.get("bundle_per_worker", {}))
    if not per_worker:
        share = float(model.engine_kwargs.get("ray_devices_per_worker") or 1)
        per_worker = {_device(model): share}
        if model.accelerator_type is not None:
            per_worker[f"accelerator_type:{model.accelerator_type}"] = 0.001
    return [dict(per_worker) for _ in range(model.world_size)]


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
    loading = model.loading
    flags: dict[str, Any] = {
        "served_model_name": model.model_id,
        "model": loading.model_source or loading.model_id,
        "tokenizer": loading.tokenizer_source,
    }
    if model.on_ray:
        flags["ray_device_key"] = _device(model)
    cpus = (model.deployment_config.get("ray_actor_options") or {}).get("num_cpus")
    if cpus and not model.on_ray:
        # What Ray gives the replica is what its ranks compute on.
        flags["cpu_threads"] = max(1, int(cpus) // model.world_size)
    flags["log_format"] = "logfmt"
    return command_line({**flags, **model.engine_kwargs})


def _key(model: LLMConfig) -> Optional[str]:
    """Return a key with which a replica may ask its engine."""
    keys = model.engine_kwargs.get("api_key") or os.environ.get("VLLM_API_KEY")
    if isinstance(keys, (list, tuple)):
        return str(keys[0]) if keys else None
    return keys and str(keys)
