"""A cluster that runs applications of eagleray.serve, and what its processes do."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import socket
import time
import unittest
from collections.abc import Generator
from typing import Any, Optional

import ray
from ray import serve

import eagleray.serve as eagle

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
        self.put_all({name: args}, ingresses, **models)

    def put_all(self, apps: dict[str, dict[str, Any]], ingresses: int = 0, **models: int) -> None:
        """Deploy applications at once; those that were deployed so before end if not named."""
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
                for name, args in apps.items()
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


def without_names(stream: bytes) -> bytes:
    """Return a stream without its id and time, which must be the same in all of its events."""
    for pattern in (rb'"id":"[^"]*"', rb'"created":\d+'):
        names = set(re.findall(pattern, stream))
        if len(names) != 1:
            raise AssertionError(f"{len(names)} of {pattern!r} in one stream: {names}")
        stream = re.sub(pattern, b"", stream)
    return stream
