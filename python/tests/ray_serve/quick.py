"""Models behind one ingress, a replica lost, mistakes: what each change is tried with."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import signal
import threading
from collections.abc import Generator
from typing import Any

from ray import serve

import eagleray.serve as eagle
from eagleray.errors import ConfigError
from tests.ray_serve.cluster import (
    Cluster,
    PATIENCE,
    PROMPT,
    RAY,
    engines,
    model,
    parent,
    ticks,
    without_names,
)


class Quick(Cluster):
    """What each change is tried with."""

    def test_models_behind_one_ingress(self) -> None:
        self.deploy(model("one", num_replicas=2), model("two"), name="models")
        status, listed = self.ask("/models/v1/models")
        self.assertEqual((status, [m["id"] for m in listed["data"]]), (200, ["one", "two"]))
        self.assertEqual(self.ask("/models/v1/models/two")[1]["id"], "two")
        self.assertEqual(self.ask("/models/health")[0], 200)
        self.assertEqual(list(self.ask("/models/version")[1]), ["version"])
        told = self.fetch("/models/metrics")[1].decode()
        for name in ("one", "two"):
            self.assertRegex(told, f'eagleray:generation_tokens_total{{.*model_name="{name}"')
        status, answer = self.completion("one", "models")
        self.assertEqual((status, answer["model"]), (200, "one"))
        text = answer["choices"][0]["text"]
        events = list(self.events("two", "models", max_tokens=8))
        self.assertEqual("".join(e["choices"][0]["text"] for e in events), text)
        for fields, want, param in (
            ({"model": "three"}, 404, "model"),
            ({"model": None}, 400, "model"),
            ({"model": "one", "max_tokens": -1}, 400, "max_tokens"),
        ):
            status, answer = self.ask("/models/v1/completions", {"prompt": "x", **fields})
            self.assertEqual((status, answer["error"]["param"]), (want, param), answer)
        self.begun_streams_go_on("one", "models")
        self.kill_replicas("one", "models")
        serve.delete("models")
        self.eventually("the end of the engines", lambda: not engines("one") + engines("two"))

    def begun_streams_go_on(self, name: str, app: str) -> None:
        """Kill the replica that has begun a stream: its client has the bytes of another one."""
        cases: list[dict[str, Any]] = [
            {"temperature": 0},
            {"temperature": 1, "seed": 7, "n": 2, "logprobs": 1},
        ]
        for n, fields in enumerate(cases):
            fields = {"max_tokens": 600, "ignore_eos": True, **fields}
            want = without_names(b"".join(self.raw(name, app, **fields)))
            self.eventually("both", lambda: self.replicas(f":{name}", app) == 2)
            before = {pid: ticks(pid) for pid in engines(name)}
            stream = self.raw(name, app, **fields)
            got = [next(stream) for _ in range(9)]
            for pid in before:
                os.kill(pid, signal.SIGSTOP)
            busy = max(before, key=lambda pid: ticks(pid) - before[pid])  # noqa: B023
            os.kill(parent(busy) if n % 2 else busy, signal.SIGKILL)
            for pid in set(before) - {busy}:
                os.kill(pid, signal.SIGCONT)
            self.eventually("its end", lambda pid=busy: pid not in engines(name))
            got += stream
            self.assertEqual(without_names(b"".join(got)), want)
            self.eventually("both", lambda: len(engines(name)) == 2)

    def raw(self, name: str, app: str, **fields: Any) -> Generator[bytes, None, None]:
        """Return the lines of a stream."""
        fields = {"model": name, "prompt": PROMPT, "stream": True, **fields}
        with contextlib.closing(self.send(f"/{app}/v1/completions", fields)) as connection:
            answer = connection.getresponse()
            self.assertEqual(answer.status, 200)
            self.assertIsNone(answer.headers["X-Eagleray-Resume"])
            yield from answer

    def kill_replicas(self, name: str, app: str, kills: int = 2) -> None:
        """Kill replicas by turns while requests run: each is answered."""
        done = threading.Event()
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            clients = [pool.submit(self.client, name, app, done) for _ in range(4)]
            try:
                for n in range(kills):
                    self.eventually("two replicas", lambda: len(engines(name)) == 2)
                    self.eventually("both", lambda: self.replicas(f":{name}", app) == 2)
                    pid = engines(name)[n % 2]
                    os.kill(parent(pid) if n % 2 else pid, signal.SIGKILL)
                    self.eventually("its end", lambda pid=pid: pid not in engines(name))
            finally:
                done.set()
            answers = [a for c in clients for a in c.result(PATIENCE)]
        self.assertGreater(len(answers), 4)
        self.assertEqual([a for a in answers if a[0] != 200], [])

    def client(self, name: str, app: str, done: threading.Event) -> list[tuple[int, Any]]:
        answers = []
        while not done.is_set():
            answers.append(self.completion(name, app, max_tokens=64, ignore_eos=True))
        return answers

    def test_mistakes(self) -> None:
        bad = model("bad", {"tensor_parallel_size": 3}, num_replica=2)
        with self.assertRaises(ConfigError) as raised:
            eagle.build_openai_app({"llm_configs": [bad]})
        self.assertRegex(str(raised.exception), "deployment_config.num_replica: Ray")
        self.assertRegex(str(raised.exception), "--tensor-parallel-size 3")
        if RAY >= (2, 49):  # older ones have no routers
            kwargs = {"imbalance": 5}
            router = {
                "request_router_class": "eagleray.serve.request_router.PrefixCacheAffinityRouter",
                "request_router_kwargs": kwargs,
            }
            with self.assertRaisesRegex(ConfigError, "request_router_kwargs.imbalance: is not"):
                eagle.build_openai_app({"llm_configs": [model("r", request_router_config=router)]})
        # Also where no replica is wanted.
        gone = model("gone", autoscaling_config={"min_replicas": 0, "max_replicas": 2})
        gone["model_loading_config"]["model_source"] = "/no/such/folder"
        self.refused(args=(bad, "--tensor-parallel-size 3"), gone=(gone, "/no/such/folder"))

    def refused(self, **apps: tuple[dict[str, Any], str]) -> None:
        """Deploy models by Serve's REST API: the status of each has the engine's line."""
        self.put_all({name: {"llm_configs": [config]} for name, (config, _) in apps.items()})

        def failed(name: str) -> bool:
            found = serve.status().applications.get(name)
            return found is not None and str(found.status.value) == "DEPLOY_FAILED"

        # They fail at the same time, and late: Serve builds such an application four times.
        for name, (_, words) in apps.items():
            self.eventually("DEPLOY_FAILED", lambda name=name: failed(name))
            found = serve.status().applications[name]
            text = found.message + "".join(d.message for d in found.deployments.values())
            self.assertIn(words, text)
        for name in apps:
            serve.delete(name)
