"""Requests to an engine's socket. Runs where httptools is, as Ray's Serve has it."""

from __future__ import annotations

import asyncio
import os
import tempfile
import unittest
from collections.abc import Awaitable
from typing import Callable

try:
    import httptools  # noqa: F401
except ModuleNotFoundError:
    raise unittest.SkipTest("no httptools") from None

from eagleray.errors import EngineDeadError
from eagleray.serve._relay import Answer, Engine, decode, encode

PLAIN = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"
LAST = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok"
CUT = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok"
# An answer that the case itself gives.
WAIT = b"wait"


class Peer:
    """Answers each request with the next text, and closes the connection after an empty one."""

    def __init__(self, answers: list[bytes]) -> None:
        self.answers = answers
        self.connections = 0
        self.closed = asyncio.Event()
        self.waiting: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                answer = self.answers.pop(0)
                if answer == WAIT:
                    self.waiting.append(writer)
                    continue
                writer.write(answer)
                if answer == CUT or (self.answers and not self.answers[0]):
                    if self.answers:
                        self.answers.pop(0)
                    break
        except asyncio.IncompleteReadError:
            pass  # the engine has closed it
        finally:
            writer.close()
            self.closed.set()


async def get(engine: Engine) -> tuple[int, bytes]:
    answer: Answer = await engine.ask(b"GET", b"/", [], b"")
    try:
        return answer.status, await answer.read_all()
    finally:
        answer.close()


class TestMessage(unittest.TestCase):
    def test_comes_back(self) -> None:
        for line in (b"POST /v1/completions?a=b SERVE_REPLICA::an app#ingress#1", b"200", b""):
            for headers in ([], [(b"a", b"")], [(b"a", b"b: c"), (b"a", b"\xff")]):
                for body in (b"", b"{}", b"\r\n\r\n", b"a: b\r\n\r\n\0\xff"):
                    message = (line, headers, body)
                    self.assertEqual(decode(encode(*message)), message)


class TestRelay(unittest.TestCase):
    def _run(self, answers: list[bytes], case: Callable[[Peer, Engine], Awaitable[None]]) -> None:
        async def run() -> None:
            peer = Peer(answers)
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "s")
                server = await asyncio.start_unix_server(peer.serve, path)
                engine = Engine(path)
                try:
                    await case(peer, engine)
                finally:
                    engine.close()
                    server.close()
                    await server.wait_closed()

        asyncio.run(run())

    def test_connections_are_kept(self) -> None:
        async def case(peer: Peer, engine: Engine) -> None:
            for _ in range(6):
                self.assertEqual(await get(engine), (200, b"ok"))
            self.assertEqual(peer.connections, 1)

        self._run([PLAIN, CHUNKED] * 3, case)

    def test_last_answer_of_a_connection(self) -> None:
        async def case(peer: Peer, engine: Engine) -> None:
            for _ in range(4):
                self.assertEqual(await get(engine), (200, b"ok"))
            self.assertEqual(peer.connections, 3)

        self._run([PLAIN, LAST, LAST, PLAIN], case)

    def test_idle_connection_was_closed(self) -> None:
        async def case(peer: Peer, engine: Engine) -> None:
            self.assertEqual(await get(engine), (200, b"ok"))
            await peer.closed.wait()
            self.assertEqual(await get(engine), (200, b"ok"))
            self.assertEqual(peer.connections, 2)

        self._run([PLAIN, b"", PLAIN], case)

    def test_requests_of_a_caller_end(self) -> None:
        async def case(peer: Peer, engine: Engine) -> None:
            self.assertEqual(await get(engine), (200, b"ok"))
            self.assertEqual(engine.callers(), set())
            # The first is asked over a connection that was idle: it must not be asked again.
            asked = [
                asyncio.ensure_future(engine.ask(b"GET", b"/", [], b"", caller))
                for caller in (b"gone", b"here", b"gone")
            ]
            while len(peer.waiting) < 3:
                await asyncio.sleep(0.001)
            self.assertEqual(engine.callers(), {b"gone", b"here"})
            engine.end({b"gone"})
            for i in (0, 2):
                with self.assertRaises(asyncio.CancelledError):
                    await asked[i]
            self.assertEqual(engine.callers(), {b"here"})
            for writer in peer.waiting:
                writer.write(CUT[:-1])
            answer = await asked[1]
            self.assertEqual(await answer.read(), b"o")
            engine.end({b"here"})
            with self.assertRaises(asyncio.CancelledError):
                await answer.read()
            answer.close()
            self.assertEqual((engine.callers(), peer.connections), (set(), 3))

        self._run([PLAIN, WAIT, WAIT, WAIT], case)

    def test_answer_is_cut(self) -> None:
        async def case(peer: Peer, engine: Engine) -> None:
            with self.assertRaises(EngineDeadError):
                await get(engine)

        self._run([CUT], case)
