"""Replicas come and go with the load, and requests find theirs."""

from __future__ import annotations

import concurrent.futures
import contextlib
import threading
import unittest
from typing import Any

from ray import serve

from tests.ray_serve.cluster import (
    ABORTED,
    Cluster,
    PATIENCE,
    PROMPT,
    RAY,
    RUNNING,
    engines,
    idle,
    model,
)


class Scaling(Cluster):
    """Replicas come and go with the load."""

    def autoscaling(self, **more: Any) -> dict[str, Any]:
        config: dict[str, Any] = {
            "min_replicas": 0,
            "max_replicas": 2,
            "target_ongoing_requests": 2,
            "upscale_delay_s": 0.5,
            "downscale_delay_s": 1,
            "metrics_interval_s": 0.5,
            "look_back_period_s": 1,
            **more,
        }
        return config

    def scales(self, name: str, deployed: dict[str, Any]) -> None:
        """Deploy a model, which goes from nothing to two replicas and back to nothing."""
        self.deploy(deployed, name=name)
        self.eventually("no replica", lambda: not engines(name))
        # The first request starts a replica, and waits for it.
        self.assertEqual(self.completion(name, name)[0], 200)
        with concurrent.futures.ThreadPoolExecutor(12) as pool:
            done = threading.Event()
            clients = [pool.submit(self.client, name, done) for _ in range(12)]
            try:
                self.eventually("a second replica", lambda: len(engines(name)) == 2)
            finally:
                done.set()
            answers = [a for c in clients for a in c.result(PATIENCE)]
        self.assertEqual([a for a in answers if a != 200], [])
        self.eventually("no replica", lambda: not engines(name))
        serve.delete(name)

    def client(self, name: str, done: threading.Event) -> list[int]:
        answers = []
        while not done.is_set():
            answers.append(self.completion(name, name, max_tokens=200, ignore_eos=True)[0])
        return answers

    def test_ongoing_requests(self) -> None:
        self.scales("ongoing", model("ongoing", autoscaling_config=self.autoscaling()))

    @unittest.skipIf(RAY < (2, 51), "no custom policies")
    def test_own_queue(self) -> None:
        # Two run at once, ten wait in the engine: by requests alone one replica would be enough.
        policy = {"policy_function": "eagleray.serve.autoscaling:queue_policy"}
        scaling = self.autoscaling(policy=policy, target_ongoing_requests=50)
        self.scales("queue", model("queue", {"max_num_seqs": 2}, autoscaling_config=scaling))

    def test_drained_replica_ends_its_streams(self) -> None:
        two = model("drain", num_replicas=2)
        self.deploy(two, name="drain")
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            begun = threading.Barrier(9)
            streams = [pool.submit(self.long_stream, begun) for _ in range(8)]
            begun.wait(PATIENCE)
            # With one replica this application would have no ingress, and so be another one.
            self.deploy(model("drain", num_replicas=1), name="drain", ingress_deployment_config={})
            lengths = [s.result(PATIENCE) for s in streams]
        self.assertEqual(lengths, [1000] * 8)
        self.eventually("one engine", lambda: len(engines("drain")) == 1)
        serve.delete("drain")

    def long_stream(self, begun: threading.Barrier) -> int:
        count = 0
        for event in self.events(
            "drain",
            "drain",
            max_tokens=1000,
            ignore_eos=True,
            stream_options={"include_usage": True},
        ):
            if count == 0 and event["choices"]:
                begun.wait(PATIENCE)
                count = 1
            if event.get("usage"):
                count = event["usage"]["completion_tokens"]
        return count

    def test_gone_client_ends_its_request(self) -> None:
        ingress: dict[str, Any] = {"ingress_deployment_config": {}}
        for name, args in (("left", {}), ("leaves", ingress)):
            self.deploy(model(name), name=name, **args)
            pid = engines(name)[0]
            stream = self.events(name, name, max_tokens=1900, ignore_eos=True)
            next(stream)
            stream.close()
            self.eventually("an idle engine", lambda pid=pid: idle(pid))
            # One that is not streamed, of more choices than could be computed by chance.
            body = {
                "model": name,
                "prompt": PROMPT,
                "max_tokens": 1900,
                "ignore_eos": True,
                "temperature": 1,
            }
            with contextlib.closing(self.send(f"/{name}/v1/completions", {**body, "n": 64})):
                self.eventually("running requests", lambda name=name: self.figure(name, RUNNING))
            self.eventually("aborted requests", lambda name=name: self.figure(name, ABORTED) > 1)
            serve.delete(name)

    @unittest.skipIf(RAY < (2, 49), "no request routers")
    def test_prefix_router(self) -> None:
        router = {
            "request_router_class": "eagleray.serve.routing:PrefixRouter",
            "request_routing_stats_period_s": 1,
        }
        engine = {"enable_prompt_tokens_details": True}
        routed = model("routed", engine, num_replicas=2, request_router_config=router)
        self.deploy(routed, name="routed")
        hits = 0
        for n in range(8):
            prompt = f"{n} is the number of this text. " * 20
            for again in range(4):
                status, answer = self.completion("routed", "routed", prompt=prompt, max_tokens=1)
                self.assertEqual(status, 200, answer)
                if again:
                    hits += answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
        self.assertEqual(hits, 24)
        serve.delete("routed")
