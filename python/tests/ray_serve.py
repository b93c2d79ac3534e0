"""Applications of eagleray.serve on a real cluster, which the tests in test/ray start.

    python -m unittest tests.ray_serve.Quick

RAY_ADDRESS and EAGLERAY_NODE_IP say where the cluster is, EAGLERAY_BINARY what serves, and
RAY_DASHBOARD has its REST API.
"""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import contextlib
import http.client
import json
import os
import pickle
import re
import signal
import socket
import threading
import time
import unittest
import unittest.mock
import zlib
from collections.abc import AsyncGenerator, Generator
from typing import Any, Callable, Optional

import ray
from ray import serve
from ray.util.state import list_actors

import eagleray.serve as eagle
from eagleray.errors import ConfigError
from eagleray.serve import ingress, resume, split
from eagleray.serve.relay import UnaskedError
from eagleray.serve.resume import Deaths

PATIENCE = 120.0
BUILTIN = "go-std-tiny"
PROMPT = "What does strings.Index do?"
RUNNING = "eagleray:num_requests_running"
WAITING = "eagleray:num_requests_waiting{"
ABORTED = 'eagleray:request_success_total{engine="0",finished_reason="abort"'
RAY = tuple(int(n) for n in ray.__version__.split(".")[:2])


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


def model(name: str, engine: Optional[dict[str, Any]] = None, **deployment: Any) -> dict[str, Any]:
    deployment.setdefault("ray_actor_options", {"num_cpus": 0})
    return {
        "model_loading_config": {"model_id": name, "model_source": BUILTIN},
        "engine_kwargs": {"cpu_threads": 1, "kv_cache_memory_bytes": "64M", **(engine or {})},
        "deployment_config": deployment,
    }


class Cluster(unittest.TestCase):
    port: int

    @classmethod
    def setUpClass(cls) -> None:
        ray.init(
            os.environ["RAY_ADDRESS"],
            namespace="eagleray-serve",
            _node_ip_address=os.environ["EAGLERAY_NODE_IP"],
            log_to_driver=False,
            logging_level="warning",
        )
        cls.port = free_port()
        serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": cls.port})

    @classmethod
    def tearDownClass(cls) -> None:
        serve.shutdown()
        ray.shutdown()

    def deploy(self, *models: dict[str, Any], name: str = "app", **args: Any) -> None:
        app = eagle.build_openai_app({"llm_configs": list(models), **args})
        serve.run(app, name=name, route_prefix=f"/{name}")

    def put(self, name: str, args: dict[str, Any], ingresses: int = 0, **models: int) -> None:
        """Deploy by Serve's REST API. Further arguments are replicas of models.

        A configuration that differs in these alone scales in place, where ``serve.run``, or another
        number in ``args``, replaces every replica.
        """
        replicas = {f"LLMServer:{model}": n for model, n in models.items()}
        if ingresses:
            replicas["OpenAIIngress"] = ingresses
        config = {
            "proxy_location": "HeadOnly",
            "http_options": {"host": "127.0.0.1", "port": self.port},
            "applications": [
                {
                    "name": name,
                    "route_prefix": f"/{name}",
                    "import_path": "eagleray.serve:build_openai_app",
                    "args": args,
                    "deployments": [
                        {"name": deployment, "num_replicas": n}
                        for deployment, n in replicas.items()
                    ],
                }
            ],
        }
        host = os.environ["RAY_DASHBOARD"]
        with contextlib.closing(http.client.HTTPConnection(host, timeout=PATIENCE)) as c:
            c.request(
                "PUT",
                "/api/serve/applications/",
                json.dumps(config),
                # The dashboard of Ray 2.35 fails without a User-Agent.
                {"Content-Type": "application/json", "User-Agent": "test"},
            )
            answer = c.getresponse()
            text = answer.read()
            self.assertEqual(answer.status, 200, text[-2000:])

    def ask(
        self, path: str, body: Optional[dict[str, Any]] = None, timeout: float = PATIENCE
    ) -> tuple[int, Any]:
        status, data = self.fetch(path, body, timeout)
        return status, json.loads(data) if data else None

    def fetch(
        self, path: str, body: Optional[dict[str, Any]] = None, timeout: float = PATIENCE
    ) -> tuple[int, bytes]:
        with contextlib.closing(self.send(path, body, timeout)) as connection:
            answer = connection.getresponse()
            return answer.status, answer.read()

    def send(
        self, path: str, body: Optional[dict[str, Any]] = None, timeout: float = PATIENCE
    ) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        if body is None:
            connection.request("GET", path)
        else:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        return connection

    def completion(self, name: str, app: str = "app", **fields: Any) -> tuple[int, Any]:
        fields = {"model": name, "prompt": PROMPT, "max_tokens": 8, "temperature": 0, **fields}
        return self.ask(f"/{app}/v1/completions", fields)

    def events(
        self, name: str, app: str = "app", **fields: Any
    ) -> Generator[dict[str, Any], None, None]:
        fields = {"model": name, "prompt": PROMPT, "temperature": 0, "stream": True, **fields}
        with contextlib.closing(self.send(f"/{app}/v1/completions", fields)) as connection:
            answer = connection.getresponse()
            if answer.status != 200:
                raise RuntimeError(f"{answer.status} {answer.read()!r}")
            for line in answer:
                if line.startswith(b"data: ") and line != b"data: [DONE]\n":
                    yield json.loads(line[len("data: ") :])

    def eventually(self, what: str, check: Any) -> None:
        deadline = time.monotonic() + PATIENCE
        while not check():
            if time.monotonic() > deadline:
                self.fail(f"{what} has not come: {serve.status()}")
            time.sleep(0.05)

    def figure(self, app: str, name: str) -> float:
        """Return the sum of a metric of an application's engine."""
        _, text = self.fetch(f"/{app}/metrics")
        lines = [line for line in text.decode().splitlines() if line.startswith(name)]
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    def replicas(self, deployment: str, app: str = "app") -> int:
        found = serve.status().applications[app].deployments
        states = next(d.replica_states for n, d in found.items() if n.endswith(deployment))
        return int(states.get("RUNNING", 0))


