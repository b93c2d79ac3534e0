"""The bridge between a Go engine and Ray: one Ray job, public Ray API only.

The engine starts it with one end of a unix socket pair and talks in messages (wire.py):

    engine:  {"id", "op", "args", "timeout"?}    {"cancel": id}    {"beat": true}
    bridge:  {"hello": {...}} first, then {"id", "result"} | {"id", "error"}, {"exit": {...}},
             {"beat": true}

Requests run at the same time. The end of the socket, or ten seconds of silence, end this process
and so the Ray job, with its actors and its placement groups; a local cluster that this process has
started is ended before. Standard output and error are log text: Ray prints there.
"""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from faults import SLICE_SECONDS, Call, fault
from wire import Wire, WireError

if TYPE_CHECKING:
    from operations import Operations

BEAT_SECONDS = 1.0
SILENCE_SECONDS = 10.0

# How long this process may outlive the engine to end the cluster that it has started.
LEAVE_SECONDS = 6.0

# Requests that may run at once. Those that wait do so without the interpreter's lock.
THREADS = 32

# Exit codes: the engine is gone; the engine sent something that is no message; Ray cannot be
# imported.
ENGINE_GONE = 3
BAD_MESSAGE = 4
NO_RAY = 5


class Bridge:
    def __init__(self, sock: socket.socket) -> None:
        self.wire = Wire(sock)
        self.pool = ThreadPoolExecutor(THREADS, thread_name_prefix="request")
        self.calls: dict[int, Call] = {}
        self.lock = threading.Lock()
        self.stopping = threading.Event()
        self.connecting = threading.Event()
        self.leaving = threading.Lock()
        self.heard = time.monotonic()
        # ray.init must run on the main thread, where it can install its signal handlers;
        # ray.shutdown beside it.
        self.main_calls: queue.SimpleQueue[Call] = queue.SimpleQueue()
        self.operations: Operations

    def run(self) -> None:
        self.hello()
        threading.Thread(target=self.read, name="reader", daemon=True).start()
        threading.Thread(target=self.beat, name="beat", daemon=True).start()
        while True:
            call = self.main_calls.get()
            if call.op == "connect":
                self.connecting.set()
            self.answer(call)
            self.connecting.clear()
            if call.op == "shutdown":
                return

    def hello(self) -> None:
        """Says which Ray this is, or why it is none."""
        hello: dict[str, Any] = {"ray": "", "python": sys.version.split()[0], "pid": os.getpid()}
        try:
            import ray

            from operations import Operations

            hello["ray"] = ray.__version__
            self.operations = Operations(self.exited, self.stopping, self.drained)
        except Exception as e:
            self.wire.send({"hello": {**hello, "error": fault(e)}})
            os._exit(NO_RAY)
        self.wire.send({"hello": hello})

    def read(self) -> None:
        """Receives until the engine is gone. Runs on its own thread, and never waits for Ray."""
        try:
            while (message := self.wire.receive()) is not None:
                self.heard = time.monotonic()
                if "op" in message:
                    self.begin(message)
                elif "cancel" in message:
                    self.cancel(message["cancel"])
        except OSError:
            pass
        except (WireError, KeyError, TypeError) as e:
            self.leave(BAD_MESSAGE, f"the engine sent no message: {e!r}")
            return
        self.leave(ENGINE_GONE)

    def leave(self, code: int, why: str = "") -> None:
        """Ends this process, and so the Ray job, at once and without clean-up. Only a cluster that
        this bridge has started is ended before, by a thread of its own: the caller may be one
        that the end has to wait for."""
        if why:
            # It is not read any more if the engine was killed.
            with contextlib.suppress(OSError):
                print(why, file=sys.stderr, flush=True)
        if not self.started():
            os._exit(code)
        if self.leaving.acquire(blocking=False):
            self.stopping.set()
            threading.Thread(
                target=self.end_cluster, args=(code,), name="leave", daemon=True
            ).start()

    def end_cluster(self, code: int) -> None:
        ending = threading.Thread(target=self.operations.end, name="end", daemon=True)
        ending.start()
        ending.join(LEAVE_SECONDS)
        os._exit(code)

    def started(self) -> bool:
        # Without Ray there are no operations.
        return hasattr(self, "operations") and self.operations.started

    def begin(self, message: dict[str, Any]) -> None:
        call = Call(
            message["id"],
            message["op"],
            message.get("args") or {},
            message.get("timeout"),
            self.stopping,
        )
        with self.lock:
            self.calls[call.id] = call
        if call.op == "shutdown":
            self.stopping.set()
            if self.connecting.is_set():
                # ray.init cannot be interrupted, and nothing was made yet.
                os._exit(0)
        if call.op in ("connect", "shutdown"):
            self.main_calls.put(call)
        else:
            self.pool.submit(self.answer, call)

    def cancel(self, number: int) -> None:
        with self.lock:
            call = self.calls.get(number)
        if call is not None:
            call.cancelled.set()

    def answer(self, call: Call) -> None:
        reply: dict[str, Any] = {"id": call.id}
        try:
            reply["result"] = self.operations.perform(call)
        except Exception as e:
            reply["error"] = fault(e)
        with self.lock:
            del self.calls[call.id]
        self.send(reply)

    def drained(self) -> bool:
        """Waits until shutdown is the only call, for as long as calls may take to notice."""
        deadline = time.monotonic() + 6 * SLICE_SECONDS
        while time.monotonic() < deadline:
            with self.lock:
                if all(call.op == "shutdown" for call in self.calls.values()):
                    return True
            time.sleep(0.01)
        return False

    def exited(self, news: dict[str, Any]) -> None:
        self.send({"exit": news})

    def send(self, message: dict[str, Any]) -> None:
        try:
            self.wire.send(message)
        except OSError:
            self.leave(ENGINE_GONE)
        except (WireError, ValueError) as e:
            self.wire.send({"id": message.get("id", 0), "error": fault(e)})

    def beat(self) -> None:
        """Shows the engine that this process lives, and ends it if the engine does not."""
        before = time.monotonic()
        while True:
            time.sleep(BEAT_SECONDS)
            self.send({"beat": True})
            now = time.monotonic()
            if now - before > 3 * BEAT_SECONDS:
                # This process itself was held up (stopped, or inside Ray): the engine could not be
                # heard.
                self.heard = now
            before = now
            if now - self.heard > SILENCE_SECONDS:
                self.leave(ENGINE_GONE, f"the engine has been silent for {SILENCE_SECONDS:.0f} s")


def main(fd: int) -> None:
    code = 1
    # A process that Ray starts must not hold the connection open.
    os.set_inheritable(fd, False)
    bridge = Bridge(socket.socket(fileno=fd))
    try:
        bridge.run()
        code = 0
    except SystemExit as e:
        # Ray's handler of SIGTERM, which ray.init installs, raises this on the main thread.
        code = e.code if isinstance(e.code, int) else 1
    except BaseException as e:
        print(f"the bridge failed: {e!r}", file=sys.stderr, flush=True)
    # Not through the interpreter's end: that waits for threads which may be inside Ray.
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    bridge.leave(code)
    while True:
        # Another thread ends the cluster first, and then the process.
        time.sleep(SILENCE_SECONDS)
