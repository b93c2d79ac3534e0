"""What an actor asks Ray for that holds the ranks of some bundles."""

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