def engines(name: str) -> list[int]:
    """Return the processes of engines of a model in this cluster: others may run beside it."""
    found = []
    for entry in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            with open(f"/proc/{entry}/cmdline", "rb") as f:
                words = f.read().split(b"\0")
            named = b"--served-model-name=" + name.encode()
            if b"serve" in words and named in words and is_ours(entry):
                found.append(int(entry))
    return found


def is_ours(pid: str) -> bool:
    """Say whether a worker of this cluster has started a process."""
    with open(f"/proc/{pid}/environ", "rb") as f:
        variables = dict(v.partition(b"=")[::2] for v in f.read().split(b"\0"))
    raylet = variables.get(b"RAY_RAYLET_PID")
    if raylet is None:
        return False
    with open(f"/proc/{int(raylet)}/cmdline", "rb") as f:
        return os.environ["RAY_ADDRESS"].encode() in f.read()


def parent(pid: int) -> int:
    with open(f"/proc/{pid}/stat") as f:
        return int(f.read().rpartition(")")[2].split()[1])


class Quick(Cluster):
    """What each change is tried with."""

    def test_models_behind_one_ingress(self) -> None:
        self.deploy(model("one", num_replicas=2), model("two"), name="models")
        status, listed = self.ask("/models/v1/models")
        self.assertEqual((status, [m["id"] for m in listed["data"]]), (200, ["one", "two"]))
        self.assertEqual(self.ask("/models/v1/models/two")[1]["id"], "two")
        self.assertEqual(self.ask("/models/health")[0], 200)
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
        """Kill the replica that has begun a stream: its client has the very bytes of another one."""
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
        self.refused("args", {"llm_configs": [bad]}, "--tensor-parallel-size 3")
        gone = model("gone")
        gone["model_loading_config"]["model_source"] = "/no/such/folder"
        self.refused("gone", {"llm_configs": [gone]}, "/no/such/folder")

    def refused(self, name: str, args: dict[str, Any], words: str) -> None:
        """Deploy by Serve's REST API: its status has the engine's line."""
        self.put(name, args)

        def failed() -> bool:
            found = serve.status().applications.get(name)
            return found is not None and str(found.status.value) == "DEPLOY_FAILED"

        self.eventually("DEPLOY_FAILED", failed)
        found = serve.status().applications[name]
        text = found.message + "".join(d.message for d in found.deployments.values())
        self.assertIn(words, text)
        serve.delete(name)


