"""What an ingress of Ray Serve answers itself."""

from __future__ import annotations

import asyncio
import json
import unittest
from collections.abc import MutableMapping
from typing import Any

try:
    from eagleray.serve.ingress import OpenAIIngress
except ImportError as missing:
    raise unittest.SkipTest(f"Ray is not here: {missing}") from None


class _Handle:
    def options(self, **_: Any) -> _Handle:
        return self


class TestIngress(unittest.TestCase):
    def test_elastic(self) -> None:
        ingress = OpenAIIngress(["m"], [_Handle()], False)
        for method in ("GET", "POST"):
            for path in ("/scale_elastic", "/scale_elastic_ep", "/is_scaling_elastic_ep"):
                sent: list[MutableMapping[str, Any]] = []

                async def receive() -> MutableMapping[str, Any]:
                    raise AssertionError("the body is not needed")

                async def send(event: MutableMapping[str, Any]) -> None:
                    sent.append(event)

                scope: dict[str, Any] = {
                    "type": "http",
                    "method": method,
                    "path": path,
                    "headers": [],
                }
                asyncio.run(ingress.answer(scope, receive, send))
                self.assertEqual(sent[0]["status"], 409)
                error = json.loads(sent[1]["body"])["error"]
                self.assertEqual(error["type"], "ConflictError")
                self.assertIn("num_replicas", error["message"])
