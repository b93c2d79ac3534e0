"""HTTP to an engine's socket."""

from __future__ import annotations

import asyncio
import importlib
import os
import tempfile
import unittest
from collections.abc import Awaitable
from typing import Callable, Optional

from eagleray._decoder import Decoder
from eagleray._http import Answer, Client, UnaskedError, decode, encode, request_of
from eagleray.errors import EngineDeadError

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
        self.tasks: list[Optional[asyncio.Task[None]]] = []
        self.closed = asyncio.Event()
        self.waiting: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.tasks.append(asyncio.current_task())
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


async def get(client: Client) -> tuple[int, bytes]:
    answer: Answer = await client.ask(b"GET", b"/", [], b"")
    try:
        return answer.status, await answer.read_all()
    finally:
        answer.close()


class TestDecoder(unittest.TestCase):
    def test_events_in_pieces(self) -> None:
        text = b'data: {"a": "\xc3\xa9"}\n\n: ping\n\nevent: x\ndata: {"b": 1}\n\ndata: [DONE]\n\n'
        for cut in range(len(text)):
            decoder = Decoder([(b"content-type", b"text/event-stream; charset=utf-8")])
            events = decoder.events(text[:cut]) + decoder.events(text[cut:])
            self.assertEqual((events, decoder.body()), ([{"a": "é"}, {"b": 1}], None))

    def test_bodies(self) -> None:
        for kind, text, body in (
            (b"application/json", b' {"a": 1}\n', {"a": 1}),
            (b"text/plain", b"a\n", "a"),
            (b"application/json", b"", None),
        ):
            decoder = Decoder([(b"content-type", kind)])
            self.assertEqual(decoder.events(text), [])
            self.assertEqual(decoder.body(), body)


class TestMessage(unittest.TestCase):
    def test_comes_back(self) -> None:
        for line in (b"POST /v1/completions?a=b SERVE_REPLICA::an app#ingress#1", b"200", b""):
            for headers in ([], [(b"a", b"")], [(b"a", b"b: c"), (b"a", b"\xff")]):
                for body in (b"", b"{}", b"\r\n\r\n", b"a: b\r\n\r\n\0\xff"):
                    message = (line, headers, body)
                    self.assertEqual(decode(encode(*message)), message)