def without_names(stream: bytes) -> bytes:
    """Return a stream without its id and time, which must be the same in all of its events."""
    for pattern in (rb'"id":"[^"]*"', rb'"created":\d+'):
        names = set(re.findall(pattern, stream))
        if len(names) != 1:
            raise AssertionError(f"{len(names)} of {pattern!r} in one stream: {names}")
        stream = re.sub(pattern, b"", stream)
    return stream


class Deadly(Cluster):
    """What an ingress does when replicas die, without any."""

    @classmethod
    def setUpClass(cls) -> None:
        """Start nothing."""

    @classmethod
    def tearDownClass(cls) -> None:
        """End nothing."""

    def test_deaths(self) -> None:
        died = ray.exceptions.RayActorError()
        unasked = UnaskedError("no")
        gone = Gone()
        token = [(b"content-type", b"text/event-stream"), (b"x-eagleray-resume", b"t")]
        begun = (200, token, [b"data: a\n", b"\ndata: b\n\n"], died)
        cut = (200, token, [b"data: c\n\n"], died)
        rest = (200, token, [b"data: c\n\n", b"data: d\n\n"], None)
        plain = (200, [(b"content-type", b"application/json")], [b"{}"], None)
        head = b"data: a\n\ndata: b\n\n"
        ended = b"the replica that was answering has ended"
        for name, answers, want, asks in (
            ("whole", [plain], (200, b"{}"), 1),
            ("dies first", [died, died, plain], (200, b"{}"), 3),
            ("poison", [died] * 9, (503, b"no replica has answered"), 3),
            ("had died before", [unasked] * 5 + [plain], (200, b"{}"), 6),
            ("dead with its node", [died] + [gone] * 5 + [plain], (200, b"{}"), 7),
            (
                "dead with its node, in a stream",
                [begun] + [gone] * 5 + [rest],
                (200, head + b"data: c\n\ndata: d\n\n"),
                7,
            ),
            ("goes on", [begun, rest], (200, head + b"data: c\n\ndata: d\n\n"), 2),
            (
                "goes on twice",
                [begun, cut, (200, token, [b"data: d\n\n"], None)],
                (200, head + b"data: c\n\ndata: d\n\n"),
                3,
            ),
            ("poison in streams", [begun, cut, died, rest], (200, ended), 3),
            ("begins again", [begun, (503, [], [b"full"], None), rest], (200, b"data: d\n\n"), 3),
            (
                "would differ",
                [begun, (409, [], [b'{"error": 1}'], None)],
                (200, b'{"error": 1}'),
                2,
            ),
            ("no token", [(200, [], [b"a", b"b"], died), rest], (200, ended), 1),
        ):
            with (
                self.subTest(name),
                unittest.mock.patch.object(resume, "_PAUSE_SECONDS", 0.001),
            ):
                handle = DyingHandle(list(answers))
                sent = asyncio.run(self.relayed(handle))
                body = b"".join(e.get("body", b"") for e in sent)
                self.assertEqual((sent[0]["status"], len(handle.asked)), (want[0], asks))
                self.assertIn(want[1], body)
                self.assertNotIn(b"x-eagleray-resume", dict(sent[0]["headers"]))
                self.assertEqual([e.get("more_body") for e in sent[-2:]][-1], False)
                values = [dict(r[2])[b"x-eagleray-resume"] for r in handle.asked]
                self.assertEqual(values[0], b"begin")
                if name == "goes on twice":
                    other = head + b"data: c\n\n"
                    self.assertEqual(
                        values[1:],
                        [b"t;%d;%08x" % (len(x), zlib.crc32(x)) for x in (head, other)],
                    )

    async def relayed(self, handle: DyingHandle) -> list[dict[str, Any]]:
        """Return what a client is sent."""
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b'{"model": "m", "stream": true}'}

        async def send(event: Any) -> None:
            sent.append(event)

        scope = {
            "method": "POST",
            "path": "/v1/completions",
            "headers": [(b"x-eagleray-resume", b"the client's own")],
        }
        await ingress.OpenAIIngress(["m"], [handle], False).answer(scope, receive, send)
        return sent


class Gone(ray.exceptions.RayActorError):  # type: ignore[misc]
    """What a replica is that died before it was asked."""


