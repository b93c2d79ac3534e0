"""HTTP to an engine's socket, over connections that are kept, on an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import deque
from collections.abc import AsyncGenerator, Iterable
from typing import Optional, Protocol, cast

from .errors import EngineDeadError

Headers = list[tuple[bytes, bytes]]

# How much is read at a time.
_READ_BYTES = 64 * 1024

# The longest head of an answer.
_MAX_HEAD_BYTES = 1 << 20

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


def request_of(
    method: bytes, target: bytes, headers: Iterable[tuple[bytes, bytes]], body: bytes
) -> bytes:
    """Return a request as it is sent. Headers of another connection are left out."""
    head = [method + b" " + target + b" HTTP/1.1\r\n"]
    named = False
    for name, value in headers:
        if name not in _OWN_HEADERS:
            head.append(name + b": " + value + b"\r\n")
            named = named or name == b"host"
    if not named:
        head.append(b"host: localhost\r\n")
    head.append(b"content-length: %d\r\n\r\n" % len(body))
    return b"".join(head) + body


class UnaskedError(EngineDeadError):
    """The engine had ended before anything of a request was sent to it."""


class Receiver(Protocol):
    """Takes an answer as it comes, on the event loop."""

    def head(self, status: int, headers: Headers) -> None:
        """Take the head."""

    def data(self, part: bytes) -> None:
        """Take some of the body."""

    def end(self) -> None:
        """Take the end. Nothing comes after it."""

    def fail(self, error: EngineDeadError) -> None:
        """Take the end of the connection, before that of the answer."""


class Exchange:
    """A request, and the connection it was sent over."""

    def __init__(self, request: bytes, receiver: Receiver) -> None:
        self.request, self.receiver = request, receiver
        self.bodiless = request.startswith(b"HEAD ")
        self.connection: Optional[_Connection] = None
        self.sent = False
        self.over = False

    def close(self) -> None:
        """Give the answer up, which ends the request. The receiver takes nothing any more."""
        self.over = True
        if self.connection is not None:
            self.connection.abort()

    def pause(self) -> None:
        """Read nothing more for now."""
        if self.connection is not None:
            self.connection.transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        if self.connection is not None:
            self.connection.transport.resume_reading()


class Client:
    """Connections to an engine's socket. Of one event loop."""

    def __init__(self, path: str, room: Optional[int] = None, most: Optional[int] = None) -> None:
        """Have at most so many connections, and so many bytes of an answer that are not read.

        Requests for which there is no connection wait for one, in order.
        """
        self._path = path
        self._room, self.most = room, most
        self.buffer = memoryview(bytearray(_READ_BYTES))  # of what is read now
        self._connections = 0
        self._waiting: deque[Exchange] = deque()
        self._idle: deque[_Connection] = deque()
        self._called: dict[Answer, bytes] = {}
        self._opening: set[asyncio.Task[None]] = set()

    def send(self, request: bytes, receiver: Receiver) -> Exchange:
        """Send what ``request_of`` returned."""
        exchange = Exchange(request, receiver)
        self._begin(exchange)
        return exchange

    def start(self, request: bytes) -> Answer:
        """Send what ``request_of`` returned, and return its answer, of which nothing is there."""
        answer = Answer(self)
        answer.exchange = self.send(request, answer)
        return answer

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
        answer = self.start(request_of(method, target, headers, body))
        if caller:
            self._called[answer] = caller
        try:
            await answer.wait_head()
        except BaseException:
            answer.close()
            raise
        return answer

    def callers(self) -> set[bytes]:
        """Return the callers of what is under way."""
        return set(self._called.values())

    def end(self, callers: set[bytes]) -> None:
        """End requests of callers that are gone: a CancelledError for the tasks that wait."""
        if not callers:
            return
        for answer, caller in list(self._called.items()):
            if caller in callers:
                answer.abort(asyncio.CancelledError())

    def forget(self, answer: Answer) -> None:
        """Take an answer that is over off those of callers."""
        self._called.pop(answer, None)

    def close(self) -> None:
        """Close the connections that are idle."""
        while self._idle:
            self._idle.pop().abort()

    async def close_with_loop(self) -> None:
        """Have connections closed when the event loop ends, as ``asyncio.run`` ends one."""

        async def until_the_end() -> AsyncGenerator[None, None]:
            try:
                yield
            finally:
                await self.shut()

        self._guard = until_the_end()
        await self._guard.__anext__()

    async def shut(self) -> None:
        """Close what there is, before the end of the loop."""
        self._waiting.clear()
        for task in self._opening:
            task.cancel()
        if self._opening:
            await asyncio.wait(self._opening)
        self.close()
        await asyncio.sleep(0)  # then connections that were aborted end

    def _begin(self, exchange: Exchange) -> None:
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                connection.ask(exchange, used=True)
                return
        if self._room is not None and self._connections >= self._room:
            self._waiting.append(exchange)
            return
        self._connections += 1
        task = asyncio.get_running_loop().create_task(self._open(exchange))
        self._opening.add(task)  # a loop keeps none
        task.add_done_callback(self._opening.discard)

    async def _open(self, exchange: Exchange) -> None:
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_unix_connection(lambda: _Connection(self), self._path)
        except OSError as e:
            self.lost()
            if not exchange.over:
                exchange.over = True
                # What went over a connection that was idle the engine may have died of.
                kind = EngineDeadError if exchange.sent else UnaskedError
                exchange.receiver.fail(kind(f"the engine's socket: {e}"))
            return
        if exchange.over:
            self.keep(connection)
        else:
            connection.ask(exchange, used=False)

    def keep(self, connection: _Connection) -> None:
        """Take a connection whose answer is complete."""
        while self._waiting:
            exchange = self._waiting.popleft()
            if not exchange.over:
                connection.ask(exchange, used=True)
                return
        self._idle.append(connection)

    def lost(self) -> None:
        """Take the end of a connection: there is room for another one."""
        self._connections -= 1
        while self._waiting:
            exchange = self._waiting.popleft()
            if not exchange.over:
                self._begin(exchange)
                return

    def again(self, exchange: Exchange) -> None:
        """Send a request again: the engine had closed a connection that was idle."""
        exchange.connection = None
        self._begin(exchange)


