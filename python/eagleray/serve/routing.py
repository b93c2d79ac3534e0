"""A request router that knows which replica has seen how a prompt begins.

Needs a version of Ray that has ``ray.serve.request_router`` (2.49).
"""

from __future__ import annotations

import random
from collections import OrderedDict
from typing import Any, Optional

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica


class PrefixRouter(RequestRouter):  # type: ignore[misc]
    """Routes a request to the replica whose prefix cache has most of its prompt.

    A replica that has many more requests than another one is passed over; without a hit the
    choice is the shorter queue of two.
    """

    def initialize_state(self, imbalance: float = 16, max_blocks: Optional[int] = 65536) -> None:
        """Take ``request_router_kwargs``.

        ``imbalance`` is how many more requests than the least busy replica one may have;
        ``max_blocks`` how many blocks of prompts are remembered of each replica, None for all.
        """
        self._imbalance = imbalance
        self._max_blocks = max_blocks
        self._seen: dict[ReplicaID, OrderedDict[int, None]] = {}

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Forget replicas that are gone, and their caches with them."""
        super().update_replicas(replicas)
        for gone in set(self._seen) - set(self.curr_replicas):
            del self._seen[gone]

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: Optional[PendingRequest] = None,
    ) -> list[list[RunningReplica]]:
        """Return the replica with the longest hit, then two others."""
        if not candidate_replicas:
            return []
        two = random.sample(candidate_replicas, min(2, len(candidate_replicas)))
        blocks = blocks_of_request(pending_request)
        if not blocks:
            return [two]
        lengths = {r.replica_id: self._length(r) for r in candidate_replicas}
        most = min(lengths.values()) + self._imbalance
        hits = [
            (self.hits(r.replica_id, blocks), -lengths[r.replica_id], i)
            for i, r in enumerate(candidate_replicas)
            if lengths[r.replica_id] <= most
        ]
        count, _, best = max(hits)
        return [[candidate_replicas[best]], two] if count else [two]

    def on_request_routed(
        self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any
    ) -> None:
        """Remember what the replica will have in its cache."""
        seen = self._seen.setdefault(replica_id, OrderedDict())
        # The last blocks of a prompt go first, as the engine's do.
        for block in reversed(blocks_of_request(pending_request)):
            seen[block] = None
            seen.move_to_end(block)
        while self._max_blocks is not None and len(seen) > self._max_blocks:
            seen.popitem(last=False)

    def hits(self, replica: ReplicaID, blocks: tuple[int, ...]) -> int:
        """Return how many of a prompt's blocks a replica has seen, from the first on."""
        seen = self._seen.get(replica, OrderedDict())
        for n, block in enumerate(blocks):
            if block not in seen:
                return n
        return len(blocks)

    def _length(self, replica: RunningReplica) -> float:
        """Return how many requests a replica has: those of this router, and its engine's word."""
        sent = self.replica_queue_len_cache.get(replica.replica_id) or 0
        stats = replica.routing_stats or {}
        return float(max(sent, stats.get("running", 0) + stats.get("waiting", 0)))


def blocks_of_request(request: Optional[PendingRequest]) -> tuple[int, ...]:
    """Return the last argument of a call, if it is blocks: those of short prompts are not sent."""
    last = request.args[-1] if request is not None and request.args else None
    return last if isinstance(last, tuple) else ()
