"""Who looks whether the callers of an engine's requests live."""

from __future__ import annotations

import asyncio
import unittest
from unittest import mock

try:
    from eagleray.serve import _callers
except ImportError as missing:
    raise unittest.SkipTest(f"Ray is not here: {missing}") from None


class _Engine:
    """Has requests of callers until they are ended, or answered by the case."""

    def __init__(self, *names: bytes) -> None:
        self.under_way = set(names)
        self.ended: list[set[bytes]] = []

    def callers(self) -> set[bytes]:
        return set(self.under_way)

    def end(self, names: set[bytes]) -> None:
        self.ended.append(names)
        self.under_way -= names


class TestCallerWatch(unittest.TestCase):
    def test_the_gone_are_ended(self) -> None:
        """Looks go on when Ray does not answer, end with the requests, and later begin anew."""
        engine = _Engine(b"lives", b"gone")
        looks: list[object] = [OSError("no GCS"), {b"lives", b"other"}, {b"lives"}]

        def living() -> set[bytes]:
            found = looks.pop(0)
            if isinstance(found, BaseException):
                raise found
            if not looks:
                engine.under_way.clear()  # answered meanwhile
            assert isinstance(found, set)
            return found

        async def run() -> None:
            watched = _callers.CallerWatch(engine)  # type: ignore[arg-type]
            for _ in range(2):
                watched.watch()
            assert watched._looks is not None
            await watched._looks
            self.assertEqual(engine.ended, [{b"gone"}, set()])
            self.assertEqual(looks, [])

            engine.under_way = {b"next"}
            looks.append(set())
            watched.watch()
            assert watched._looks is not None
            await watched._looks
            self.assertEqual(engine.ended[2:], [{b"next"}])

        with (
            mock.patch.object(_callers, "_LOOK_SECONDS", 0.001),
            mock.patch.object(_callers, "_living", living),
            self.assertLogs("ray.serve", "WARNING"),
        ):
            asyncio.run(run())
