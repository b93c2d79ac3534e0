"""Bundles of placement groups, and the actors that hold them."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping
from typing import Any

# Resources that Ray refuses among the others of an actor.
OPTIONS = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}


def actor_options(bundles: Iterable[Mapping[str, float]]) -> dict[str, Any]:
    """Return the options of an actor that has all of some bundles."""
    total: collections.Counter[str] = collections.Counter()
    for bundle in bundles:
        total.update(bundle)
    options: dict[str, Any] = {OPTIONS[k]: total.pop(k) for k in OPTIONS if k in total}
    return {**options, "resources": dict(total)} if total else options


def threads_of_rank(cpus: float, ranks: int) -> int:
    """Return how many threads each rank computes on of an actor that Ray gives so many CPUs."""
    return max(1, int(cpus) // ranks)


def bundle_of_replica(group: Mapping[str, Any], node: str) -> int:
    """Return which bundle of its group a replica on a node has; ``group`` is Ray's row of it.

    It is the first one, or one just like it: older versions of Serve name none, and Ray takes any
    that has room. Its ranks then have the first one instead.
    """
    bundles, nodes = group["bundles"], group["bundles_to_node_id"]
    if nodes[0] != node:
        for index in sorted(bundles):
            if nodes[index] == node and bundles[index] == bundles[0]:
                return int(index)
    return 0
