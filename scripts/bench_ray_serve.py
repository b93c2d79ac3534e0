"""Deploys models and bare deployments, and measures both: see bench-ray-serve.sh.

A bare deployment answers the bytes that a model has answered, with nothing behind it, after the
time that the engine takes for a request which is alone: what Serve itself costs. "one" is a
deployment that Serve's proxy calls, "two" one behind an ingress. Beside each rate stand the CPU
time of a request by process, which load from others changes less, and how long the engine had the
requests.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

import ray
from ray import serve
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from eagleray.serve import build_openai_app

MODEL = "go-std-tiny"
# How a request of bench serve looks, which the recorded one must equal in its sizes.
INPUT, OUTPUT = 128, 32
HERE = os.path.dirname(os.path.abspath(__file__))

NULL = """#!/bin/sh
for last; do :; done
[ "$last" != --check=elsewhere ] || exec {0} "$@"
shift
exec {0} bench step-server --step-elsewhere --step-time {1}ms "$@"
"""


class Bare:
    """Answers recorded bytes: a stream event by event, at the pace at which they came."""

    def __init__(self, events: list[bytes], whole: bytes, pause: float) -> None:
        self.events, self.whole, self.pause = events, whole, pause

    async def stream(self) -> Any:
        for event in self.events:
            await asyncio.sleep(self.pause)
            yield event

    async def __call__(self, request: Request) -> Response:
        body = await request.json()
        if body.get("stream"):
            return StreamingResponse(self.stream(), media_type="text/event-stream")
        await asyncio.sleep(self.pause * len(self.events))
        return Response(self.whole, media_type="application/json")

    async def relay(self, body: bytes) -> Any:
        async for event in self.stream():
            yield event

    async def answer(self, body: bytes) -> bytes:
        await asyncio.sleep(self.pause * len(self.events))
        return self.whole


class Ingress:
    """Hands requests to another deployment, as several models behind one address need."""

    def __init__(self, handle: Any) -> None:
        self.streams = handle.options(method_name="relay", stream=True)
        self.wholes = handle.options(method_name="answer")

    async def __call__(self, request: Request) -> Response:
        body = await request.body()
        if json.loads(body).get("stream"):
            return StreamingResponse(self.streams.remote(body), media_type="text/event-stream")
        return Response(await self.wholes.remote(body), media_type="application/json")


def main() -> None:
    p = argparse.ArgumentParser()
    p.add_argument("--address", required=True)
    p.add_argument("--node-ip", required=True)
    p.add_argument("--rounds", type=int, default=4)
    p.add_argument("--prompts", type=int, default=800)
    p.add_argument("--clients", type=int, nargs="+", default=[16])
    p.add_argument("--step-ms", type=float, default=1)
    p.add_argument(
        "--only",
        nargs="+",
        choices=["starts", "streams", "answers"],
        default=["starts", "streams", "answers"],
        help="measure no more than that",
    )
    p.add_argument(
        "--quiet", action="store_true", help="bare deployments have no access log either"
    )
    a = p.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        # Engines whose steps take their time, and no core: what a GPU is to the cores of its
        # machine. The bare deployments wait for as long.
        null = os.path.join(folder, "eagleray")
        with open(null, "w") as f:
            f.write(NULL.format(os.environ["EAGLERAY_BINARY"], a.step_ms))
        os.chmod(null, 0o700)
        run(a, null)


def run(a: argparse.Namespace, null: str) -> None:
    # Replicas find the package and the program as this script does.
    found = {n: os.environ[n] for n in ("EAGLERAY_BINARY", "PYTHONPATH")}
    ray.init(
        a.address,
        _node_ip_address=a.node_ip,
        log_to_driver=False,
        logging_level="warning",
        runtime_env={"env_vars": found},
    )
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": port})
    print(f"Ray {ray.__version__}, {len(os.sched_getaffinity(0))} cores", flush=True)
    try:
        if "starts" in a.only:
            starts()
        if a.only != ["starts"]:
            measure(port, a, null)
    finally:
        serve.shutdown()


def options() -> dict[str, Any]:
    return {"ray_actor_options": {"num_cpus": 0}, "max_ongoing_requests": 10000}


def model(binary: str = "", **app: Any) -> Any:
    config = {
        "model_loading_config": {"model_id": MODEL},
        "engine_kwargs": {
            "cpu_threads": 1,
            "kv_cache_memory_bytes": "256M",
            "disable_log_stats": True,
            "disable_uvicorn_access_log": True,
        },
        "deployment_config": options(),
    }
    if binary:
        config["runtime_env"] = {"env_vars": {"EAGLERAY_BINARY": binary}}
    return build_openai_app({"llm_configs": [config], **app})


def bare_options(quiet: bool) -> dict[str, Any]:
    return {**options(), **({"logging_config": {"enable_access_log": False}} if quiet else {})}


def bare(events: list[bytes], whole: bytes, pause: float, quiet: bool = False) -> Any:
    return serve.deployment(Bare).options(**bare_options(quiet)).bind(events, whole, pause)


def starts() -> None:
    """Print how long replicas take to be ready, in turn."""
    took: dict[str, list[float]] = {"bare": [], "model": []}
    for n in range(5):
        for name in ("bare", "model") if n % 2 else ("model", "bare"):
            app = model() if name == "model" else bare([], b"", 0)
            begun = time.monotonic()
            serve.run(app, name=name, route_prefix=f"/{name}")
            took[name].append(time.monotonic() - begun)
            serve.delete(name)
    for name, seconds in took.items():
        print(f"ready, {name}: median {statistics.median(seconds):.2f} s of {len(seconds)}")
    more = statistics.median(took["model"]) - statistics.median(took["bare"])
    print(f"ready, model - bare: {more:.2f} s")


def record(port: int, stream: bool) -> list[bytes]:
    """Return the pieces of a model's answer."""
    body = {"model": MODEL, "prompt": [5] * INPUT, "max_tokens": OUTPUT, "ignore_eos": True}
    if stream:
        body.update(stream=True, stream_options={"include_usage": True})
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port)) as c:
        headers = {"Content-Type": "application/json"}
        c.request("POST", "/model/v1/completions", json.dumps(body), headers)
        answer = c.getresponse()
        text = answer.read()
        if answer.status != 200:
            raise RuntimeError(text)
    return [e + b"\n\n" for e in text.split(b"\n\n") if e] if stream else [text]


