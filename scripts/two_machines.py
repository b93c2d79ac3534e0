"""Two machines on one: network namespaces joined by a cable. It is for root, on Linux."""

from __future__ import annotations

import ctypes
import os
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

_NEWNET = 0x40000000
HERE, THERE = "10.0.0.1", "10.0.0.2"

_TAKER = """
import os, socket, ssl, sys
listener = socket.create_server((sys.argv[1], 0))
print(listener.getsockname()[1], flush=True)
for line in sys.stdin:
    connection, _ = listener.accept()
    if line.strip():
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(line.strip())
        connection = context.wrap_socket(connection, server_side=True)
    memory, into = os.memfd_create("copy"), memoryview(bytearray(1 << 20))
    left = int(connection.recv(20))
    while left > 0:
        count = connection.recv_into(into)
        os.write(memory, into[:count])
        left -= count
    connection.sendall(b".")
    connection.close()
    os.close(memory)
"""


class TwoMachines:
    """Moves this process to one machine, and makes another one with processes of its own."""

    def __init__(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "no network namespace can be made here")
        flags = ["--net", "--pid", "--fork", "--mount-proc", "--kill-child"]
        self._holder = subprocess.Popen(["unshare", *flags, "sleep", "infinity"])
        self._inside = self._wait_for_child()
        for line in (
            f"link add eth0 type veth peer name eth0 netns {self._inside}",
            f"addr add {HERE}/24 dev eth0",
            "link set lo up",
            "link set eth0 up",
        ):
            subprocess.run(["ip", *line.split()], check=True)
        for line in (f"addr add {THERE}/24 dev eth0", "link set lo up", "link set eth0 up"):
            subprocess.run(self.there(["ip", *line.split()]), check=True)
        self._taker = subprocess.Popen(
            self.there([sys.executable, "-c", _TAKER, THERE]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._taker.stdout is not None
        self._port = int(self._taker.stdout.readline())

    def _wait_for_child(self) -> int:
        own = os.readlink("/proc/self/ns/net")
        children = Path(f"/proc/{self._holder.pid}/task/{self._holder.pid}/children")
        while True:
            for pid in children.read_text().split():
                command = Path(f"/proc/{pid}/cmdline").read_bytes()
                if command.startswith(b"sleep") and os.readlink(f"/proc/{pid}/ns/net") != own:
                    return int(pid)
            time.sleep(0.01)

    def there(self, command: Sequence[str]) -> list[str]:
        """Return the command that runs one on the other machine."""
        spaces = (f"--{n}=/proc/{self._inside}/ns/{f}" for n, f in _SPACES)
        return ["nsenter", *spaces, *command]

    def sent(self) -> int:
        """Return how many bytes have gone to the other machine."""
        for line in Path("/proc/self/net/dev").read_text().splitlines():
            name, _, counts = line.partition(":")
            if name.strip() == "eth0":
                return int(counts.split()[8])
        raise RuntimeError("there is no cable")

    def copy(self, parts: Sequence[bytes], secure: bool) -> float:
        """Return how long bytes take into new memory of the other machine, under TLS or not."""
        assert self._taker.stdin is not None
        with tempfile.TemporaryDirectory() as folder:
            pem = os.path.join(folder, "pem")
            if secure:
                request = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=x"
                command = ["openssl", *request.split(), "-keyout", pem, "-out", pem + ".cert"]
                subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
                with open(pem, "a") as file:
                    file.write(Path(pem + ".cert").read_text())
            self._taker.stdin.write((pem if secure else "") + "\n")
            self._taker.stdin.flush()
            begun = time.monotonic()
            connection = socket.create_connection((THERE, self._port))
            if secure:
                context = ssl.create_default_context(cafile=pem)
                context.check_hostname = False
                connection = context.wrap_socket(connection)
            with connection:
                connection.sendall(b"%20d" % sum(map(len, parts)))
                for part in parts:
                    for at in range(0, len(part), 1 << 20):
                        connection.sendall(memoryview(part)[at : at + (1 << 20)])
                connection.recv(1)
            return time.monotonic() - begun

    def close(self) -> None:
        """End the other machine and all that runs there."""
        self._taker.kill()
        self._holder.kill()
        self._taker.wait()
        self._holder.wait()


_SPACES = (("net", "net"), ("mount", "mnt"), ("pid", "pid"))
