"""The actor of one rank: it says where it is, brings the binary to its node, and holds the worker
process.

Ray carries the class to the nodes by value, so they need no module of ours; it may use only the
standard library and Ray. Several methods may run at once (MAX_CONCURRENCY): run lasts for as long
as the worker does.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import platform
import queue
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from concurrent.futures import Future
from typing import Any

import ray

# run, stop, and one more for facts.
MAX_CONCURRENCY = 3

# The last lines of the worker's standard error, which explain its end.
TAIL_LINES = 20
LINE_BYTES = 4096

# How long an actor waits for its worker to be started, and how long it outlives it.
IDLE_SECONDS = 900.0
LEFT_SECONDS = 30.0

# Within which time the same SIGTERM reaches the worker and the actor.
TERM_SECONDS = 0.1

# How long a worker may take to end that was killed.
KILL_SECONDS = 3.0

# How long a binary stays in a node's cache without being used.
UNUSED_SECONDS = 30 * 24 * 3600.0

# Where Ray keeps its own files unless told otherwise.
RAY_DIR = "/tmp/ray"


class Worker:
    def __init__(self) -> None:
        self.child: subprocess.Popen[bytes] | None = None
        self.ended = threading.Event()
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        self.drained: threading.Thread | None = None
        self.feeder: threading.Thread | None = None
        self.raylet = visible_raylet()
        self.terminated = threading.Event()
        # The kernel ends the worker when the *thread* that started it ends (PR_SET_PDEATHSIG): one
        # thread for life.
        self.starts: queue.SimpleQueue[tuple[list[str], dict[str, str], Future[int]]] = (
            queue.SimpleQueue()
        )
        threading.Thread(target=self._run_starts, name="starter", daemon=True).start()
        # With several methods at once the main thread is inside Ray, where Python's handlers of
        # signals do not run: Ray 2.60 would not end on SIGTERM for as long as run lasts. The file
        # descriptor works nevertheless.
        woken, wakeup = os.pipe()
        os.set_blocking(wakeup, False)
        # An actor whose start is not on the main thread keeps Ray's behaviour.
        with contextlib.suppress(ValueError):
            signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        threading.Thread(
            target=self._await_sigterm, args=(woken,), name="signals", daemon=True
        ).start()

    def facts(self, request: dict[str, Any]) -> dict[str, Any]:
        ctx = ray.get_runtime_context()
        key = request.get("device_key", "")
        ids = ctx.get_accelerator_ids().get(key, []) if key else []
        digests = request.get("env_digests", {})
        here = {name: os.environ[name] for name in digests if name in os.environ}
        return {
            "node_id": ctx.get_node_id(),
            "node_ip": ray.util.get_node_ip_address(),
            "hostname": socket.gethostname(),
            "pid": os.getpid(),
            "actor_id": ctx.get_actor_id(),
            "device_ids": sorted(ids, key=lambda i: (0, int(i), "") if i.isdigit() else (1, 0, i)),
            "cpus": usable_cpus(),
            "differs": sorted(
                name for name, value in here.items() if env_digest(value) != digests[name]
            ),
            "has_binary": find_binary(request.get("sha256", ""), request.get("cache_hint", "")),
            "niceness": os.getpriority(os.PRIO_PROCESS, 0),
            "arch": platform.machine(),
            "python": platform.python_version(),
            "ray": ray.__version__,
        }

    def install(self, blob: bytes, sha256: str) -> dict[str, Any]:
        usable, failed = cache_dirs()
        for directory in usable:
            path = os.path.join(directory, "eagleray-" + sha256)
            if file_sha256(path) == sha256:
                return {"path": path, "cached": True}
        if hashlib.sha256(blob).hexdigest() != sha256:
            raise ValueError(f"the file changed on its way: its SHA-256 is not {sha256}")
        for directory in usable:
            try:
                return {"path": write_binary(directory, sha256, blob), "cached": False}
            except OSError as e:
                failed.append(f"{directory}: {e}")
        raise OSError("no folder can hold an executable file: " + "; ".join(failed))

    def start(self, spec: dict[str, Any], stdin: bytes) -> dict[str, Any]:
        if self.child is not None and not self.ended.is_set():
            raise RuntimeError(f"this actor's worker is running already (pid {self.child.pid})")
        env = {**spec.get("default_env", {}), **os.environ, **spec.get("set_env", {})}
        for name in [*spec.get("unset_env", []), *(n for n in env if n.startswith("RAY_AUTH_"))]:
            env.pop(name, None)
        env["EAGLERAY_PARENT_PID"] = str(os.getpid())
        env["EAGLERAY_RAYLET_PID"] = self.raylet
        started: Future[int] = Future()
        self.starts.put(([spec["path"], *spec.get("args", [])], env, started))
        pid = started.result()
        self.feeder = threading.Thread(target=self._feed, args=(stdin,), name="stdin", daemon=True)
        self.feeder.start()
        return {"pid": pid}

    def run(self) -> dict[str, Any]:
        """Lasts until the worker ends, and says how."""
        if self.child is None or self.drained is None:
            raise RuntimeError("no worker was started")
        child = self.child
        self.ended.wait()
        # A process that the worker left behind may hold the pipe open: do not wait for that.
        self.drained.join(0.2)
        code = child.returncode
        # Ray ends an actor by SIGTERM, some versions its process group with it: this process ends
        # in a moment, and what Ray says of that is the reason. The signal of the worker is none,
        # and would look like another's deed.
        if self.terminated.wait(TERM_SECONDS if code == -signal.SIGTERM else 0):
            time.sleep(LEFT_SECONDS)
        name = ""
        if code < 0:
            name = (
                signal.Signals(-code).name if -code in iter(signal.Signals) else f"signal {-code}"
            )
        return {"code": None if code < 0 else code, "signal": name, "stderr": list(self.tail)}

    def feed(self, stdin: bytes) -> dict[str, Any]:
        """Writes more to the worker's standard input, after what it was started with."""
        if self.child is None or self.feeder is None or self.ended.is_set():
            raise RuntimeError("no worker runs")
        before = self.feeder
        self.feeder = threading.Thread(
            target=self._feed, args=(stdin, before), name="stdin", daemon=True
        )
        self.feeder.start()
        return {}

    def stop(self, grace: float) -> dict[str, Any]:
        """Ends the worker: asked first, killed after the grace."""
        if self.child is None or self.feeder is None or self.ended.is_set():
            return {}
        self._signal(signal.SIGTERM)
        # Closing waits for a write that the worker does not read.
        if not self.feeder.is_alive():
            with contextlib.suppress(OSError):
                self.child.stdin.close()
        if not self.ended.wait(grace):
            self._signal(signal.SIGKILL)
            # One that is frozen, or waits for a device, does not end: it is left behind.
            self.ended.wait(KILL_SECONDS)
        return {}

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.child.send_signal(number)

    def _await_sigterm(self, woken: int) -> None:
        while signal.SIGTERM not in os.read(woken, 64):
            pass
        self.terminated.set()
        if self.child is not None and not self.ended.is_set():
            self._signal(signal.SIGKILL)
            self.ended.wait(1)
        os._exit(1)

    def _run_starts(self) -> None:
        """Starts workers, one after another, and waits for each."""
        while True:
            try:
                argv, env, started = self.starts.get(
                    timeout=IDLE_SECONDS if self.child is None else LEFT_SECONDS
                )
            except queue.Empty:
                # This actor is not wanted any more, or cannot be reached: after a partition Ray
                # leaves the actors of the lost node as they are.
                os._exit(0)
            try:
                # The same process group and session as the actor, so that Ray's own clean-up
                # reaches the worker too.
                child = subprocess.Popen(
                    argv, env=env, stdin=subprocess.PIPE, stderr=subprocess.PIPE
                )
            except Exception as e:
                started.set_exception(e)
                continue
            self.child = child
            self.ended.clear()
            self.tail.clear()
            self.drained = threading.Thread(
                target=self._drain, args=(child,), name="stderr", daemon=True
            )
            self.drained.start()
            started.set_result(child.pid)
            child.wait()
            self.ended.set()

    def _feed(self, stdin: bytes, before: threading.Thread | None = None) -> None:
        if before is not None:
            before.join()
        # The pipe stays open: its end tells the worker that its actor is gone. A write to one that
        # has ended fails, and run says why it has.
        with contextlib.suppress(OSError, ValueError):
            self.child.stdin.write(stdin)
            self.child.stdin.flush()

    def _drain(self, child: subprocess.Popen[bytes]) -> None:
        while line := child.stderr.readline(LINE_BYTES):
            text = line.decode(errors="replace").rstrip("\r\n")
            self.tail.append(text)
            # The actor's own standard error is a file of Ray's logs. The disk may be full; the
            # worker must be read all the same.
            with contextlib.suppress(OSError, ValueError):
                print(text, file=sys.stderr, flush=True)