class TestClient(unittest.TestCase):
    def _run(
        self,
        answers: list[bytes],
        case: Callable[[Peer, Client], Awaitable[None]],
        room: Optional[int] = None,
    ) -> None:
        async def run() -> None:
            peer = Peer(answers)
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "s")
                server = await asyncio.start_unix_server(peer.serve, path)
                client = Client(path, room)
                try:
                    await case(peer, client)
                finally:
                    await client.shut()
                    await asyncio.wait_for(asyncio.gather(*filter(None, peer.tasks)), 30)
                    server.close()
                    await server.wait_closed()

        asyncio.run(run())

    def test_connections_are_kept(self) -> None:
        async def case(peer: Peer, client: Client) -> None:
            for _ in range(6):
                self.assertEqual(await get(client), (200, b"ok"))
            self.assertEqual(peer.connections, 1)

        self._run([PLAIN, CHUNKED] * 3, case)

    def test_last_answer_of_a_connection(self) -> None:
        async def case(peer: Peer, client: Client) -> None:
            for _ in range(4):
                self.assertEqual(await get(client), (200, b"ok"))
            self.assertEqual(peer.connections, 3)

        self._run([PLAIN, LAST, LAST, PLAIN], case)

    def test_idle_connection_was_closed(self) -> None:
        async def case(peer: Peer, client: Client) -> None:
            self.assertEqual(await get(client), (200, b"ok"))
            await peer.closed.wait()
            self.assertEqual(await get(client), (200, b"ok"))
            self.assertEqual(peer.connections, 2)

        self._run([PLAIN, b"", PLAIN], case)

    def test_ends_with_a_request(self) -> None:
        """The engine may have died of what it had, whatever connection it came over."""

        async def case(peer: Peer, client: Client) -> None:
            self.assertEqual(await get(client), (200, b"ok"))
            asked = asyncio.ensure_future(get(client))
            while not peer.waiting:
                await asyncio.sleep(0.001)
            os.unlink(client._path)
            peer.waiting[0].close()
            for request, kind in ((asked, EngineDeadError), (get(client), UnaskedError)):
                with self.assertRaises(EngineDeadError) as caught:
                    await request
                self.assertIs(type(caught.exception), kind)
            self.assertEqual(peer.connections, 1)

        self._run([PLAIN, WAIT], case)

    def test_requests_of_a_caller_end(self) -> None:
        async def case(peer: Peer, client: Client) -> None:
            self.assertEqual(await get(client), (200, b"ok"))
            self.assertEqual(client.callers(), set())
            # The first is asked over a connection that was idle: it must not be asked again.
            asked = [
                asyncio.ensure_future(client.ask(b"GET", b"/", [], b"", caller))
                for caller in (b"gone", b"here", b"gone")
            ]
            while len(peer.waiting) < 3:
                await asyncio.sleep(0.001)
            self.assertEqual(client.callers(), {b"gone", b"here"})
            client.end({b"gone"})
            for i in (0, 2):
                with self.assertRaises(asyncio.CancelledError):
                    await asked[i]
            self.assertEqual(client.callers(), {b"here"})
            for writer in peer.waiting:
                writer.write(CUT[:-1])
            answer = await asked[1]
            self.assertEqual(await answer.read(), b"o")
            client.end({b"here"})
            with self.assertRaises(asyncio.CancelledError):
                await answer.read()
            answer.close()
            self.assertEqual((client.callers(), peer.connections), (set(), 3))

        self._run([PLAIN, WAIT, WAIT, WAIT], case)

    def test_answers_in_pieces(self) -> None:
        """However an answer is divided on its way, and whatever says its length, it is the same."""
        two = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\no\r\n1\r\nk\r\n0\r\n\r\n"
        early = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
        to_end = b"HTTP/1.1 200 OK\r\n\r\nok"

        async def case(peer: Peer, client: Client) -> None:
            for text in (PLAIN, CHUNKED, two, early + PLAIN, to_end):
                for cut in range(1, len(text)):
                    peer.answers.append(WAIT)
                    asked = asyncio.ensure_future(get(client))
                    while not peer.waiting:
                        await asyncio.sleep(0)
                    writer = peer.waiting.pop()
                    writer.write(text[:cut])
                    for _ in range(3):
                        await asyncio.sleep(0)
                    writer.write(text[cut:])
                    if text == to_end:
                        writer.close()
                    self.assertEqual(await asked, (200, b"ok"), (text, cut))

        self._run([], case)

    def test_no_answer(self) -> None:
        """What is none of HTTP ends its request, with what it was."""

        async def case(peer: Peer, client: Client) -> None:
            for text in (b"SSH-2.0-x\r\n\r\n", CHUNKED.replace(b"2\r\nok", b"z\r\nok")):
                peer.answers.append(text)
                with self.assertRaisesRegex(EngineDeadError, "not understood"):
                    await get(client)

        self._run([], case)

    def test_room(self) -> None:
        """Requests wait for a connection, in order; those that are given up take none."""

        async def case(peer: Peer, client: Client) -> None:
            request = request_of(b"GET", b"/", [], b"")
            answers = [client.start(request) for _ in range(5)]
            answers[2].close()
            for index in (0, 1, 3, 4):
                while not peer.waiting:
                    await asyncio.sleep(0.001)
                if index != 4:  # the last one has the connection of one that was given up
                    peer.waiting.pop().write(PLAIN)
                    self.assertEqual(await answers[index].read_all(), b"ok")
                else:
                    peer.waiting.pop()
                    answers[index].close()
            answers.append(client.start(request))
            while not peer.waiting:
                await asyncio.sleep(0.001)
            peer.waiting.pop().write(PLAIN)
            self.assertEqual(await answers[-1].read_all(), b"ok")
            self.assertEqual(peer.connections, 2)

        self._run([WAIT] * 5, case, room=1)

    def test_answer_is_cut(self) -> None:
        async def case(peer: Peer, client: Client) -> None:
            with self.assertRaises(EngineDeadError):
                await get(client)

        self._run([CUT], case)


class TestClientOnUvloop(TestClient):
    """The same on the event loop of Serve's replicas, where there is one."""

    @classmethod
    def setUpClass(cls) -> None:
        try:
            uvloop = importlib.import_module("uvloop")
        except ImportError:
            raise unittest.SkipTest("no uvloop") from None
        cls.addClassCleanup(asyncio.set_event_loop_policy, None)
        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
