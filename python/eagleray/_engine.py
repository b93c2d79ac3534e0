"""The engine's process: ``eagleray serve`` on a socket that nothing but this process reaches."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Callable, Optional

from . import _binary
from .errors import ConfigError, EagleRayError, EngineDeadError

# How many connections may wait for the engine.
_BACKLOG = 4096


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
        lines = done.stderr.decode(errors="replace").splitlines()
        said = [line for line in lines if line.startswith("eagleray: ")]
        raise ConfigError(said[-1] if said else "\n".join(lines[-5:]))


class Engine:
    """An engine in a process of its own, which ends with this one, however that ends."""

    def __init__(
        self,
        arguments: Sequence[str],
        env: Optional[Mapping[str, str]] = None,
        token: Optional[str] = None,
        private: bool = True,
    ) -> None:
        """Start it, and wait until it answers.

        A private one does what this process's user may, and has no keys; what is asked of another
        one may come from others. ``token`` is the secret of ``--cluster-token-file``: the file is
        memory that only the engine inherits, and has no name.

        Raises ConfigError when an argument is wrong, EngineDeadError when it does not start,
        FileNotFoundError when there is no binary.
        """
        command = [os.fspath(_binary.find()), "serve", *arguments]
        environment = dict(os.environ if env is None else env)
        # It ends with this process, and says on standard output how it is.
        environment["EAGLERAY_PARENT_PID"] = str(os.getpid())
        self._owner = os.getpid()
        self._lock = threading.Lock()  # of what the end calls
        self._when_ended: list[Callable[[], None]] = []
        self._end: Optional[EagleRayError] = None
        self._process: Optional[subprocess.Popen[bytes]] = None
        self._started = threading.Event()
        self._ended = threading.Event()
        self.ready: dict[str, Any] = {}
        """What the engine said of itself."""
        listens, self._socket = _listen()
        handed = [listens]
        if private:
            environment["EAGLERAY_PARENT_SOCKET"] = str(listens)
        else:
            command.append(f"--uds=/dev/fd/{listens}")
        if token is not None:
            handed.append(_memory(token))
            command.append(f"--cluster-token-file=/proc/self/fd/{handed[1]}")
        # The kernel ends the process with the thread that starts it (its parent-death signal).
        self._thread = threading.Thread(
            target=self._run, args=(command, environment, handed), name="eagleray", daemon=True
        )
        self._thread.start()
        try:
            self._started.wait()
        except BaseException:
            self.close()
            raise
        if not self.ready:
            self._thread.join()
            self.close()
            raise self.dead()

    @property
    def path(self) -> str:
        """The path at which this process reaches the engine's socket."""
        return f"/proc/self/fd/{self._socket}"

    @property
    def pid(self) -> Optional[int]:
        """The id of the process, None once it has ended."""
        process = self._process
        return None if process is None or self._ended.is_set() else process.pid

    @property
    def ended(self) -> bool:
        """Whether the process has ended."""
        return self._ended.is_set()

    @property
    def owned(self) -> bool:
        """Whether this process has started it, and is no fork of the one that has."""
        return os.getpid() == self._owner

    def when_ended(self, then: Callable[[], None]) -> None:
        """Have a function called when the process has ended, on another thread or at once."""
        with self._lock:
            if not self._ended.is_set():
                self._when_ended.append(then)
                return
        then()

    def wait_ended(self, timeout: float) -> bool:
        """Wait for the end of the process, and say whether it has come."""
        return self._ended.wait(timeout)

    def check(self) -> None:
        """Raise EngineDeadError, with the reason, when it has ended."""
        if not self.owned:
            raise EngineDeadError(
                f"the engine belongs to process {self._owner}, which forked this one"
            )
        if self._end is not None:
            raise self.dead()

    def dead(self) -> EagleRayError:
        """Return why nothing answers, a new exception for each that it is raised in."""
        end = self._end or EngineDeadError("the engine has ended")
        return type(end)(*end.args)

    def end(self, reason: EagleRayError) -> None:
        """End the process, soon. Requests whose connections are open may finish."""
        self._note(reason)
        process = self._process
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)

    def close(self, timeout: float = 30) -> None:
        """End the process, and wait for it. Requests whose connections are open may finish."""
        if not self.owned:
            return
        self.end(EngineDeadError("the engine was closed"))
        if threading.current_thread() is not self._thread:
            if not self._ended.wait(timeout) and self._process is not None:
                self._process.kill()
            self._thread.join()
        reach, self._socket = self._socket, -1
        if reach >= 0:
            os.close(reach)

    def _note(self, reason: EagleRayError) -> None:
        """Take why nothing answers any more: the first reason counts."""
        with self._lock:
            if self._end is None:
                self._end = reason

    def _run(self, command: list[str], env: dict[str, str], handed: list[int]) -> None:
        try:
            # Standard input stays open for as long as this process lives: its end is the engine's.
            self._process = subprocess.Popen(
                command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=handed
            )
        except OSError as e:
            self._finish(EngineDeadError(f"{command[0]}: {e.strerror or e}"))
            return
        finally:
            # The engine's end is that of the socket, too.
            for fd in handed:
                os.close(fd)
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        if self._end is not None:
            self.end(self._end)  # it was closed before it began
        with process.stdin, process.stdout:
            for line in process.stdout:
                self._take(line)
            code = process.wait()
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        self._finish(EngineDeadError(f"the engine's process ended: {how}"))

    def _finish(self, reason: EagleRayError) -> None:
        self._note(reason)
        with self._lock:
            self._ended.set()
            calls, self._when_ended = self._when_ended, []
        for call in calls:
            call()
        self._started.set()

    def _take(self, line: bytes) -> None:
        """Take what the engine says of itself."""
        try:
            said = json.loads(line)
        except ValueError:
            return  # of a library, or of a program that is none of ours
        if "ready" in said:
            self.ready = said["ready"]
            self._started.set()
            return
        failed = said["failed"]
        kind = ConfigError if failed["usage"] else EngineDeadError
        self._note(kind(failed["message"]))


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