def visible_raylet() -> str:
    """The process id of the raylet that started this actor; empty when it cannot be seen, as from a
    container."""
    pid = os.environ.get("RAY_RAYLET_PID", "")
    return pid if read_text(f"/proc/{pid}/comm").strip() == "raylet" else ""


def env_digest(value: str) -> str:
    return hashlib.sha256(os.fsencode(value)).hexdigest()


def usable_cpus() -> int:
    """How many CPUs this process may use: its affinity, and the quotas of its cgroup and those
    around it."""
    cpus = float(len(os.sched_getaffinity(0)))
    group = ""
    for line in read_text("/proc/self/cgroup").splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0" or "cpu" in controllers.split(","):
            group = path.strip("/")
    parts = group.split("/") if group else []
    for depth in range(len(parts), -1, -1):
        cpus = min(cpus, cgroup_quota("/".join(parts[:depth])))
    return max(1, math.ceil(cpus))


def cgroup_quota(group: str) -> float:
    """The CPUs that a cgroup may use, in version 2 or 1; infinite without a limit."""
    words = read_text(f"/sys/fs/cgroup/{group}/cpu.max").split()
    if not words:
        v1 = f"/sys/fs/cgroup/cpu/{group}/cpu.cfs_"
        words = read_text(v1 + "quota_us").split() + read_text(v1 + "period_us").split()
    if len(words) == 2 and words[0].isdigit() and int(words[1]) > 0:
        return int(words[0]) / int(words[1])
    return math.inf


