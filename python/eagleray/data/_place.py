"""Where the ranks of an actor's engine go."""

from __future__ import annotations

import sys
from typing import Any

from .._bundles import actor_options, threads_of_rank
from ._config import GENERATE, EngineProcessorConfig


def engine_args(config: EngineProcessorConfig) -> dict[str, Any]:
    """Return the engine's arguments in this actor.

    For ranks that are actors they name this cluster. The engine makes a placement group for them,
    as a job of its own: Ray keeps a group that an actor makes until the actor's job ends, and this
    one's may go on for long after it.
    """
    args = dict(config.engine_kwargs)
    args.pop("task_type", None)  # Ray's processors put their own there
    if config.task_type != GENERATE:
        args.setdefault("runner", "pooling")
    if config.dynamic_lora_loading_path is not None:
        args.setdefault("enable_lora", True)
        args.setdefault("lora_resolver", config.dynamic_lora_loading_path)
    if not config.on_ray:
        cpus = actor_options(config.bundles or []).get("num_cpus")
        if cpus:
            args.setdefault("cpu_threads", threads_of_rank(cpus, config.world_size))
        return args
    import ray

    args.setdefault("ray_address", ray.get_runtime_context().gcs_address)
    args.setdefault("ray_python", sys.executable)
    for bundle in (config.bundles or [])[:1]:
        ((device, share),) = bundle.items()
        args.setdefault("ray_device_key", device)
        args.setdefault("ray_devices_per_worker", share)
    if config.accelerator_type is not None:
        args.setdefault("ray_device_key", "GPU")
    return args
