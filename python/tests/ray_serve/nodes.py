"""Nodes go away, fall silent and come under load."""

from __future__ import annotations

import contextlib
import http.client
import os
import time
from typing import Any

from ray import serve

from tests.ray_serve.cluster import PATIENCE, engines, model
from tests.ray_serve.lost import Lost


class Nodes(Lost):
    """Nodes go away, with all that runs there; another one comes.

    EAGLERAY_NODES is where they are asked for. The head has the ingress, and no room for engines.
    """

    ON_HEAD = {"ray_actor_options": {"num_cpus": 0, "resources": {"node:__internal_head__": 0.001}}}

    def test_replicas_of_one_process(self) -> None:
        self.nodes_go(4, {}, {"ray_actor_options": {"num_cpus": 0.5}})

    def test_groups_over_nodes(self) -> None:
        self.nodes_go(
            2,
            {
                "tensor_parallel_size": 2,
                "distributed_executor_backend": "ray",
                "ray_device_key": "GPU",
            },
            {},
            placement_group_config={"bundle_per_worker": {"GPU": 1}, "strategy": "SPREAD"},
        )

    def test_silent_node(self) -> None:
        lost = model("lost", num_replicas=4, ray_actor_options={"num_cpus": 0.5})
        args = {"llm_configs": [lost], "ingress_deployment_config": self.ON_HEAD}
        self.disturb("a silent node", lambda _: self.silence(4), args, 4)

    def silence(self, replicas: int) -> None:
        self.whole_again(replicas)
        raylet = raylet_of(engines("lost")[0])
        at, answered = time.monotonic(), self.answered
        self.node("POST", f"/nodes/{raylet}/silence")
        self.eventually("Serve to know", lambda: self.running() < replicas)
        known, answered = time.monotonic() - at, self.answered - answered
        # What it had been asked goes on elsewhere while it is there still.
        self.eventually("answers", lambda: self.waited() < 5)
        again = time.monotonic() - at
        self.node("DELETE", f"/nodes/{raylet}")
        self.node("POST", "/nodes")
        self.whole_again(replicas)
        print(
            f"a node is silent: known after {known:.1f} s, {answered} answers meanwhile, "
            f"all goes on after {again:.1f} s, {self.longest:.1f} s for the longest answer",
            flush=True,
        )

    def begin(self, args: dict[str, Any], ingresses: int, replicas: int) -> None:
        # The dashboard may hang on one of the other nodes: on this machine it finds all of them.
        self.deploy(*args.pop("llm_configs"), name="lost", **args)

    def nodes_go(
        self, replicas: int, engine: dict[str, Any], deployment: dict[str, Any], **config: Any
    ) -> None:
        lost = {**model("lost", engine, num_replicas=replicas, **deployment), **config}
        args = {"llm_configs": [lost], "ingress_deployment_config": self.ON_HEAD}
        self.disturb("4 nodes", lambda _: self.kill(replicas), args, replicas)
        print(f"{self.disturbed} streams had begun when a node was killed", flush=True)

    def kill(self, replicas: int) -> None:
        for n in range(4):
            self.whole_again(replicas)
            pid = engines("lost")[n % 2]
            with self.lock:
                self.disturbed += self.begun
            at = time.monotonic()
            self.node("DELETE", f"/nodes/{raylet_of(pid)}")
            self.eventually("Serve to know", lambda: self.running() < replicas)
            known = time.monotonic() - at
            if n % 2 == 0:
                # What is left has room for all; the next kill takes them all.
                self.whole_again(replicas)
            self.node("POST", "/nodes")
            self.whole_again(replicas)
            whole = time.monotonic() - at
            print(
                f"a node is gone: known after {known:.1f} s, whole after {whole:.1f} s", flush=True
            )

    def whole_again(self, replicas: int) -> None:
        self.eventually("all engines", lambda: len(engines("lost")) == replicas)
        self.scaled(replicas)
        self.eventually("health", lambda: self.fetch("/lost/health")[0] == 200)
        status = serve.status().applications["lost"]
        found = {str(d.status.value) for d in status.deployments.values()}
        self.assertEqual((str(status.status.value), found), ("RUNNING", {"HEALTHY"}))

    def node(self, method: str, path: str) -> None:
        with contextlib.closing(
            http.client.HTTPConnection(os.environ["EAGLERAY_NODES"], timeout=PATIENCE)
        ) as c:
            c.request(method, path)
            answer = c.getresponse()
            text = answer.read()
            self.assertEqual(answer.status, 200, text)


def raylet_of(pid: int) -> int:
    """Return the raylet of the node on which a worker has started a process."""
    with open(f"/proc/{pid}/environ", "rb") as f:
        variables = dict(v.partition(b"=")[::2] for v in f.read().split(b"\0"))
    return int(variables[b"RAY_RAYLET_PID"])
