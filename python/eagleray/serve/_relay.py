"""Requests to an engine's socket, byte for byte, on an event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Optional

import httptools

from ..errors import EngineDeadError

Headers = list[tuple[bytes, bytes]]

# What has come and was not read; beyond it the engine waits.
_HIGH_WATER = 256 * 1024

# Headers that concern a connection and not the message (RFC 9110, 7.6.1), and those that are
# written anew.
_OWN_HEADERS = frozenset(
    (
        b"connection",
        b"content-length",
        b"expect",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)


def encode(line: bytes, headers: Headers, body: bytes) -> bytes:
    """Return a message as HTTP writes it: its first line, headers, an empty line, the body."""
    return b"\r\n".join((line, *(k + b": " + v for k, v in headers), b"", body))


def decode(message: bytes) -> tuple[bytes, Headers, bytes]:
    """Return the first line, the headers and the body of a message that ``encode`` has made."""
    head, _, body = message.partition(b"\r\n\r\n")
    line, *lines = head.split(b"\r\n")
    pairs = (line.partition(b": ") for line in lines)
    return line, [(name, value) for name, _, value in pairs], body


class UnaskedError(EngineDeadError):
    """The engine had ended before a request got to it."""


class Engine:
    """The HTTP API of an engine at a unix socket. Of one event loop."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._idle: deque[_Connection] = deque()
        self._called: dict[_Connection, bytes] = {}

    async def ask(
        self,
        method: bytes,
        target: bytes,
        headers: Iterable[tuple[bytes, bytes]],
        body: bytes,
        caller: bytes = b"",
    ) -> Answer:
        """Send a request, and return its answer once its head is there.

        ``caller`` is for :meth:`end`. Raises EngineDeadError when no engine answers.
        """
        head = [method + b" " + target + b" HTTP/1.1\r\n"]
        named = False
        for name, value in headers:
            if name not in _OWN_HEADERS:
                head.append(name + b": " + value + b"\r\n")
                named = named or name == b"host"
        if not named:
            head.append(b"host: localhost\r\n")
        head.append(b"content-length: %d\r\n\r\n" % len(body))
        request = b"".join(head) + body
        while True:
            connection, used = await self._connection()
            if caller:
                self._called[connection] = caller
            try:
                await connection.send(request, bodiless=method == b"HEAD")
            except EngineDeadError:
                self.drop(connection)
                if used:
                    continue  # the engine has closed one that was idle
                raise
            except BaseException:
                self.drop(connection)
                raise
            return Answer(self, connection)

    async def _connection(self) -> tuple[_Connection, bool]:
        while self._idle:
            connection = self._idle.pop()
            if connection.usable():
                return connection, True
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_unix_connection(_Connection, self._path)
        except OSError as e:
            raise UnaskedError(f"the engine's socket: {e}") from None
        return connection, False

    def keep(self, connection: _Connection) -> None:
        """Take a connection back whose answer is complete."""
        self._called.pop(connection, None)
        if connection.usable():
            self._idle.append(connection)
        else:
            connection.abort()

    def drop(self, connection: _Connection) -> None:
        """Close a connection, which ends its request."""
        self._called.pop(connection, None)
        connection.abort()

    def callers(self) -> set[bytes]:
        """Return who has asked what is under way."""
        return set(self._called.values())

    def end(self, callers: set[bytes]) -> None:
        """End requests of callers that are gone: who waits for them gets a CancelledError."""
        if not callers:
            return
        for connection, caller in list(self._called.items()):
            if caller in callers:
                connection.cancel()

    def close(self) -> None:
        """Close the connections that are idle."""
        while self._idle:
            self._idle.pop().abort()


class Answer:
    """An answer: read it to its end, or close it, which ends the request."""

    def __init__(self, engine: Engine, connection: _Connection) -> None:
        self._engine = engine
        self._connection: Optional[_Connection] = connection
        self.status = connection.status
        self.headers = connection.headers

    @property
    def streamed(self) -> bool:
        """Whether it is a stream of events."""
        return any(k == b"content-type" and b"event-stream" in v for k, v in self.headers)

    async def read(self) -> bytes:
        """Return what has come, b"" at the end. Raises EngineDeadError when it was cut."""
        if self._connection is None:
            return b""
        data = await self._connection.read()
        if self._connection.complete and not self._connection.buffered:
            self._engine.keep(self._connection)
            self._connection = None
        return data

    async def read_all(self) -> bytes:
        """Return the whole of it."""
        parts = []
        while part := await self.read():
            parts.append(part)
        return b"".join(parts)

    @property
    def complete(self) -> bool:
        """Whether there is nothing more to read."""
        return self._connection is None

    def close(self) -> None:
        """Give the rest of it up."""
        if self._connection is not None:
            self._engine.drop(self._connection)
            self._connection = None


class _Connection(asyncio.Protocol):
    """One connection, with one request at a time."""

    def __init__(self) -> None:
        self._transport: Optional[asyncio.Transport] = None
        self._waiter: Optional[asyncio.Future[None]] = None
        self._lost = False
        self._cancelled = False
        self._clear(False)

    def _clear(self, bodiless: bool) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._bodiless = bodiless
        self._headed = False
        self._kept = True
        self._chunks: list[bytes] = []
        self._paused = False
        self.buffered = 0
        self.complete = False
        self.status = 0
        self.headers: Headers = []

    def usable(self) -> bool:
        """Say whether another request may be sent."""
        return (
            self._transport is not None
            and not self._lost
            and not self._transport.is_closing()
            and (not self._headed or (self.complete and self._kept))
            and not self._bodiless
        )

    async def send(self, request: bytes, bodiless: bool) -> None:
        """Write a request, and wait for the head of its answer."""
        self._clear(bodiless)
        assert self._transport is not None
        self._transport.write(request)
        while not self._headed:
            await self._wait()

    async def read(self) -> bytes:
        """Return what has come, b"" at the end."""
        while not self._chunks and not self.complete:
            await self._wait()
        data = b"".join(self._chunks)
        self._chunks.clear()
        self.buffered = 0
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        return data

    async def _wait(self) -> None:
        if self._cancelled:
            raise asyncio.CancelledError
        if self._lost:
            raise EngineDeadError("the engine has ended")
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def abort(self) -> None:
        """Close it at once."""
        if self._transport is not None:
            self._transport.abort()

    def cancel(self) -> None:
        """Close it as if the task that waits for the answer had been cancelled."""
        self._cancelled = True
        self.abort()

    # asyncio.Protocol.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._lost = True
            self.abort()
        self._wake()

    def connection_lost(self, exc: Optional[Exception]) -> None:
        self._lost = True
        self._wake()

    # The parser's calls.

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        self._headed = True
        if self._bodiless:
            self.complete = True

    def on_body(self, body: bytes) -> None:
        self._chunks.append(body)
        self.buffered += len(body)
        if self.buffered > _HIGH_WATER and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        self.complete = True
        # Afterwards the parser no longer knows.
        self._kept = self._parser.should_keep_alive()