class Answer:
    """An answer: read it to its end, or close it, which ends the request."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._waiter: Optional[asyncio.Future[None]] = None
        self._chunks: list[bytes] = []
        self._buffered = 0
        self._paused = False
        self._ended = False
        self._error: Optional[BaseException] = None
        self.exchange: Optional[Exchange] = None
        self.status = 0
        self.headers: Headers = []

    @property
    def streamed(self) -> bool:
        """Whether it is a stream of events."""
        return any(k == b"content-type" and b"event-stream" in v for k, v in self.headers)

    @property
    def complete(self) -> bool:
        """Whether there is nothing more to read."""
        return self._ended and not self._chunks

    async def wait_head(self) -> None:
        """Wait for the head."""
        while not self.status:
            await self._wait()

    async def read(self) -> bytes:
        """Return what has come, b"" at the end. Raises EngineDeadError when it was cut."""
        while not self._chunks and not self._ended:
            await self._wait()
        data = b"".join(self._chunks)
        self._chunks.clear()
        self._buffered = 0
        if self._paused and self.exchange is not None:
            self._paused = False
            self.exchange.resume()
        return data

    async def read_all(self) -> bytes:
        """Return the whole of it."""
        parts = []
        while part := await self.read():
            parts.append(part)
        return b"".join(parts)

    def close(self) -> None:
        """Give the rest of it up."""
        self._client.forget(self)
        if self.exchange is not None and not self.exchange.over:
            self.exchange.close()

    def abort(self, error: BaseException) -> None:
        """Close it, and have an error raised where it is read."""
        self.close()
        self._error = error
        self._wake()

    async def _wait(self) -> None:
        if self._error is not None:
            raise self._error
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # Receiver.

    def head(self, status: int, headers: Headers) -> None:
        self.status, self.headers = status, headers
        self._wake()

    def data(self, part: bytes) -> None:
        self._chunks.append(part)
        self._buffered += len(part)
        most = self._client.most
        if most is not None and self._buffered > most and not self._paused:
            assert self.exchange is not None
            self._paused = True
            self.exchange.pause()
        self._wake()

    def end(self) -> None:
        self._ended = True
        self._client.forget(self)
        self._wake()

    def fail(self, error: EngineDeadError) -> None:
        self._error = error
        self._client.forget(self)
        self._wake()


class _BrokenError(ValueError):
    """An answer is none of HTTP/1.1."""


# What comes next on a connection.
_HEAD, _LENGTH, _CHUNKS, _TO_END = range(4)


class _Connection(asyncio.BufferedProtocol):
    """One connection, with one request at a time."""

    transport: asyncio.Transport

    def __init__(self, client: Client) -> None:
        self._client = client
        self._exchange: Optional[Exchange] = None
        self._used = False
        self._rest = b""
        self._state = _HEAD
        self._left = 0  # of a body whose length is told
        self._kept = True
        self.usable = True

    def ask(self, exchange: Exchange, used: bool) -> None:
        """Send a request. used says that there was one before."""
        exchange.connection, exchange.sent = self, True
        self._exchange, self._used = exchange, used
        self._state, self._kept = _HEAD, True
        self.transport.write(exchange.request)

    def abort(self) -> None:
        """Close it at once."""
        self.usable = False
        self._exchange = None
        # A process that was forked meanwhile may have the socket, too. A transport that has closed
        # has none. The object that uvloop, the loop of Serve's replicas, gives cannot shut it down.
        with contextlib.suppress(OSError, AttributeError):
            descriptor = self.transport.get_extra_info("socket").fileno()
            with socket.fromfd(descriptor, socket.AF_UNIX, socket.SOCK_STREAM) as own:
                own.shutdown(socket.SHUT_RDWR)
        self.transport.abort()

    # asyncio.Protocol.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is of no such class

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._client.buffer

    def buffer_updated(self, nbytes: int) -> None:
        data = bytes(self._client.buffer[:nbytes])
        if self._rest:
            data = self._rest + data
        try:
            self._rest = data[self._parse(data) :]
        except ValueError as err:
            self._lose(EngineDeadError(f"the engine's answers are not understood: {err}"))
            self.abort()

    def connection_lost(self, exc: Optional[Exception]) -> None:
        self.usable = False
        self._client.lost()
        exchange = self._exchange
        if exchange is not None and self._state == _TO_END:
            self._end()
        elif exchange is not None and self._used and self._state == _HEAD and not self._rest:
            self._exchange = None
            self._client.again(exchange)
        else:
            self._lose(EngineDeadError("the engine has ended"))

    def _lose(self, error: EngineDeadError) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None and not exchange.over:
            exchange.over = True
            exchange.receiver.fail(error)

    def _parse(self, data: bytes) -> int:
        """Hand on what is whole, and return how many bytes that were."""
        at, size = 0, len(data)
        while at < size:
            exchange = self._exchange
            if exchange is None:
                self.abort()  # it was given up, or this is no answer
                return size
            if self._state == _CHUNKS:
                was, at = at, self._parse_chunks(exchange.receiver, data, at)
                if at == was:
                    return at
            elif self._state == _HEAD:
                end = data.find(b"\r\n\r\n", at)
                if end < 0:
                    if size - at > _MAX_HEAD_BYTES:
                        raise _BrokenError("a head without an end")
                    return at
                self._take_head(exchange, data[at:end])
                at = end + 4
            elif self._state == _LENGTH:
                part = data[at : at + self._left]
                at += len(part)
                self._left -= len(part)
                exchange.receiver.data(part)
                if not self._left:
                    self._end()
            else:  # to the end of the connection
                exchange.receiver.data(data[at:])
                return size
        return at

    def _parse_chunks(self, receiver: Receiver, data: bytes, at: int) -> int:
        """Hand on chunks that are whole, and return where the next one begins."""
        while self._exchange is not None:
            begin = data.find(b"\r\n", at) + 2
            if begin < 2:
                break
            end = begin + int(data[at : begin - 2], 16)
            if len(data) < end + 2:
                break
            at = end + 2
            if begin == end:
                self._end()
                break
            receiver.data(data[begin:end])
        return at

    def _take_head(self, exchange: Exchange, head: bytes) -> None:
        line, *lines = head.split(b"\r\n")
        if not line.startswith(b"HTTP/1.1 "):
            raise _BrokenError(f"{line[:100]!r} begins none")
        status = int(line[9:12])
        if status < 200:
            return  # the answer is still to come
        pairs = [line.split(b":", 1) for line in lines]
        headers = [(name.lower(), value.strip()) for name, value in pairs]
        found = dict(headers)
        self._kept = found.get(b"connection") != b"close"
        if exchange.bodiless or status in (204, 304):
            self._state, self._left = _LENGTH, 0
        elif b"content-length" in found:
            self._state, self._left = _LENGTH, int(found[b"content-length"])
        elif b"transfer-encoding" in found:
            self._state, self._left = _CHUNKS, -1
        else:
            self._state, self._left, self._kept = _TO_END, -1, False
        exchange.receiver.head(status, headers)
        if not self._left:
            self._end()

    def _end(self) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is None or exchange.over:
            return
        exchange.over = True
        self._state = _HEAD
        if self._kept and self.usable:
            self._client.keep(self)
        else:
            self.abort()
        exchange.receiver.end()
