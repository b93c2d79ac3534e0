"""The number of replicas changes under load."""

from __future__ import annotations

from typing import Any

from tests.ray_serve.cluster import engines
from tests.ray_serve.lost import Lost


class Scaled(Lost):
    """Fifty changes of scale."""

    def test_no_request_is_lost(self) -> None:
        self.disturb("50 changes of scale", self.scale)

    def scale(self, args: dict[str, Any]) -> None:
        for n in range(50):
            before = set(engines("lost"))
            self.put("lost", args, lost=3 - n % 2)
            self.scaled(3 - n % 2)
            kept = before & set(engines("lost"))
            self.assertGreaterEqual(len(kept), 2, "replicas were replaced")
