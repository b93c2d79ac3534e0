"""Replicas of the ingress come, go and are killed under load."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import Any

from ray import serve
from ray.util.state import list_actors

from tests.ray_serve.cluster import ABORTED, PROMPT, RUNNING, WAITING, engines, idle, model
from tests.ray_serve.lost import Lost


class Ingresses(Lost):
    """Replicas of the ingress come and go."""

    def test_drained(self) -> None:
        self.disturb("6 changes of scale of the ingress", self.scale, ingresses=3)

    def scale(self, args: dict[str, Any]) -> None:
        for n in (1, 3, 1, 3, 2, 1):
            self.put("lost", args, ingresses=n, lost=2)
            self.eventually(f"{n} ingresses", lambda n=n: len(ingress_processes()) == n)

    def test_killed(self) -> None:
        """What has come to an ingress that is killed ends with an error, not a short answer."""
        self.disturb("4 killed ingresses", self.kill, ingresses=2, errors=True)

    def test_killed_ends_its_requests(self) -> None:
        """What an ingress had asked when it was killed is not computed to its end."""
        self.deploy(model("lost"), name="lost", ingress_deployment_config={"num_replicas": 2})
        (engine,) = engines("lost")
        fields = {"model": "lost", "prompt": PROMPT, "max_tokens": 1900, "ignore_eos": True}
        fields.update(temperature=1, n=64)
        with contextlib.ExitStack() as stack:
            for n in range(4):
                asked = self.send("/lost/v1/completions", {**fields, "stream": n % 2 == 0})
                stack.enter_context(contextlib.closing(asked))
            self.eventually(
                "all choices",
                lambda: self.figure("lost", RUNNING) + self.figure("lost", WAITING) >= 256,
            )
            for pid in ingress_processes():
                os.kill(pid, signal.SIGKILL)
            at = time.monotonic()
            self.eventually("an idle engine", lambda: idle(engine))
            print(f"an engine is idle {time.monotonic() - at:.1f} s after the kill", flush=True)
        self.eventually("both", lambda: self.replicas("Ingress", "lost") == 2)
        self.eventually("an answer", lambda: self.fetch("/lost/health")[0] == 200)
        self.assertGreaterEqual(self.figure("lost", ABORTED), 4)
        serve.delete("lost")

    def kill(self, _: dict[str, Any]) -> None:
        for n in range(4):
            self.eventually("both", lambda: self.replicas("Ingress", "lost") == 2)
            self.eventually("both", lambda: len(ingress_processes()) == 2)
            pid = ingress_processes()[n % 2]
            os.kill(pid, signal.SIGKILL)
            self.eventually("its end", lambda pid=pid: pid not in ingress_processes())


def ingress_processes() -> list[int]:
    """Return the processes of replicas of ingresses."""
    actors = list_actors(filters=[("state", "=", "ALIVE")], detail=True, limit=1000)
    return [a.pid for a in actors if a.class_name.endswith("OpenAIIngress")]
