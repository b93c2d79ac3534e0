"""Engines and actors of replicas are killed under load."""

from __future__ import annotations

import os
import signal
from typing import Any

from tests.ray_serve.cluster import engines, parent
from tests.ray_serve.lost import Lost


class Killed(Lost):
    """Twenty kills, by turns of engines and of the actors of replicas."""

    def test_no_request_is_lost(self) -> None:
        self.disturb("20 kills", self.kill)
        print(f"{self.disturbed} streams had begun when one of two was killed", flush=True)

    def kill(self, _: dict[str, Any]) -> None:
        for n in range(20):
            self.eventually("two engines", lambda: len(engines("lost")) == 2)
            self.scaled(2)
            pid = engines("lost")[n // 2 % 2]
            with self.lock:
                self.disturbed += self.begun
            os.kill(parent(pid) if n % 2 else pid, signal.SIGKILL)
            self.eventually("its end", lambda pid=pid: pid not in engines("lost"))