def latency(url: str) -> tuple[float, int]:
    """Return how many seconds the engine behind a URL has had requests in all, and how many."""
    connection = http.client.HTTPConnection(url.split("/")[2])
    with contextlib.closing(connection) as c:
        c.request("GET", f"/{url.split('/')[3]}/metrics")
        text = c.getresponse().read().decode()
    found = [
        sum(float(v) for v in re.findall(rf"^eagleray:{name}{{.*}} (\S+)$", text, re.M))
        for name in ("e2e_request_latency_seconds_sum", "e2e_request_latency_seconds_count")
    ]
    return found[0], int(found[1])


def alone(port: int) -> float:
    """Return how long the engine has a request that is alone."""
    took = []
    for _ in range(20):
        before, n = latency(f"http://127.0.0.1:{port}/model")
        record(port, False)
        after, m = latency(f"http://127.0.0.1:{port}/model")
        if m - n == 1:
            took.append(after - before)
    return statistics.median(took)


def cpu() -> dict[str, float]:
    """Return the CPU milliseconds of Serve's processes and of engines, by what they are."""
    names: dict[int, str] = {}
    parents: dict[int, int] = {}
    spent: dict[int, float] = {}
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        with contextlib.suppress(OSError):
            with open(f"/proc/{pid}/cmdline") as f:
                command = f.read().replace("\0", " ")
            kind = re.search(
                r"ray::(ProxyActor|ServeReplica:(?:one|two|model|ingress):\w+)", command
            )
            if kind is None and "bench step-server" not in command:
                continue
            with open(f"/proc/{pid}/stat") as f:
                parents[pid] = int(f.read().rsplit(")", 1)[1].split()[1])
            names[pid] = kind[1] if kind else "engine"
            total = 0
            for task in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{task}/schedstat") as f:
                    total += int(f.read().split()[0])
            spent[pid] = total / 1e6
    sums: dict[str, float] = {}
    for pid, ms in spent.items():
        name = names[pid]
        if name == "engine":
            if parents[pid] not in names:
                continue  # of another cluster
            name = names[parents[pid]].split(":")[1] + "'s engine"
        elif ":" in name:
            _, app, cls = name.split(":")
            name = f"{app}'s {cls}"
        sums[name] = sums.get(name, 0) + ms
    return sums