class DyingHandle:
    """A deployment whose replicas answer as given, by turns, or raise."""

    deployment_name = "dying"

    def __init__(self, answers: list[Any]) -> None:
        self.answers = answers
        self.asked: list[tuple[Any, ...]] = []
        self.method = ""

    def options(self, method_name: str, **_: Any) -> DyingHandle:
        other = DyingHandle(self.answers)
        other.asked, other.method = self.asked, method_name
        return other

    def remote(self, *request: Any) -> DyingHandle:
        self.asked.append(request)
        return self

    def cancel(self) -> None:
        """Nothing runs."""

    async def __aiter__(self) -> AsyncGenerator[Any, None]:
        answer = self.answers.pop(0)
        if self.method == "relay_again" and not isinstance(answer, Gone):
            yield None
        if isinstance(answer, Exception):
            raise answer
        status, headers, parts, error = answer
        yield status, headers, parts[0], len(parts) > 1
        for part in parts[1:]:
            yield part
        if error is not None:
            raise error


def live_groups() -> dict[str, Any]:
    """Return placement groups that are not removed, by id."""
    table = ray.util.placement_group_table()
    return {n: g for n, g in table.items() if g["state"] != "REMOVED"}


def rank_groups() -> list[str]:
    """Return the placement group of each rank's actor."""
    actors = list_actors(filters=[("state", "=", "ALIVE")], detail=True, limit=1000)
    return [a.placement_group_id for a in actors if (a.name or "").startswith("eagleray_")]


class Layouts(Cluster):
    """Ranks over nodes, in the replica's placement group."""

    def test_group_is_adopted(self) -> None:
        group = {"bundle_per_worker": {"GPU": 1}, "strategy": "SPREAD"}
        engine = {
            "tensor_parallel_size": 2,
            "pipeline_parallel_size": 2,
            "distributed_executor_backend": "ray",
            "ray_device_key": "GPU",
        }
        spread = {**model("spread", engine), "placement_group_config": group}
        before = live_groups()
        self.deploy(spread, model("alone"), name="layouts")
        text = self.completion("alone", "layouts")[1]["choices"][0]["text"]
        self.assertEqual(self.completion("spread", "layouts")[1]["choices"][0]["text"], text)
        ((number, found),) = [(n, g) for n, g in live_groups().items() if n not in before]
        self.assertEqual(rank_groups(), [number] * 4)
        # The replica's own bundle, and one for each rank.
        self.assertEqual(len(found["bundles"]), 5)
        nodes = {n for i, n in found["bundles_to_node_id"].items() if i != 0}
        self.assertGreater(len(nodes), 1)
        serve.delete("layouts")
        self.eventually("the end of the engines", lambda: not engines("spread"))
        self.eventually("the end of the group", lambda: set(live_groups()) <= set(before))


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


