"""The engine of a replica: a child process with a socket of its own."""

from __future__ import annotations

import contextlib
import http.client
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Optional

from .. import _binary
from ..errors import ConfigError, EngineDeadError

# The last lines of the engine's log, which explain its end.
_TAIL_LINES = 20
_LINE_BYTES = 4096

# What the binary exits with when a flag is wrong.
_EXIT_USAGE = 2

# How many connections may wait for the engine.
_BACKLOG = 4096

# How often a start looks for the socket.
_POLL_SECONDS = 0.01

# How long an engine without requests may take to end.
_STOP_SECONDS = 30.0


def check(arguments: Sequence[str]) -> None:
    """Find what is wrong with an engine's flags and its model's files, without starting it.

    What memory this machine has does not matter: replicas are placed on others, too.

    Raises ConfigError with the engine's line, FileNotFoundError without a binary.
    """
    command = [os.fspath(_binary.find()), "serve", *arguments, "--check=elsewhere"]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=120
    )
    if done.returncode != 0:
        raise ConfigError(_said(done.stderr.decode(errors="replace").splitlines()))


class Process:
    """An engine in a process of its own, which ends with this one, however that ends."""

    def __init__(
        self, arguments: Sequence[str], env: Mapping[str, str], token: Optional[str] = None
    ) -> None:
        """Start it, and wait until it serves.

        ``token`` is the secret of ``--cluster-token-file``: the file is memory that only the engine
        inherits, and has no name.
        Raises ConfigError when an argument is wrong, EngineDeadError when it does not start.
        """
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._ended = threading.Event()
        self._on_end: Optional[Callable[[], None]] = None
        self._code = 0
        command = [os.fspath(_binary.find()), "serve", *arguments]
        listens, self._socket = _listen()
        command.append(f"--uds=/dev/fd/{listens}")
        handed = [listens]
        if token is not None:
            handed.append(_memory(token))
            command.append(f"--cluster-token-file=/proc/self/fd/{handed[1]}")
        started: queue.SimpleQueue[object] = queue.SimpleQueue()
        # The kernel ends the process with the thread that starts it (its parent-death signal).
        threading.Thread(
            target=self._run,
            args=(command, {**env, "EAGLERAY_PARENT_PID": str(os.getpid())}, handed, started),
            name="eagleray",
            daemon=True,
        ).start()
        try:
            result = started.get()
            if isinstance(result, BaseException):
                raise result
            self._await_ready()
        except BaseException:
            self.stop()
            raise

    @property
    def path(self) -> str:
        """The path at which this process reaches the engine's socket."""
        return f"/proc/self/fd/{self._socket}"

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._child.pid

    def when_ended(self, then: Callable[[], None]) -> None:
        """Have a function called, on another thread, when the engine ends before it is stopped."""
        self._on_end = then
        if self._ended.is_set():
            then()

    def check(self) -> None:
        """Raise EngineDeadError, with the engine's last words, when it has ended."""
        if self._ended.is_set():
            raise self._dead()

    def stop(self) -> None:
        """End the engine, and wait for it. Requests that are running may finish."""
        self._on_end = None
        if not hasattr(self, "_child"):
            return
        with contextlib.suppress(ProcessLookupError):
            self._child.send_signal(signal.SIGTERM)
        if not self._ended.wait(_STOP_SECONDS):
            self._child.kill()
            self._ended.wait()

    def _run(
        self,
        command: list[str],
        env: dict[str, str],
        handed: list[int],
        started: queue.SimpleQueue[object],
    ) -> None:
        try:
            # Standard input stays open for as long as this process lives: its end is the engine's.
            self._child = subprocess.Popen(
                command,
                env=env,
                stdin=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=handed,
            )
        except OSError as e:
            started.put(EngineDeadError(f"{command[0]}: {e.strerror or e}"))
            return
        finally:
            # The engine's end is that of the socket, too.
            for fd in handed:
                os.close(fd)
        started.put(None)
        assert self._child.stderr is not None
        while line := self._child.stderr.readline(_LINE_BYTES):
            text = line.decode(errors="replace").rstrip("\r\n")
            self._tail.append(text)
            # A replica's own standard error is a file of Ray's logs. The disk may be full; the
            # engine must be read all the same.
            with contextlib.suppress(OSError, ValueError):
                print(text, file=sys.stderr, flush=True)
        self._code = self._child.wait()
        self._ended.set()
        then = self._on_end
        if then is not None:
            then()

    def _await_ready(self) -> None:
        while not self._ended.is_set():
            try:
                with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as s:
                    s.connect(self.path)
                    # It is answered once the engine serves, or broken when it ends.
                    s.sendall(
                        b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
                    )
                    answer = http.client.HTTPResponse(s)
                    answer.begin()
                    text = answer.read().decode(errors="replace")
                    if answer.status == 200:
                        return
                    self._tail.append(text)
            except (OSError, http.client.HTTPException):
                pass
            time.sleep(_POLL_SECONDS)
        raise self._dead()

    def _dead(self) -> ConfigError | EngineDeadError:
        said = _said(self._tail)
        if self._code == _EXIT_USAGE:
            return ConfigError(said)
        how = f"exit code {self._code}"
        if self._code < 0:
            how = signal.Signals(-self._code).name
        return EngineDeadError(f"the engine has ended ({how}): {said}")


def _listen() -> tuple[int, int]:
    """Return a unix socket that listens, and what reaches it, which is no connection yet.

    Only this user's processes could get to it while it had a name. From here on it has none that
    could be left behind, however this process ends.
    """
    # The name is short: the kernel takes 107 bytes.
    folder = tempfile.mkdtemp(prefix="eagleray-", dir="/tmp")
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as s:
            path = os.path.join(folder, "s")
            s.bind(path)
            s.listen(_BACKLOG)
            reach = os.open(path, os.O_PATH | os.O_CLOEXEC)
            return s.detach(), reach
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _memory(text: str) -> int:
    """Return a file of memory with a text."""
    fd = os.memfd_create("eagleray-token")
    os.write(fd, text.encode())
    return fd


def _said(lines: Sequence[str] | deque[str]) -> str:
    """Return the line that says why a process ended, or its last ones."""
    for line in reversed(lines):
        if line.startswith("eagleray: "):
            return line
    return "\n".join(list(lines)[-5:])