def read_text(path: str) -> str:
    try:
        with open(path) as f:
            return f.read()
    except OSError:
        return ""


def cache_dirs() -> tuple[list[str], list[str]]:
    """The folders, made if need be, that may hold the binary: this user's cache, else a temporary
    folder, else Ray's own, which also nodes with a read-only disk have. And why others may not."""
    candidates = []
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if os.path.isabs(home):
        candidates.append(os.path.join(home, "eagleray", "bin"))
    # It raises where no temporary folder can be written to.
    with contextlib.suppress(OSError):
        candidates.append(os.path.join(tempfile.gettempdir(), f"eagleray-{os.getuid()}"))
    # That one is not ours to make: Ray lets all users write there.
    if os.path.isdir(RAY_DIR):
        candidates.append(os.path.join(RAY_DIR, f"eagleray-{os.getuid()}"))
    usable, refused = [], []
    for directory in candidates:
        try:
            os.makedirs(directory, mode=0o700, exist_ok=True)
            mode = os.stat(directory)
            noexec = os.statvfs(directory).f_flag & os.ST_NOEXEC
        except OSError as e:
            refused.append(f"{directory}: cannot be made: {e.strerror or e}")
            continue
        # A folder that others can write to could be given another file between the check of the
        # hash and the start.
        if mode.st_uid != os.getuid() or mode.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            refused.append(f"{directory}: others may write there")
        elif noexec:
            refused.append(f"{directory}: mounted noexec")
        else:
            usable.append(directory)
    return usable, refused


def find_binary(sha256: str, hint: str) -> str:
    if not sha256:
        return ""
    if hint and os.access(hint, os.X_OK) and file_sha256(hint) == sha256:
        return hint
    for directory in cache_dirs()[0]:
        path = os.path.join(directory, "eagleray-" + sha256)
        if os.access(path, os.X_OK) and file_sha256(path) == sha256:
            with contextlib.suppress(OSError):
                os.utime(path)
            return path
    return ""


def file_sha256(path: str) -> str:
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as f:
            while part := f.read(1 << 20):
                digest.update(part)
    except OSError:
        return ""
    return digest.hexdigest()


def write_binary(directory: str, sha256: str, blob: bytes) -> str:
    path = os.path.join(directory, "eagleray-" + sha256)
    fd, partial = tempfile.mkstemp(dir=directory, prefix=".partial-")
    try:
        with os.fdopen(fd, "wb") as f:
            f.write(blob)
            f.flush()
            os.fchmod(fd, 0o755)
            os.fsync(fd)
        # The name is the hash: the last of this node's actors replaces the file by the same bytes.
        os.rename(partial, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(partial)
        raise
    forget_unused(directory)
    return path


def forget_unused(directory: str) -> None:
    """Removes the binaries of a cache that have not been used for long, and what was left half
    written. One that runs keeps its file."""
    for entry in os.scandir(directory):
        if entry.name.startswith(("eagleray-", ".partial-")):
            with contextlib.suppress(OSError):
                if time.time() - entry.stat().st_mtime > UNUSED_SECONDS:
                    os.unlink(entry.path)
