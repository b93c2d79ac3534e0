"""The wire format between the engine and its Ray bridge.

A message is one JSON object, sent as a 4-byte big-endian length and that many bytes, over a unix
socket.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
from typing import Any

MAX_LENGTH = 16 << 20
HEAD = struct.Struct(">I")


class WireError(Exception):
    """The stream holds something that is no message; it is of no use any more."""


def encode(message: dict[str, Any]) -> bytes:
    """Returns the frame of a message."""
    body = json.dumps(message, separators=(",", ":"), allow_nan=False).encode()
    if len(body) > MAX_LENGTH:
        raise WireError(f"frame length out of range: {len(body)} bytes")
    return HEAD.pack(len(body)) + body


class Wire:
    """One end of the connection. Any thread may send, one thread receives."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.sending = threading.Lock()

    def send(self, message: dict[str, Any]) -> None:
        data = encode(message)
        with self.sending:
            self.sock.sendall(data)

    def receive(self) -> dict[str, Any] | None:
        """Returns the next message, or None at the end of the stream."""
        head = self._read(HEAD.size)
        if head is None:
            return None
        (length,) = HEAD.unpack(head)
        if not 0 < length <= MAX_LENGTH:
            raise WireError(f"frame length out of range: {length} bytes")
        body = self._read(length)
        if body is None:
            return None
        try:
            message = json.loads(body)
        except ValueError as e:
            raise WireError(f"frame is not JSON: {e}") from None
        if not isinstance(message, dict):
            raise WireError("frame is not a JSON object")
        return message

    def _read(self, length: int) -> bytes | None:
        parts = []
        while length > 0:
            part = self.sock.recv(min(length, 1 << 16))
            if not part:
                return None
            parts.append(part)
            length -= len(part)
        return b"".join(parts)