class Split(Cluster):
    """Prompts are computed by one deployment, answers by another."""

    def test_answers_are_those_of_one_engine(self) -> None:
        # Without a prefix cache every prompt travels.
        engine = {"enable_prefix_caching": False}
        one = model("split", engine)
        two = model("split", engine, num_replicas=2)
        app = eagle.build_pd_openai_app({"prefill_config": two, "decode_config": one})
        serve.run(app, name="split", route_prefix="/split")
        self.deploy(one, name="whole")
        travelled = self.taken()
        asked = 0
        for n in range(12):
            prompt = f"{PROMPT} And what does example {n} of it print?" * (n % 3 + 1)
            fields: dict[str, Any] = {"prompt": prompt, "max_tokens": 24}
            if n % 2:
                fields.update(temperature=1.0, seed=n, logprobs=2)
            got, want = (self.completion("split", a, **fields) for a in ("split", "whole"))
            self.assertEqual((got[0], got[1]["choices"]), (200, want[1]["choices"]))
            self.assertEqual(got[1]["usage"], want[1]["usage"])
            streamed = [list(self.events("split", a, **fields)) for a in ("split", "whole")]
            texts = ["".join(e["choices"][0]["text"] for e in s) for s in streamed]
            self.assertEqual(texts, [want[1]["choices"][0]["text"]] * 2)
            asked += 2
        self.assertEqual(self.taken() - travelled, asked)
        # What only the decode side may refuse, and what is not split.
        self.assertEqual(self.completion("split", "split", max_tokens=-1)[0], 400)
        self.assertEqual(self.ask("/split/v1/models")[1]["data"][0]["id"], "split")
        self.prompts_are_computed_without_prefill()
        for name in ("split", "whole"):
            serve.delete(name)
        self.eventually("the end of the engines", lambda: not engines("split"))

    def test_many_answers_while_prefill_replicas_die(self) -> None:
        engine = {"enable_prefix_caching": False}
        one = model("many", engine)
        two = model("many", engine, num_replicas=2)
        app = eagle.build_pd_openai_app({"prefill_config": two, "decode_config": one})
        serve.run(app, name="split", route_prefix="/split")
        self.deploy(one, name="whole")
        asked: list[dict[str, Any]] = []
        for n in range(150):
            prompt = f"{n}: {PROMPT} And what does example {n} of it print?" * (n % 3 + 1)
            asked.append({"prompt": prompt, "max_tokens": 8 + n % 17, "seed": n, "logprobs": n % 3})
            asked[-1]["temperature"] = n % 2
        travelled = self.taken()
        done = 0

        def both(app: str, fields: dict[str, Any]) -> tuple[Any, str]:
            status, answer = self.completion("many", app, **fields)
            self.assertEqual(status, 200, answer)
            parts = [e["choices"] for e in self.events("many", app, **fields)]
            return answer["choices"], "".join(c[0]["text"] for c in parts if c)

        def answered(fields: dict[str, Any]) -> tuple[Any, str]:
            nonlocal done
            got = both("split", fields)
            done += 1
            return got

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            want = list(pool.map(lambda f: both("whole", f), asked))
            split = [pool.submit(answered, f) for f in asked]
            # Both prefill replicas die, one after the other: Serve starts them again meanwhile.
            for part in (1, 2):
                self.eventually("answers", lambda n=part * len(asked) // 3: done >= n)
                self.kill_prefill("many", 1)
            got = [s.result(PATIENCE) for s in split]
        different = [n for n in range(len(asked)) if got[n] != want[n]]
        self.assertEqual(different, [])
        came = self.taken() - travelled
        print(
            f"{2 * len(asked)} answers, {came} of them by blocks of a prefill replica", flush=True
        )
        self.assertGreater(came, len(asked) / 2)
        for name in ("split", "whole"):
            serve.delete(name)
        self.eventually("the end of the engines", lambda: not engines("many"))

    def kill_prefill(self, name: str, most: int) -> None:
        """Kill replicas that compute prompts, with their engines."""
        for pid in engines(name):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as f:
                if b"kv_producer" in f.read() and most:
                    os.kill(parent(pid), signal.SIGKILL)
                    most -= 1

    def test_mistakes_of_both_are_told(self) -> None:
        bad = model("split", {"tensor_parallel_size": 3}, num_replica=2)
        with self.assertRaises(ConfigError) as raised:
            eagle.build_pd_openai_app({"prefill_config": bad, "decode_config": bad})
        for name in ("prefill_config", "decode_config"):
            for words in (
                "deployment_config.num_replica: Ray",
                "eagleray: --tensor-parallel-size 3",
            ):
                self.assertRegex(str(raised.exception), f"(?m)^{name}: {words}")

    def test_what_prefill_cannot_do_decode_does(self) -> None:
        ticket = json.dumps({"kv_transfer_params": {"remote_port": 7}}).encode()
        refused = b'{"error": {"param": "kv_transfer_params.remote_seal"}}'
        mistake = b'{"error": {"param": "max_tokens"}}'
        for name, prefill, decode, want, bodies, parts in (
            ("split", [(200, ticket)], [(200, b"a")], (200, b"a"), [True], False),
            (
                "refused",
                [(200, ticket)],
                [(400, refused), (200, b"a")],
                (200, b"a"),
                [True, False],
                True,
            ),
            ("mistake", [(200, ticket)], [(400, mistake)], (400, mistake), [True], True),
            ("failed", [(500, b"{}")], [(200, b"a")], (200, b"a"), [False], False),
            ("broken", [OSError("no")], [(200, b"a")], (200, b"a"), [False], False),
            ("nobody", [None], [(200, b"a")], (200, b"a"), [False], False),
            ("lost", [(200, ticket)], [OSError("no")], None, [True], True),
        ):
            parted: list[Any] = []

            async def renounce(params: Any, parted: list[Any] = parted) -> None:
                parted.append(params)

            with (
                self.subTest(name),
                unittest.mock.patch.object(split, "_running", lambda _: False),
                unittest.mock.patch.object(split, "_LOOK_SECONDS", 0.01),
                unittest.mock.patch.object(split, "renounce", renounce),
            ):
                first, second = FakeHandle(prefill), FakeHandle(decode)
                ingress = split.PDIngress("m", first, second, False)
                request: tuple[Any, ...] = (b"POST", b"/v1/completions", [], b'{"prompt": "x"}', ())
                try:
                    head = asyncio.run(only(ingress._ask("m", request, Deaths())))
                    self.assertEqual((head[0], head[2]), want)
                except OSError:
                    self.assertIsNone(want)
                carried = [b"remote_port" in r[3] for r in second.asked]
                self.assertEqual((carried, len(first.asked)), (bodies, 1))
                self.assertEqual(first.cancelled, name == "nobody")
                self.assertEqual(parted, [{"remote_port": 7}] if parts else [])

    def taken(self) -> int:
        """Return how many prompts' blocks the engine that answers has taken from another one."""
        text = self.fetch("/split/metrics")[1].decode()
        lines = [x for x in text.splitlines() if x.startswith("eagleray:kv_transfers_total{")]
        return sum(
            int(float(x.rpartition(" ")[2]))
            for x in lines
            if 'direction="in"' in x and 'outcome="done"' in x
        )

    def prompts_are_computed_without_prefill(self) -> None:
        want = self.completion("split", "whole")[1]["choices"]
        self.kill_prefill("split", 2)
        for _ in range(4):
            status, answer = self.completion("split", "split")
            self.assertEqual((status, answer["choices"]), (200, want))


class FakeHandle:
    """A deployment with given answers by turns; None never comes."""

    deployment_name = "fake"

    def __init__(self, answers: list[Any]) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[Any, ...]] = []
        self.cancelled = False

    def options(self, **_: Any) -> FakeHandle:
        return self

    def remote(self, *request: Any) -> FakeHandle:
        self.asked.append(pickle.loads(request[0]) if len(request) < 3 else request)
        return self

    def __await__(self) -> Generator[Any, None, bytes]:
        (head,) = yield from self._all().__await__()
        return pickle.dumps(head)

    async def _all(self) -> list[Any]:
        return [item async for item in self]

    def cancel(self) -> None:
        self.cancelled = self.answers[:1] == [None]

    async def __aiter__(self) -> AsyncGenerator[Any, None]:
        if self.answers[0] is None:
            await asyncio.Event().wait()
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        yield (answer[0], [], answer[1], False)


