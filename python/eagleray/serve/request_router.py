"""The request router of ``ray.serve.llm.request_router``, with its arguments."""

from __future__ import annotations

import math
from typing import Any, Optional

from ray.serve.request_router import PendingRequest, RunningReplica

from ._prefix import BLOCK_CHARS
from .routing import PrefixRouter, blocks_of_request


class PrefixCacheAffinityRouter(PrefixRouter):
    """Routes a request to the replica that has seen most of how its prompt begins."""

    def initialize_state(  # type: ignore[override]
        self,
        imbalanced_threshold: float = math.inf,
        match_rate_threshold: float = 0.1,
        do_eviction: bool = False,
        eviction_threshold_chars: int = 400_000,
        eviction_target_chars: int = 360_000,
        eviction_interval_secs: float = 10,
        tree_actor: Any = None,
    ) -> None:
        """Take ``request_router_kwargs``.

        ``imbalanced_threshold`` is how many more requests than the least busy replica one may have,
        ``match_rate_threshold`` the least part of a prompt that counts as seen, and
        ``eviction_threshold_chars`` how much of prompts is remembered of each replica, where
        ``do_eviction`` bounds it. The oldest are forgotten at once: the other arguments have no
        effect.
        """
        self._least = match_rate_threshold
        most = max(1, eviction_threshold_chars // BLOCK_CHARS) if do_eviction else None
        super().initialize_state(imbalanced_threshold, most)

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: Optional[PendingRequest] = None,
    ) -> list[list[RunningReplica]]:
        """Return the replica with the longest hit that counts, then two others."""
        ranks = await super().choose_replicas(candidate_replicas, pending_request)
        blocks = blocks_of_request(pending_request)
        if len(ranks) == 2 and self.hits(ranks[0][0].replica_id, blocks) < self._least * len(
            blocks
        ):
            return ranks[1:]
        return ranks


__all__ = ["PrefixCacheAffinityRouter"]
