"""Tests of the wire format and the shape of faults, without Ray: python3 -m unittest wire_test."""

from __future__ import annotations

import json
import random
import socket
import struct
import threading
import unittest

from faults import Call, Cancelled, fault
from wire import MAX_LENGTH, Wire, WireError, encode


def receive(data: bytes) -> dict | None:
    """Returns what a wire receives of data, which comes in pieces."""
    ours, theirs = socket.socketpair()
    with ours, theirs:

        def feed() -> None:
            try:
                for i in range(0, len(data), 1 << 15):
                    ours.sendall(data[i : i + (1 << 15)])
                ours.shutdown(socket.SHUT_WR)
            except OSError:
                pass  # the other end has seen enough

        feeder = threading.Thread(target=feed)
        feeder.start()
        try:
            return Wire(theirs).receive()
        finally:
            theirs.close()
            feeder.join()


class WireTest(unittest.TestCase):
    def test_round_trip(self) -> None:
        for message in (
            {},
            {"beat": True},
            {"id": 1 << 60, "op": "x", "args": {"text": "ü\u0000\n" * 40000}},
        ):
            self.assertEqual(receive(encode(message)), message)

    def test_end(self) -> None:
        whole = encode({"id": 1, "op": "nodes"})
        for cut in range(len(whole)):
            self.assertIsNone(receive(whole[:cut]), cut)

    def test_refusals(self) -> None:
        def framed(body: bytes) -> bytes:
            return struct.pack(">I", len(body)) + body

        for data in (
            struct.pack(">I", 0),
            struct.pack(">I", MAX_LENGTH + 1),
            b"GET / HTTP/1.1\r\n",
            framed(b"{"),
            framed(b"[1]"),
            framed(b"null"),
            framed(b"\xff\xfe"),
        ):
            with self.assertRaises(WireError, msg=data):
                receive(data)
        with self.assertRaises(WireError):
            encode({"text": "x" * MAX_LENGTH})
        with self.assertRaises(ValueError):
            encode({"number": float("nan")})

    def test_noise(self) -> None:
        random.seed(1)
        for _ in range(300):
            noise = random.randbytes(random.randrange(40))
            if random.random() < 0.5:
                noise = struct.pack(">I", random.randrange(40)) + noise
            try:
                receive(noise)
            except WireError:
                pass

    def test_senders_do_not_mix(self) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            sender, receiver = Wire(ours), Wire(theirs)
            texts = [str(i) * 50000 for i in range(8)]
            threads = [threading.Thread(target=sender.send, args=({"text": t},)) for t in texts]
            for t in threads:
                t.start()
            got = [receiver.receive() for _ in texts]
            for t in threads:
                t.join()
            self.assertEqual(sorted(g["text"] for g in got if g), sorted(texts))


class FaultTest(unittest.TestCase):
    def test_chain(self) -> None:
        try:
            try:
                raise KeyError("root")
            except KeyError as e:
                raise ConnectionError("\x1b[36mtop\x1b[39m") from e
        except ConnectionError as e:
            got = fault(e)
        self.assertEqual(
            got,
            {
                "class": "ConnectionError",
                "message": "top",
                "causes": [{"class": "KeyError", "message": "'root'"}],
            },
        )
        json.dumps(got)

    def test_loop(self) -> None:
        a, b = ValueError("a"), ValueError("b")
        a.__cause__, b.__cause__ = b, a
        self.assertEqual([c["message"] for c in fault(a)["causes"]], ["b"])

    def test_long_text_keeps_its_ends(self) -> None:
        message = fault(ValueError("begin" + "x" * 100000 + "end"))["message"]
        self.assertLess(len(message), 5000)
        self.assertTrue(message.startswith("begin") and message.endswith("end"))

    def test_cancelled_call(self) -> None:
        call = Call(1, "x", {}, None, threading.Event())
        self.assertGreater(call.slice(), 0)
        self.assertEqual(Call(1, "x", {}, 0.0, threading.Event()).slice(), 0)
        call.cancelled.set()
        with self.assertRaises(Cancelled):
            call.slice()


class TracebackTest(unittest.TestCase):
    def test_last_line_stays(self) -> None:
        text = (
            "Failed to connect: Traceback (most recent call last):\n"
            '  File "a.pyx", line 1, in b\n    c()\n\n  File "d", line 2\n'
            "ray.exceptions.AuthenticationError: InvalidAuthToken: wrong\nNote: more"
        )
        want = (
            "Failed to connect: ray.exceptions.AuthenticationError: InvalidAuthToken: wrong\n"
            "Note: more"
        )
        self.assertEqual(fault(RuntimeError(text))["message"], want)


if __name__ == "__main__":
    unittest.main()
