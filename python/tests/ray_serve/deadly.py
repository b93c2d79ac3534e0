"""What an ingress does when replicas die."""

from __future__ import annotations

import asyncio
import unittest.mock
import zlib
from collections.abc import AsyncGenerator
from typing import Any

import ray

from eagleray._http import UnaskedError
from eagleray.serve import _ingress, _resume
from tests.ray_serve.cluster import Cluster


class Deadly(Cluster):
    """What an ingress does when replicas die, without any."""

    @classmethod
    def setUpClass(cls) -> None:
        """Start nothing."""

    @classmethod
    def tearDownClass(cls) -> None:
        """End nothing."""

    def test_deaths(self) -> None:
        died = ray.exceptions.RayActorError()
        unasked = UnaskedError("no")
        gone = Gone()
        token = [(b"content-type", b"text/event-stream"), (b"x-eagleray-resume", b"t")]
        begun = (200, token, [b"data: a\n", b"\ndata: b\n\n"], died)
        cut = (200, token, [b"data: c\n\n"], died)
        rest = (200, token, [b"data: c\n\n", b"data: d\n\n"], None)
        plain = (200, [(b"content-type", b"application/json")], [b"{}"], None)
        head = b"data: a\n\ndata: b\n\n"
        ended = b"the replica that was answering has ended"
        for name, answers, want, asks in (
            ("whole", [plain], (200, b"{}"), 1),
            ("dies first", [died, died, plain], (200, b"{}"), 3),
            ("poison", [died] * 9, (503, b"no replica has answered"), 3),
            ("had died before", [unasked] * 5 + [plain], (200, b"{}"), 6),
            ("dead with its node", [died] + [gone] * 5 + [plain], (200, b"{}"), 7),
            (
                "dead with its node, in a stream",
                [begun] + [gone] * 5 + [rest],
                (200, head + b"data: c\n\ndata: d\n\n"),
                7,
            ),
            ("goes on", [begun, rest], (200, head + b"data: c\n\ndata: d\n\n"), 2),
            (
                "goes on twice",
                [begun, cut, (200, token, [b"data: d\n\n"], None)],
                (200, head + b"data: c\n\ndata: d\n\n"),
                3,
            ),
            ("poison in streams", [begun, cut, died, rest], (200, ended), 3),
            ("begins again", [begun, (503, [], [b"full"], None), rest], (200, b"data: d\n\n"), 3),
            (
                "would differ",
                [begun, (409, [], [b'{"error": 1}'], None)],
                (200, b'{"error": 1}'),
                2,
            ),
            ("no token", [(200, [], [b"a", b"b"], died), rest], (200, ended), 1),
        ):
            with (
                self.subTest(name),
                unittest.mock.patch.object(_resume, "_PAUSE_SECONDS", 0.001),
            ):
                handle = DyingHandle(list(answers))
                sent = asyncio.run(self.relayed(handle))
                body = b"".join(e.get("body", b"") for e in sent)
                self.assertEqual((sent[0]["status"], len(handle.asked)), (want[0], asks))
                self.assertIn(want[1], body)
                self.assertNotIn(b"x-eagleray-resume", dict(sent[0]["headers"]))
                self.assertEqual([e.get("more_body") for e in sent[-2:]][-1], False)
                values = [dict(r[2])[b"x-eagleray-resume"] for r in handle.asked]
                self.assertEqual(values[0], b"begin")
                if name == "goes on twice":
                    other = head + b"data: c\n\n"
                    self.assertEqual(
                        values[1:],
                        [b"t;%d;%08x" % (len(x), zlib.crc32(x)) for x in (head, other)],
                    )

    async def relayed(self, handle: DyingHandle) -> list[dict[str, Any]]:
        """Return what a client is sent."""
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b'{"model": "m", "stream": true}'}

        async def send(event: Any) -> None:
            sent.append(event)

        scope = {
            "method": "POST",
            "path": "/v1/completions",
            "headers": [(b"x-eagleray-resume", b"the client's own")],
        }
        await _ingress.OpenAIIngress(["m"], [handle], False).answer(scope, receive, send)
        return sent


class Gone(ray.exceptions.RayActorError):  # type: ignore[misc]
    """What a replica is that died before it was asked."""


class DyingHandle:
    """A deployment whose replicas answer as given, by turns, or raise."""

    deployment_name = "dying"

    def __init__(self, answers: list[Any]) -> None:
        self.answers = answers
        self.asked: list[tuple[Any, ...]] = []
        self.method = ""

    def options(self, method_name: str, **_: Any) -> DyingHandle:
        other = DyingHandle(self.answers)
        other.asked, other.method = self.asked, method_name
        return other

    def remote(self, *request: Any) -> DyingHandle:
        self.asked.append(request)
        return self

    def cancel(self) -> None:
        """Nothing runs."""

    async def __aiter__(self) -> AsyncGenerator[Any, None]:
        answer = self.answers.pop(0)
        if self.method == "relay_again" and not isinstance(answer, Gone):
            yield None
        if isinstance(answer, Exception):
            raise answer
        status, headers, parts, error = answer
        yield status, headers, parts[0], len(parts) > 1
        for part in parts[1:]:
            yield part
        if error is not None:
            raise error
