"""The engine's process, and requests to it."""

from __future__ import annotations

import itertools
import json
import os
import socket
import struct
import subprocess
import threading
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Optional, Protocol

from . import _binary, errors

_LENGTH = struct.Struct(">I")


class Receiver(Protocol):
    """Takes what comes of a request, on the thread that reads the socket: it must not wait."""

    def event(self, event: dict[str, Any]) -> None:
        """Take an event of a stream."""

    def answer(self, status: int, body: Any) -> None:
        """Take the answer, or the end of a stream. Nothing comes after it."""

    def fail(self, error: errors.EagleRayError) -> None:
        """Take the end of the engine, in place of an answer."""


class Engine:
    """An engine in a process of its own, which ends with this one. Any thread may use it."""

    def __init__(self, arguments: Sequence[str]) -> None:
        """Start it, and wait until it answers.

        Raises ConfigError when an argument is wrong, EngineDeadError when it does not start,
        FileNotFoundError when there is no binary.
        """
        command = [os.fspath(_binary.find()), "attach", *arguments]
        ours, theirs = socket.socketpair()
        self._socket = ours
        self._owner = os.getpid()
        self._sending = threading.Lock()
        self._ids = itertools.count(1)
        self._lock = threading.Lock()  # of the three below
        self._receivers: dict[int, Receiver] = {}
        self._process: Optional[subprocess.Popen[bytes]] = None
        self._end: Optional[errors.EagleRayError] = None
        self._started = threading.Event()
        self._ended = threading.Event()
        self.ready: dict[str, Any] = {}
        # The process ends with the thread that starts it (its parent-death signal): the one that
        # reads from it, to its end.
        self._thread = threading.Thread(
            target=self._run, args=(command, theirs), name="eagleray", daemon=True
        )
        _engines.add(self)
        self._thread.start()
        try:
            self._started.wait()
        except BaseException:
            self.close()
            raise
        if self._end is not None:
            self._ended.wait()
            raise self._dead()

    @property
    def pid(self) -> Optional[int]:
        """The id of the process, None once it has ended."""
        process = self._process
        return None if process is None or self._ended.is_set() else process.pid

    def send(
        self,
        route: str,
        body: Optional[Mapping[str, Any]],
        receiver: Receiver,
        method: str = "POST",
    ) -> int:
        """Ask a route, and return the id of the request. Raises EngineDeadError."""
        number, frame = self.begin(route, body, receiver, method)
        self.write(frame)
        return number

    def begin(
        self,
        route: str,
        body: Optional[Mapping[str, Any]],
        receiver: Receiver,
        method: str = "POST",
    ) -> tuple[int, bytes]:
        """Return the id of a request and what to write for it: several go together in one write.

        Raises EngineDeadError, BadRequestError of one that is too long, and what json does.
        """
        number = next(self._ids)
        message: dict[str, Any] = {"id": number, "method": method, "route": route}
        if body is not None:
            message["body"] = body
        frame = _frame(message)
        if self.ready and len(frame) > self.ready["max_body"]:
            raise errors.BadRequestError(
                f"a request of {len(frame)} bytes is longer than {self.ready['max_body']} bytes "
                "(max_request_body_bytes)",
                413,
            )
        with self._lock:
            if os.getpid() != self._owner:
                raise errors.EngineDeadError(
                    f"the engine belongs to process {self._owner}, which forked this one"
                )
            if self._end is not None:
                raise self._dead()
            self._receivers[number] = receiver
        return number, frame

    def write(self, frames: bytes) -> None:
        """Write what ``begin`` returned."""
        try:
            with self._sending:
                self._socket.sendall(frames)
        except OSError:
            pass  # the reader finds the end, and tells every receiver

    def cancel(self, number: int) -> None:
        """End the wait for a request. Its receiver takes nothing after this."""
        with self._lock:
            waited = self._receivers.pop(number, None) is not None and self._end is None
        if waited:
            self.write(_frame({"cancel": number}))

    def close(self, timeout: float = 30) -> None:
        """End the process, and wait for it. Requests that are running fail."""
        if os.getpid() != self._owner:
            return
        self._stop(errors.EngineDeadError("the engine was closed"))
        if threading.current_thread() is not self._thread and not self._ended.wait(timeout):
            process = self._process
            if process is not None:
                process.kill()
            self._ended.wait(timeout)

    def _run(self, command: list[str], theirs: socket.socket) -> None:
        cause: Optional[errors.EagleRayError] = None
        try:
            with theirs:
                self._process = subprocess.Popen(command, stdin=theirs.fileno())
            cause = self._read()
        except ConnectionError:
            pass  # it has ended with requests unread: the process says how
        except OSError as err:
            cause = errors.EngineDeadError(f"{command[0]}: {err}")
        except Exception as err:  # a caller must not wait for a thread that is gone
            cause = errors.EngineDeadError(f"the engine's answers are not understood: {err!r}")
        self._shut()
        if self._process is not None:
            code = self._process.wait()
            cause = cause or errors.EngineDeadError(f"the engine's process ended: {_exit(code)}")
        self._stop(cause or errors.EngineDeadError("the engine did not start"))
        with self._sending:
            self._socket.close()
        self._ended.set()

    def _read(self) -> Optional[errors.EagleRayError]:
        """Read until the end, and return what the engine said it was."""
        with self._socket.makefile("rb", buffering=1 << 16) as file:
            while True:
                head = file.read(_LENGTH.size)
                if len(head) < _LENGTH.size:
                    return None
                (length,) = _LENGTH.unpack(head)
                raw = file.read(length)
                if len(raw) < length:
                    return None
                failed = self._take(json.loads(raw))
                if failed is not None:
                    return failed

    def _take(self, message: dict[str, Any]) -> Optional[errors.EagleRayError]:
        number = message.get("id")
        if number is None:
            if "ready" in message:
                self.ready = message["ready"]
                self._started.set()
                return None
            failed = message["failed"]
            kind = errors.ConfigError if failed["usage"] else errors.EngineDeadError
            return kind(failed["message"])
        event = message.get("event")
        with self._lock:
            receivers = self._receivers
            receiver = receivers.get(number) if event else receivers.pop(number, None)
        if receiver is None:
            return None  # cancelled
        if event:
            receiver.event(event)
        else:
            receiver.answer(message["status"], message.get("body"))
        return None

    def _stop(self, error: errors.EagleRayError) -> None:
        """Fail everything that waits, and everything to come."""
        with self._lock:
            if self._end is None:
                self._end = error
            waiting, self._receivers = self._receivers, {}
        for receiver in waiting.values():
            receiver.fail(self._dead())
        self._shut()
        self._started.set()

    def _shut(self) -> None:
        """End the connection, and by that the process."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it has ended

    def _dead(self) -> errors.EagleRayError:
        """Return why nothing answers, a new exception for each that it is raised in."""
        end = self._end or errors.EngineDeadError("the engine has ended")
        return type(end)(*end.args)

    def _forked(self) -> None:
        """Let go of the socket in a child of this process: the engine must see this one's end."""
        fd = self._socket.detach()
        if fd >= 0:
            os.close(fd)


def _frame(message: Mapping[str, Any]) -> bytes:
    text = json.dumps(message, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    raw = text.encode()
    return _LENGTH.pack(len(raw)) + raw


def _exit(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"


_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


def _after_fork() -> None:
    for engine in list(_engines):
        engine._forked()


os.register_at_fork(after_in_child=_after_fork)