def measure(port: int, a: argparse.Namespace, null: str) -> None:
    serve.run(model(null), name="model", route_prefix="/model")
    serve.run(model(null, ingress_deployment_config={}), name="ingress", route_prefix="/ingress")
    events, (whole,) = record(port, True), record(port, False)
    takes = alone(port)
    pause = takes / len(events)
    one = bare(events, whole, pause, a.quiet)
    serve.run(one, name="one", route_prefix="/one")
    serve.run(
        serve.deployment(Ingress).options(**bare_options(a.quiet)).bind(one),
        name="two",
        route_prefix="/two",
    )
    print(
        f"an engine has a request for {takes * 1000:.1f} ms; {len(events)} events of a stream, "
        f"{sum(map(len, events))} bytes; {len(whole)} bytes"
    )
    names = ["one", "model", "two", "ingress"]
    for name in names:  # connections are opened, code is loaded
        plain_rate(f"http://127.0.0.1:{port}/{name}", 16, 64)
    for clients in a.clients:
        for kind in ("streams", "answers"):
            if kind in a.only:
                compare(port, a, names, clients, kind == "streams")


def compare(port: int, a: argparse.Namespace, names: list[str], clients: int, stream: bool) -> None:
    """Print the rates of applications, measured in turn, and the ratios of each turn."""
    rates: dict[str, list[float]] = {n: [] for n in names}
    spent: dict[str, list[dict[str, float]]] = {n: [] for n in names}
    engine: dict[str, list[float]] = {n: [] for n in names}
    for n in range(a.rounds):
        for name in names[n % len(names) :] + names[: n % len(names)]:
            url = f"http://127.0.0.1:{port}/{name}"
            ours = name in ("model", "ingress")
            had, count = latency(url) if ours else (0.0, 0)
            before = cpu()
            rates[name].append(rate(url, clients, a.prompts, n, stream))
            after = cpu()
            more = {k: (v - before.get(k, 0)) / a.prompts for k, v in after.items()}
            spent[name].append(more)
            if ours:
                has, counts = latency(url)
                engine[name].append((has - had) / (counts - count) * 1000)
    kind = f"{'streams' if stream else 'answers'}, {clients} clients"
    for name in names:
        median = statistics.median(rates[name])
        all_rates = " ".join(f"{r:.1f}" for r in rates[name])
        print(f"{kind}, {name}: {median:.1f} requests/s ({all_rates})")
        parts = [
            (statistics.median(s.get(k, 0) for s in spent[name]), k)
            for k in spent[name][-1]
            if k == "ProxyActor" or k.startswith(f"{name}'s")
        ]
        text = ", ".join(f"{k} {ms:.2f}" for ms, k in sorted(parts, reverse=True))
        print(f"  CPU ms of a request: {sum(ms for ms, _ in parts):.2f} ({text})")
        if engine[name]:
            print(f"  the engine had a request for {statistics.median(engine[name]):.1f} ms")
    for mine, base in (("model", "one"), ("ingress", "two")):
        pairs = [x / y for x, y in zip(rates[mine], rates[base])]
        print(f"{kind}, {mine} / {base}: {statistics.median(pairs):.3f}")


def rate(url: str, clients: int, prompts: int, seed: int, stream: bool) -> float:
    """Return how many requests per second are answered."""
    if not stream:
        return plain_rate(url, clients, prompts)
    with tempfile.NamedTemporaryFile() as f:
        command = [os.environ["EAGLERAY_BINARY"], "bench", "serve", "--base-url", url]
        command += ["--model", MODEL, "--random-input-len", str(INPUT)]
        command += ["--random-output-len", str(OUTPUT), "--num-prompts", str(prompts)]
        command += ["--num-warmups", "8", "--max-concurrency", str(clients), "--disable-tqdm"]
        command += ["--seed", str(seed), "--output-json", f.name]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        found: float = json.load(f)["request_throughput"]
        return found


def plain_rate(url: str, clients: int, prompts: int) -> float:
    """Ask for answers that are not streamed, from a process of its own."""
    code = f"import bench_ray_serve as b; print(b.ask({url!r}, {clients}, {prompts}))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{HERE}:{os.environ['PYTHONPATH']}"},
    )
    return float(done.stdout.split()[-1])


def ask(url: str, clients: int, prompts: int) -> float:
    return asyncio.run(_ask(url, clients, prompts))


async def _ask(url: str, clients: int, prompts: int) -> float:
    import aiohttp

    left = iter(range(prompts))

    async def client(session: aiohttp.ClientSession) -> None:
        for n in left:
            body = {
                "model": MODEL,
                "prompt": [5 + n % 100] * INPUT,
                "max_tokens": OUTPUT,
                "ignore_eos": True,
            }
            async with session.post(url + "/v1/completions", json=body) as answer:
                assert answer.status == 200, await answer.text()
                await answer.read()

    async with aiohttp.ClientSession() as session:
        begun = time.monotonic()
        await asyncio.gather(*(client(session) for _ in range(clients)))
        return prompts / (time.monotonic() - begun)


if __name__ == "__main__":
    main()
