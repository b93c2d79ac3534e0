"""What the bridge does for the engine, each operation a few calls of Ray's public API. Works on Ray
2.35 and later.

Operations run on several threads at once. Every wait is cut into slices, so that it ends with the
call's deadline, its cancellation and the bridge's end; no thread is inside ray.wait when
ray.shutdown runs.
"""

from __future__ import annotations

import base64
import ctypes
import os
import re
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Callable

import ray
import ray.cloudpickle
from ray.util.metrics import Gauge
from ray.util.placement_group import (
    PlacementGroup,
    get_placement_group,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

import actor
from faults import SLICE_SECONDS, Call, Pending, PlacementGroupRemoved, Unreachable, fault

# After one rank has failed the others get this long to answer too.
GRACE_SECONDS = 2.0

# ray.init needs minutes to find out that nothing answers at an address.
REACH_SECONDS = 5.0

# How long a web server may take to answer.
HTTP_SECONDS = 0.5

# Whether Ray uses TLS in this process, and what to say where the cluster does otherwise.
USES_TLS = os.environ.get("RAY_USE_TLS", "").lower() in ("1", "true")
TLS = "RAY_USE_TLS, and RAY_TLS_SERVER_CERT and its kin, must be set as they are on its nodes"

# The type of the frame by which a server of HTTP/2 begins.
HTTP2_SETTINGS = b"\x04"

# How long actors that have not answered are waited for when their placement group has lost a node.
RESCHEDULE_SECONDS = 5.0

# How long the wait for watchers and Ray's own shutdown may take together; the end of this process
# ends the job too.
SHUTDOWN_SECONDS = 3.0

# How long the raylet of a node may take to accept a connection, which is longer than the kernel
# takes to repeat one that was lost on its way; and how many nodes are asked at a time.
ACCEPT_SECONDS = 1.5
ASKED_NODES = 32

# Of <linux/prctl.h>.
PR_SET_PDEATHSIG = 1

GROUP_ID = re.compile(r"[0-9a-f]{36}")

JSON = dict[str, Any]


@dataclass
class Rank:
    """The actor of one rank. killed: on purpose, so its end is no news."""

    handle: Any
    wants: str
    group: PlacementGroup | None
    runtime_env: bool
    killed: bool = False


class Operations:
    """exited is told the ends of workers; stopping is set when the bridge ends; drained waits for
    all other calls and says whether they are over."""

    def __init__(
        self, exited: Callable[[JSON], None], stopping: threading.Event, drained: Callable[[], bool]
    ) -> None:
        # Nodes need no module of ours: the class and the functions beside it travel by value.
        ray.cloudpickle.register_pickle_by_value(actor)
        self.remote_worker = ray.remote(actor.Worker)
        self.exited = exited
        self.stopping = stopping
        self.drained = drained
        self.lock = threading.Lock()
        self.ranks: dict[int, Rank] = {}
        self.groups: dict[str, PlacementGroup] = {}
        self.adopted: set[str] = set()
        self.watchers: list[threading.Thread] = []
        self.runtime_env = False
        # Whether the cluster is one that connect has started.
        self.started = False
        self.leaving = threading.Lock()
        self.gauges: dict[str, Gauge] = {}
        self.showing = threading.Lock()
        self.table: dict[str, Callable[..., JSON]] = {
            "connect": self.connect,
            "nodes": self.nodes,
            "nodes_lost": self.nodes_lost,
            "group_create": self.group_create,
            "group_adopt": self.group_adopt,
            "group_wait": self.group_wait,
            "group_get": self.group_get,
            "group_remove": self.group_remove,
            "actors_create": self.actors_create,
            "actors_facts": self.actors_facts,
            "actors_install": self.actors_install,
            "actors_start": self.actors_start,
            "actors_feed": self.actors_feed,
            "actors_stop": self.actors_stop,
            "actors_kill": self.actors_kill,
            "metrics": self.metrics,
            "shutdown": self.shutdown,
        }

    def perform(self, call: Call) -> JSON:
        operation = self.table.get(call.op)
        if operation is None:
            raise ValueError(f"unknown operation {call.op!r}")
        if call.op not in ("connect", "shutdown") and not ray.is_initialized():
            raise RuntimeError("not connected to a Ray cluster")
        return operation(call, **call.args)

    # -- metrics --------------------

    def metrics(self, call: Call, samples: list[JSON]) -> JSON:
        """Shows series of the engine through Ray's own export, as they stand: a counter or a
        bucket is a gauge here, since it is counted elsewhere."""
        with self.showing:
            for sample in samples:
                name, labels = sample["name"], sample["labels"]
                gauge = self.gauges.get(name)
                if gauge is None:
                    gauge = Gauge(name, description=sample["help"], tag_keys=tuple(sorted(labels)))
                    self.gauges[name] = gauge
                gauge.set(sample["value"], tags=labels)
        return {}

    # -- the cluster --------------------

    def connect(
        self,
        call: Call,
        local: JSON,
        address: str = "",
        namespace: str = "",
        node_ip: str = "",
        runtime_env: JSON | None = None,
    ) -> JSON:
        options: JSON = {"log_to_driver": False, "logging_level": "warning"}
        if namespace:
            options["namespace"] = namespace
        if node_ip:
            options["_node_ip_address"] = node_ip
        if runtime_env:
            options["runtime_env"] = runtime_env
            self.runtime_env = True
        address = address or os.environ.get("RAY_ADDRESS", "")
        check_reachable(call, address)
        started = address == "local"
        if not started:
            try:
                context = ray.init(address=address or "auto", **options)
            except ConnectionError as e:
                # Only "there is none" leads to a cluster of our own; one that refuses us does not.
                if address or "Could not find any running Ray instance" not in str(e):
                    raise
                started = True
        if started:
            context = ray.init(address="local", **local, **options)
            outlive_parent()
        self.started = started
        runtime = ray.get_runtime_context()
        return {
            "node_id": runtime.get_node_id(),
            "node_ip": ray.util.get_node_ip_address(),
            "job_id": runtime.get_job_id(),
            "gcs_address": runtime.gcs_address,
            "namespace": runtime.namespace,
            "dashboard_url": context.dashboard_url or "",
            "started": started,
        }

    def nodes(self, call: Call) -> JSON:
        held: dict[str, dict[str, float]] = {}
        for group in placement_group_table().values():
            if group["state"] == "REMOVED":
                continue
            for index, node in group["bundles_to_node_id"].items():
                of_node = held.setdefault(node, {})
                for key, amount in group["bundles"][index].items():
                    of_node[key] = of_node.get(key, 0.0) + amount
        cluster = ray.available_resources()
        out = []
        for node in ray.nodes():
            total = (
                {k: v for k, v in node["Resources"].items() if "_group_" not in k}
                if node["Alive"]
                else {}
            )
            taken = held.get(node["NodeID"], {})
            free = {
                k: max(0.0, min(v - taken.get(k, 0.0), cluster.get(k, 0.0)))
                for k, v in total.items()
            }
            out.append(
                {
                    "id": node["NodeID"],
                    "ip": node["NodeManagerAddress"],
                    "hostname": node["NodeManagerHostname"],
                    "alive": node["Alive"],
                    "resources": total,
                    "free": free,
                }
            )
        return {"nodes": out, "available": {k: v for k, v in cluster.items() if "_group_" not in k}}

    def nodes_lost(self, call: Call, ids: list[str]) -> JSON:
        """Returns those of the nodes that Ray has lost, or will have: their raylet does not accept
        a connection. By default Ray notices that 12 to 15 seconds after the crash of a raylet, and
        until then it gives work to the node."""
        where = {
            node["NodeID"]: (node["NodeManagerAddress"], node["NodeManagerPort"])
            for node in ray.nodes()
            if node["Alive"]
        }

        def lost(number: str) -> bool:
            try:
                socket.create_connection(where[number], timeout=ACCEPT_SECONDS).close()
            except (KeyError, ConnectionError, socket.timeout):
                return True
            except OSError:
                # That is trouble of this machine, and says nothing of the node.
                return False
            return False

        with ThreadPoolExecutor(ASKED_NODES, thread_name_prefix="node") as pool:
            found = list(pool.map(lost, ids))
        return {"lost": [number for number, gone in zip(ids, found) if gone]}

    # -- placement groups --------------------

    def group_create(
        self, call: Call, bundles: list[dict[str, float]], name: str = "", strategy: str = ""
    ) -> JSON:
        group = placement_group(bundles, strategy=strategy or "PACK", name=name)
        number = group.id.hex()
        with self.lock:
            self.groups[number] = group
        return {"id": number}

    def group_adopt(self, call: Call, group: str) -> JSON:
        # A name is found only in the namespace of its creator's job, an id from everywhere.
        # (PlacementGroupID.from_hex does not exist in 2.35.)
        if GROUP_ID.fullmatch(group):
            found = PlacementGroup(ray.PlacementGroupID(bytes.fromhex(group)))
        else:
            found = get_placement_group(group)
        out = self._describe(found)
        with self.lock:
            if out["id"] not in self.groups:
                self.groups[out["id"]] = found
                self.adopted.add(out["id"])
        return out

    def group_wait(self, call: Call, id: str, timeout: float) -> JSON:
        group = self._group(id)
        deadline = time.monotonic() + timeout
        while True:
            rest = call.slice(deadline)
            # Ray counts whole seconds here: less than one is none, and the loop would spin.
            whole = rest == SLICE_SECONDS and deadline - time.monotonic() >= 1
            try:
                if group.wait(1 if whole else 0):
                    return {"ready": True}
            except Exception as e:
                # Ray 2.35.0 says so when the group goes just then, in a plain Exception.
                if "does not exist" in str(e):
                    raise PlacementGroupRemoved(f"placement group {id} was removed") from None
                raise
            if self._describe(group)["state"] == "REMOVED":
                raise PlacementGroupRemoved(f"placement group {id} was removed")
            if rest == 0:
                return {"ready": False}
            if not whole:
                call.cancelled.wait(min(rest, 0.02))

    def group_get(self, call: Call, id: str) -> JSON:
        return self._describe(self._group(id))

    def group_remove(self, call: Call, id: str) -> JSON:
        group = self._group(id)
        if id in self.adopted:
            raise ValueError(
                f"placement group {id} was made by another job: it is not ours to remove"
            )
        remove_placement_group(group)
        with self.lock:
            self.groups.pop(id, None)
        return {}

    def _group(self, number: str) -> PlacementGroup:
        with self.lock:
            group = self.groups.get(number)
        if group is None:
            raise ValueError(
                f"unknown placement group {number!r}: neither created nor adopted here"
            )
        return group

    def _describe(self, group: PlacementGroup) -> JSON:
        number = group.id.hex()
        row = placement_group_table(group)
        if not row or not row.get("bundles"):
            raise PlacementGroupRemoved(f"the cluster has no placement group {number}")
        nodes = row["bundles_to_node_id"]
        scheduling = row["stats"].get("scheduling_state", "")
        if row["state"] == "PENDING" and scheduling != "INFEASIBLE":
            # Ray 2.35 says NO_RESOURCES here, and newer versions see only the plainest cases at
            # once.
            totals = [node["Resources"] for node in ray.nodes() if node["Alive"]]
            if infeasible(list(row["bundles"].values()), row["strategy"], totals):
                scheduling = "INFEASIBLE"
        return {
            "id": number,
            "name": row["name"],
            "strategy": row["strategy"],
            "state": row["state"],
            "scheduling_state": scheduling,
            "bundles": [
                {
                    "index": index,
                    "node_id": nodes.get(index, ""),
                    "resources": row["bundles"][index],
                }
                for index in sorted(row["bundles"])
            ],
        }

    # -- actors --------------------

    def actors_create(self, call: Call, specs: list[JSON]) -> JSON:
        results: JSON = {}
        errors: JSON = {}
        for spec in specs:
            try:
                self._create(spec)
                results[spec["rank"]] = {}
            except Exception as e:
                errors[spec["rank"]] = fault(e)
        return {"results": results, "errors": errors}

    def _create(self, spec: JSON) -> None:
        number = spec["rank"]
        with self.lock:
            if number in self.ranks:
                raise ValueError(f"rank {number} has an actor already")
        options: JSON = {
            "num_cpus": spec["cpus"],
            "num_gpus": spec["gpus"],
            "max_restarts": 0,
            "max_task_retries": 0,
            "max_concurrency": actor.MAX_CONCURRENCY,
        }
        for key, name in (
            ("name", "name"),
            ("resources", "resources"),
            ("runtime_env", "runtime_env"),
        ):
            if spec.get(key):
                options[name] = spec[key]
        where, group = "anywhere", None
        if spec.get("group"):
            group = self._group(spec["group"])
            where = f"in bundle {spec['bundle']} of placement group {spec['group']}"
            options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(
                placement_group=group,
                placement_group_bundle_index=spec["bundle"],
                placement_group_capture_child_tasks=False,
            )
        wants = {"CPU": spec["cpus"], "GPU": spec["gpus"], **(spec.get("resources") or {})}
        text = ", ".join(f"{k}: {v:g}" for k, v in wants.items() if v) or "nothing"
        handle = self.remote_worker.options(**options).remote()
        with self.lock:
            self.ranks[number] = Rank(
                handle, f"{text} {where}", group, self.runtime_env or "runtime_env" in options
            )

    def actors_facts(self, call: Call, ranks: list[int], request: JSON) -> JSON:
        return self._ask(
            call, ranks, lambda rank, n: rank.handle.facts.remote(request), GRACE_SECONDS
        )

    def actors_install(self, call: Call, ranks: list[int], file: str, sha256: str) -> JSON:
        if actor.file_sha256(file) != sha256:
            raise ValueError(f"{file} cannot be read or its SHA-256 is not {sha256}")
        with open(file, "rb") as f:
            blob = ray.put(f.read())
        return self._ask(call, ranks, lambda rank, n: rank.handle.install.remote(blob, sha256))

    def actors_start(self, call: Call, specs: list[JSON]) -> JSON:
        by_rank = {spec["rank"]: spec for spec in specs}

        def start(rank: Rank, number: int) -> Any:
            spec = by_rank[number]
            stdin = base64.b64decode(spec.pop("stdin", None) or "")
            return rank.handle.start.remote(spec, stdin)

        out = self._ask(call, list(by_rank), start)
        refs = {}
        with self.lock:
            for number in out["results"]:
                if rank := self.ranks.get(number):
                    refs[rank.handle.run.remote()] = (number, out["results"][number]["pid"], rank)
            # A thread for each batch: none has to wait for another's ray.wait to learn of new
            # references.
            self.watchers = [w for w in self.watchers if w.is_alive()]
            if refs:
                watcher = threading.Thread(
                    target=self._watch, args=(refs,), name="watch", daemon=True
                )
                self.watchers.append(watcher)
                watcher.start()
        return out

    def actors_feed(self, call: Call, inputs: list[JSON]) -> JSON:
        by_rank = {part["rank"]: base64.b64decode(part["stdin"]) for part in inputs}
        return self._ask(
            call, list(by_rank), lambda rank, n: rank.handle.feed.remote(by_rank[n]), GRACE_SECONDS
        )

    def actors_stop(self, call: Call, ranks: list[int], grace: float) -> JSON:
        return self._ask(call, ranks, lambda rank, n: rank.handle.stop.remote(grace))

    def actors_kill(self, call: Call, ranks: list[int]) -> JSON:
        with self.lock:
            killed = [self.ranks.pop(n) for n in ranks if n in self.ranks]
        for rank in killed:
            rank.killed = True
            ray.kill(rank.handle, no_restart=True)
        return {}

    def _ask(
        self,
        call: Call,
        ranks: list[int],
        ask: Callable[[Rank, int], Any],
        grace: float | None = None,
    ) -> JSON:
        """Calls the actors of the ranks and waits for their answers. After a failure the others get
        the grace."""
        began = time.monotonic()
        results: JSON = {}
        errors: JSON = {}
        pending = {}
        for number in ranks:
            with self.lock:
                rank = self.ranks.get(number)
            try:
                if rank is None:
                    raise ValueError(f"rank {number} has no actor")
                pending[ask(rank, number)] = (number, rank)
            except Exception as e:
                errors[number] = fault(e)
        deadline = lost = None
        while pending:
            if errors and grace is not None and deadline is None:
                deadline = time.monotonic() + grace
            rest = call.slice(deadline)
            ready, _ = ray.wait(list(pending), num_returns=1, timeout=rest)
            for ref in ready:
                number, _ = pending.pop(ref)
                try:
                    results[number] = {"rank": number, **ray.get(ref, timeout=0)}
                except Exception as e:
                    errors[number] = fault(e)
            if ready:
                continue
            if all(
                group_state(group) == "CREATED"
                for group in {rank.group for _, rank in pending.values()}
            ):
                lost = None
            elif lost is None:
                # Its nodes were there a moment ago. Ray may find others, but it may also wait for
                # ever.
                lost = time.monotonic()
            if rest == 0 or lost is not None and time.monotonic() - lost > RESCHEDULE_SECONDS:
                break
        for number, rank in pending.values():
            waited = time.monotonic() - began
            why = "what it wants is taken, or its node is slow to start Python or does not answer"
            if rank.runtime_env:
                why += ", or its runtime environment is still being set up"
            if (state := group_state(rank.group)) == "RESCHEDULING":
                why = (
                    "a node of the placement group is lost, and Ray finds no other for its bundles"
                )
            elif state != "CREATED":
                why = f"the placement group is {state}"
            errors[number] = fault(
                Pending(
                    f"no answer within {waited:.1f} s from the actor that wants {rank.wants}: {why}"
                )
            )
        return {"results": results, "errors": errors}

    def _watch(self, refs: dict[Any, tuple[int, int, Rank]]) -> None:
        """Tells the ends of a batch of workers. Any run that is over means a lost rank, whatever
        its exception."""
        while refs and not self.stopping.is_set():
            ready, _ = ray.wait(list(refs), num_returns=1, timeout=SLICE_SECONDS)
            for ref in ready:
                number, pid, rank = refs.pop(ref)
                news: JSON = {
                    "rank": number,
                    "pid": pid,
                    "code": None,
                    "signal": "",
                    "class": "",
                    "reason": "",
                    "stderr": [],
                }
                try:
                    news.update(ray.get(ref, timeout=0))
                except Exception as e:
                    described = fault(e)
                    news.update({"class": described["class"], "reason": described["message"]})
                if not rank.killed and not self.stopping.is_set():
                    self.exited(news)

    # -- the end --------------------

    def shutdown(self, call: Call) -> JSON:
        """Ends everything this bridge has made. The stopping event was set when the request came
        in."""
        self.end()
        return {}

    def end(self) -> None:
        # The engine may go while it waits for the shutdown that it has asked for.
        with self.leaving:
            if ray.is_initialized():
                self._leave()

    def _leave(self) -> None:
        with self.lock:
            ranks, watchers = list(self.ranks.values()), list(self.watchers)
            groups = [g for n, g in self.groups.items() if n not in self.adopted]
        for rank in ranks:
            rank.killed = True
            ray.kill(rank.handle, no_restart=True)
        for group in groups:
            remove_placement_group(group)
        # ray.wait must not be running when the core worker goes. If something is stuck inside Ray,
        # the end of this process has to do.
        deadline = time.monotonic() + SHUTDOWN_SECONDS
        for watcher in watchers:
            watcher.join(max(0.0, deadline - time.monotonic()))
        if self.drained() and not any(w.is_alive() for w in watchers):
            # It has been seen to hang.
            leaving = threading.Thread(target=ray.shutdown, name="shutdown", daemon=True)
            leaving.start()
            leaving.join(
                SHUTDOWN_SECONDS if self.started else max(1.0, deadline - time.monotonic())
            )


def group_state(group: PlacementGroup | None) -> str:
    """Returns the state of an actor's group; CREATED for an actor without one."""
    if group is None:
        return "CREATED"
    return str(placement_group_table(group).get("state", "REMOVED"))


def infeasible(
    bundles: list[dict[str, float]], strategy: str, nodes: list[dict[str, float]]
) -> bool:
    """Whether bundles cannot fit on nodes with these resources even if they are idle. False may
    mean that it was not found out: the general question is one of packing bins."""

    def total(parts: list[dict[str, float]]) -> dict[str, float]:
        return {key: sum(part.get(key, 0.0) for part in parts) for part in parts for key in part}

    def fits(want: dict[str, float], room: dict[str, float]) -> bool:
        return all(room.get(key, 0.0) >= amount for key, amount in want.items())

    if strategy == "STRICT_PACK":
        return not any(fits(total(bundles), node) for node in nodes)
    if strategy == "STRICT_SPREAD" and len(bundles) > len(nodes):
        return True
    return not fits(total(bundles), total(nodes)) or any(
        not any(fits(b, n) for n in nodes) for b in bundles
    )


def check_reachable(call: Call, address: str) -> None:
    """Raises if nothing listens at the address of a cluster, or something else than its GCS does; a
    head that starts just now gets a few seconds."""
    if address in ("", "auto", "local"):
        return
    host, _, port = address.rpartition(":")
    if "://" in address or not host or not port.isdigit():
        raise ValueError(
            f"{address} is no GCS address: give host:6379, not the address of Ray Client, "
            "of the dashboard or of jobs"
        )
    deadline = time.monotonic() + REACH_SECONDS
    while True:
        try:
            with socket.create_connection(
                (host.strip("[]"), int(port)), timeout=REACH_SECONDS
            ) as connection:
                said = answer_to_http(connection)
            if said == b"" and not USES_TLS:
                raise ConnectionError("what listens there closes connections without TLS: " + TLS)
            if said is not None and said.startswith(b"HTTP/1"):
                raise ValueError(
                    f"{address} is a web server, such as the dashboard: "
                    "give the GCS address, host:6379"
                )
            if said is not None and said[3:4] == HTTP2_SETTINGS and USES_TLS:
                raise ValueError(f"the cluster at {address} has no TLS: " + TLS)
            return
        except (OSError, OverflowError) as e:
            rest = call.slice(deadline)
            if rest == 0 or isinstance(e, OverflowError):
                raise Unreachable(f"no Ray cluster at {address}: {e}") from None
        time.sleep(rest)


def answer_to_http(connection: socket.socket) -> bytes | None:
    """Returns how a request of HTTP/1 is answered, None for no answer: ray.init needs minutes to
    find out. A GCS speaks HTTP/2 only, and begins with its settings; one with TLS hangs up."""
    try:
        connection.sendall(b"GET /api/version HTTP/1.0\r\n\r\n")
        connection.settimeout(HTTP_SECONDS)
        return connection.recv(8)
    except OSError:
        return None


def outlive_parent() -> None:
    """Lets this process live on when the engine is killed, so that it can end the cluster that it
    has started; the end of the socket tells it. Until then, and at a cluster of others, the
    kernel ends it with the engine (Pdeathsig in process.go). The setting belongs to a thread: to
    the main one, which calls this."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, 0, 0, 0, 0)