async def only(answers: AsyncGenerator[Any, None]) -> Any:
    """Return the only item."""
    (item,) = [a async for a in answers]
    await asyncio.sleep(0)  # what was cancelled ends
    return item


class Lost(Cluster):
    """No request is lost, and no stream is cut, while replicas come and go.

    What clients get is, but for the names of a stream, what they get of replicas that nothing disturbs.
    """

    # What streams ask for: a long one is more often about to be answered.
    ASKED: tuple[dict[str, Any], ...] = (
        {"temperature": 0, "max_tokens": 64},
        {"temperature": 1, "seed": 7, "n": 2, "logprobs": 1, "max_tokens": 200},
    )

    def disturb(
        self,
        what: str,
        act: Callable[[dict[str, Any]], None],
        args: Optional[dict[str, Any]] = None,
        replicas: int = 2,
        ingresses: int = 1,
        errors: bool = False,
    ) -> None:
        """Ask while something is done to an application, given its arguments.

        ``errors`` says that requests may end with one.
        """
        args = args or {"llm_configs": [model("lost", num_replicas=2)]}
        self.begin(args, ingresses, replicas)
        self.scaled(replicas)
        self.lock, self.begun, self.disturbed = threading.Lock(), 0, 0
        self.longest, self.answered, self.asked = 0.0, 0, dict[int, float]()
        self.want = [self.stream(fields)[1] for fields in self.ASKED]
        answers = self.under_load(lambda: act(args))
        count = collections.Counter(kind for kind, _ in answers)
        print(f"{what}: {len(answers)} requests, {dict(count)}", flush=True)
        wrong = [a for a in answers if a[0] not in ("whole", "stream")]
        if wrong:
            print([(kind, text[-200:]) for kind, text in wrong], flush=True)
        self.assertEqual([a for a in wrong if not errors or a[0] != "lost"], [])
        self.assertGreater(len(answers) - len(wrong), 0)
        self.assertEqual(len({text for kind, text in answers if kind == "whole"}), 1)
        serve.delete("lost")

    def begin(self, args: dict[str, Any], ingresses: int, replicas: int) -> None:
        self.put("lost", args, ingresses, lost=replicas)

    def scaled(self, replicas: int) -> None:
        self.eventually(f"{replicas} replicas", lambda: self.running() == replicas)

    def running(self) -> int:
        found = serve.status().applications.get("lost")
        return self.replicas(":lost", "lost") if found and found.deployments else 0

    def under_load(self, act: Callable[[], None]) -> list[tuple[str, Any]]:
        """Return what became of the requests that were asked meanwhile."""
        done = threading.Event()
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            asks = [self.whole, self.whole, *[self.same_stream] * 4]
            clients = [pool.submit(self.client, ask, done) for ask in asks]
            try:
                act()
            finally:
                done.set()
            return [a for c in clients for a in c.result(PATIENCE)]

    def client(
        self, ask: Callable[[int], tuple[str, Any]], done: threading.Event
    ) -> list[tuple[str, Any]]:
        answers: list[tuple[str, Any]] = []
        while not done.is_set():
            at = time.monotonic()
            with self.lock:
                self.asked[threading.get_ident()] = at
            answers.append(ask(len(answers)))
            with self.lock:
                self.longest = max(self.longest, time.monotonic() - at)
                self.answered += 1
        return answers

    def waited(self) -> float:
        """Return for how long the oldest request has been waiting."""
        with self.lock:
            return time.monotonic() - min(self.asked.values())

    def whole(self, _: int) -> tuple[str, Any]:
        try:
            fields = {"model": "lost", "prompt": PROMPT, "max_tokens": 64, "temperature": 0}
            fields["ignore_eos"] = True
            status, answer = self.fetch("/lost/v1/completions", fields)
        except (OSError, http.client.HTTPException) as e:
            return "lost", repr(e)
        if status != 200:
            return "lost", f"{status} {answer!r}"
        return "whole", json.loads(answer)["choices"][0]["text"]

    def same_stream(self, n: int) -> tuple[str, Any]:
        """Ask for a stream, and compare it with an undisturbed one."""
        n %= len(self.ASKED)
        try:
            kind, got = self.stream(self.ASKED[n])
        except (OSError, http.client.HTTPException) as e:
            return "lost", repr(e)
        if kind == "stream" and got == self.want[n]:
            return "stream", None
        return ("different" if kind == "stream" else kind), got

    def stream(self, fields: dict[str, Any]) -> tuple[str, Any]:
        fields = {"model": "lost", "prompt": PROMPT, "stream": True, "ignore_eos": True, **fields}
        with contextlib.closing(self.send("/lost/v1/completions", fields)) as connection:
            answer = connection.getresponse()
            if answer.status != 200:
                return "lost", f"{answer.status} {answer.read()!r}"
            body = answer.readline()
            with self.lock:
                self.begun += 1
            try:
                body += answer.read()
            finally:
                with self.lock:
                    self.begun -= 1
        if b'"error"' in body or not body.endswith(b"data: [DONE]\n\n"):
            return "cut", body[-500:]
        return "stream", without_names(body)


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


class Ingresses(Lost):
    """Replicas of the ingress come and go."""

    def test_drained(self) -> None:
        self.disturb("6 changes of scale of the ingress", self.scale, ingresses=3)

    def scale(self, args: dict[str, Any]) -> None:
        for n in (1, 3, 1, 3, 2, 1):
            self.put("lost", args, ingresses=n, lost=2)
            self.eventually(f"{n} ingresses", lambda n=n: len(ingress_processes()) == n)

    def test_killed(self) -> None:
        """What has come to an ingress that is killed ends with an error: never as a short answer."""
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


def idle(pid: int) -> bool:
    """Say whether a process computes nothing."""

    before = ticks(pid)
    time.sleep(0.3)
    return ticks(pid) - before <= 2


def ticks(pid: int) -> int:
    """Return what a process has computed, in hundredths of a second."""
    with open(f"/proc/{pid}/stat") as f:
        words = f.read().rpartition(")")[2].split()
    return int(words[11]) + int(words[12])
