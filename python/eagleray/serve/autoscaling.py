"""An autoscaling policy that goes by the engines' own queues.

Needs a version of Ray with custom policies and ``record_autoscaling_stats`` (2.51).
"""

from __future__ import annotations

import math
from typing import Any


def queue_policy(context: Any) -> tuple[float, dict[str, Any]]:
    """Return how many replicas run everything without a queue.

    Requests wait in an engine when its KV cache or its slots are full, however few or many those
    are: more replicas come while requests wait, as many as run what waits at the engines' present
    batch. Without a queue, replicas go for which there is less than
    ``target_ongoing_requests``. Serve applies the bounds and delays of ``autoscaling_config``.
    """
    metrics = context.aggregated_metrics or {}
    running = sum((metrics.get("running") or {}).values())
    waiting = sum((metrics.get("waiting") or {}).values())
    replicas = context.current_num_replicas
    wanted = math.ceil(running / context.config.target_ongoing_requests)
    # A queue that is gone within the look-back period leaves a small part in the average.
    if replicas and waiting >= 0.5:
        batch = max(running / replicas, 1.0)
        wanted = max(wanted, replicas + math.ceil(waiting / batch))
    # The ingress holds what no replica has taken yet.
    if wanted == 0 and context.total_num_requests > 0:
        wanted = 1
    return wanted, {}
