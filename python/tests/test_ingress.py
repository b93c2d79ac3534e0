"""What an ingress of Ray Serve answers itself."""

from __future__ import annotations

import asyncio
import json
import unittest
from collections.abc import MutableMapping
from typing import Any
from unittest import mock

try:
    from eagleray.serve._ingress import OpenAIIngress
except ImportError as missing:
    raise unittest.SkipTest(f"Ray is not here: {missing}") from None


class _Handle:
    def __init__(self, deployment_name: str = "m") -> None:
        self.deployment_name = deployment_name

    def options(self, **_: Any) -> _Handle:
        return self


class TestIngress(unittest.TestCase):
    def test_elastic(self) -> None:
        ingress = OpenAIIngress(["m"], [_Handle()], False)
        for method in ("GET", "POST"):
            for path in ("/scale_elastic", "/scale_elastic_ep", "/is_scaling_elastic_ep"):
                status, body = _ask(ingress, path, method)
                self.assertEqual(status, 409)
                error = json.loads(body)["error"]
                self.assertEqual(error["type"], "ConflictError")
                self.assertIn("num_replicas", error["message"])

    def test_health(self) -> None:
        """An ingress is ready as long as it can have one of its models answer."""
        whole, some, none = ("HEALTHY", 2), ("UNHEALTHY", 1), ("UNHEALTHY", 0)
        failed, zero = ("DEPLOY_FAILED", 0), ("HEALTHY", 0)
        for one, two, want in (
            (whole, whole, 200),
            (some, some, 200),
            (none, whole, 200),
            (none, zero, 200),  # a request starts a replica
            (none, failed, 503),
        ):
            found = {"one": one, "two": two, "Prefill": none, "OpenAIIngress": none}
            application = mock.Mock(
                deployments={
                    name: mock.Mock(
                        status=mock.Mock(value=status), replica_states={"RUNNING": n}, message=""
                    )
                    for name, (status, n) in found.items()
                }
            )
            with (
                self.subTest(one=one, two=two),
                mock.patch("eagleray.serve._ingress.serve") as serve,
            ):
                serve.get_replica_context().app_name = "app"
                serve.status().applications = {"app": application}
                ingress = OpenAIIngress(["1", "2"], [_Handle("one"), _Handle("two")], False)
                for path in ("/health", "/readyz", "/ping"):
                    status, body = _ask(ingress, path)
                    self.assertEqual(status, want)
                    self.assertEqual(b"one is UNHEALTHY, two is DEPLOY_FAILED" in body, want == 503)
                self.assertEqual(_ask(ingress, "/livez")[0], 200)


def _ask(ingress: OpenAIIngress, path: str, method: str = "GET") -> tuple[int, bytes]:
    sent: list[MutableMapping[str, Any]] = []

    async def receive() -> MutableMapping[str, Any]:
        raise AssertionError("the body is not needed")

    async def send(event: MutableMapping[str, Any]) -> None:
        sent.append(event)

    scope: dict[str, Any] = {"type": "http", "method": method, "path": path, "headers": []}
    asyncio.run(ingress.answer(scope, receive, send))
    return sent[0]["status"], sent[1]["body"]
