"""What an ingress of Ray Serve answers itself."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
import time
import unittest
import zlib
from collections.abc import MutableMapping, Sequence
from typing import Any, Optional
from unittest import mock

try:
    from ray.exceptions import RayError

    from eagleray.serve import _builder
    from eagleray.serve._handover import prefill_body
    from eagleray.serve._ingress import OpenAIIngress
except ImportError as missing:
    raise unittest.SkipTest(f"Ray is not here: {missing}") from None


class _Handle:
    def __init__(self, deployment_name: str = "m") -> None:
        self.deployment_name = deployment_name

    def options(self, **_: Any) -> _Handle:
        return self


class TestBuilder(unittest.TestCase):
    def test_options_that_come_before_others(self) -> None:
        """What they give a replica its ranks compute on."""
        config = {"model_loading_config": {"model_id": "m"}}
        override = {"name": "d", "ray_actor_options": {"num_cpus": 3}}
        with mock.patch.object(_builder, "check"), mock.patch.object(_builder, "_deploy") as deploy:
            _builder.build_llm_deployment(config, override_serve_options=override)
        model, options = deploy.call_args.args
        self.assertEqual({name: options[name] for name in override}, override)
        self.assertIn("--cpu-threads=3", _builder.server_arguments(model)[0])


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
                mock.patch("eagleray.serve._status.serve") as serve,
            ):
                serve.get_replica_context().app_name = "app"
                serve.status().applications = {"app": application}
                ingress = OpenAIIngress(["1", "2"], [_Handle("one"), _Handle("two")], False)
                for path in ("/health", "/readyz", "/ping"):
                    status, body = _ask(ingress, path)
                    self.assertEqual(status, want)
                    self.assertEqual(b"one is UNHEALTHY, two is DEPLOY_FAILED" in body, want == 503)
                self.assertEqual(_ask(ingress, "/livez")[0], 200)

    def test_silent_controller(self) -> None:
        """Without a head node nobody says how deployments are: it is as it was said last."""
        back = threading.Event()
        self.addCleanup(back.set)
        said = [{"one": mock.Mock(status=mock.Mock(value="HEALTHY"))}]

        def told() -> Any:
            if not said:
                back.wait()
                raise RayError
            return said.pop()

        async def health() -> float:
            began = time.monotonic()
            for path in ("/health", "/v1/models", "/health", "/v1/models", "/health"):
                self.assertEqual((await _answer(ingress, path))[0], 200)
            took = time.monotonic() - began
            back.set()
            return took

        class Silent(_Handle):
            async def remote(self) -> Any:
                return []

        with (
            mock.patch("eagleray.serve._status.own_deployments", told),
            mock.patch("eagleray.serve._status._STATUS_SECONDS", 0),
        ):
            ingress = OpenAIIngress(["1"], [Silent("one")], False)
            self.assertEqual(_ask(ingress, "/health")[0], 200)
            self.assertLess(asyncio.run(health()), 3)

    def test_models(self) -> None:
        """The adapters of replicas that run stand behind their models, and have cards."""
        adapter = {"id": "sql", "object": "model", "parent": "1"}

        class Loaded(_Handle):
            async def remote(self) -> list[dict[str, Any]]:
                if self.deployment_name == "three":
                    raise ValueError("it has just ended")
                return [{"id": "1", "object": "model", "parent": None}, adapter]

        handles = [Loaded("one"), _Handle("two"), Loaded("three")]
        ingress = OpenAIIngress(["1", "2", "3"], handles, False)
        states = {"one": {"RUNNING": 1}, "two": {"STARTING": 1}, "three": {"RUNNING": 1}}
        found = {n: mock.Mock(replica_states=state) for n, state in states.items()}
        with mock.patch("eagleray.serve._status.own_deployments", return_value=found):
            status, body = _ask(ingress, "/v1/models")
            self.assertEqual(status, 200)
            data = json.loads(body)["data"]
            self.assertEqual([card["id"] for card in data], ["1", "1:sql", "2", "3"])
            status, body = _ask(ingress, "/v1/models/1:sql")
            self.assertEqual((status, json.loads(body)), (200, {**adapter, "id": "1:sql"}))
            self.assertEqual(_ask(ingress, "/v1/models/1:none")[0], 404)

    def test_anthropic(self) -> None:
        """Errors of the ingress have the shape that its client reads."""
        ingress = OpenAIIngress(["1", "2"], [_Handle("one"), _Handle("two")], False)
        version = [(b"anthropic-version", b"2023-06-01")]
        for path, headers, ours in (
            ("/v1/messages", [], True),
            ("/v1/messages/count_tokens", [], True),
            ("/v1/models/none", version, True),
            ("/v1/chat/completions", [], False),
        ):
            with (
                self.subTest(path=path),
                mock.patch("eagleray.serve._status.own_deployments", return_value={}),
            ):
                method = "GET" if "models" in path else "POST"
                status, body = _ask(ingress, path, method, headers, b'{"model":"none"}')
                said = json.loads(body)
                self.assertEqual(status, 404)
                self.assertIn("does not exist", said["error"]["message"])
                if ours:
                    self.assertEqual(said["type"], "error")
                    self.assertEqual(said["error"]["type"], "not_found_error")
                    self.assertRegex(said["request_id"], "^req_")
                else:
                    self.assertEqual(said["error"]["code"], 404)

    def test_codings(self) -> None:
        """A compressed body is read for the model that it names, and goes on as it is."""
        whole = mock.Mock(deployment_name="two")
        whole.options.return_value = whole
        ingress = OpenAIIngress(["1", "2"], [_Handle("one"), whole], False)
        text = b'{"model":"2","prompt":"a"}'
        bare = zlib.compressobj(wbits=-15)
        for coding, body in (
            (b"gzip", gzip.compress(text)),
            (b"GZIP", gzip.compress(text[:9]) + gzip.compress(text[9:])),
            (b"deflate", zlib.compress(text)),
            (b"deflate", bare.compress(text) + bare.flush()),
            (b"identity", text),
        ):
            scope = {"method": "POST", "headers": [(b"content-encoding", coding)]}
            with self.subTest(coding=coding, body=body):
                found = asyncio.run(ingress._model_of(scope, body))
                self.assertEqual(found, ("2", "", json.loads(text)))
        for coding, body, status in (
            (b"gzip", b"not gzip", 400),
            (b"gzip", gzip.compress(text)[:-9], 400),
            (b"br", text, 415),
            (b"gzip", gzip.compress(bytes(3000)), 413),
        ):
            with (
                self.subTest(coding=coding, body=body),
                mock.patch("eagleray.serve._asgi.MAX_BODY_BYTES", 2000),
            ):
                headers = [(b"content-encoding", coding)]
                self.assertEqual(_ask(ingress, "/v1/completions", "POST", headers, body)[0], status)

    def test_deep_body(self) -> None:
        """It is a client's mistake: an engine says what is wrong with it, where one is known."""
        deep = b'{"model":"1","x":' + b"[" * 5000 + b"]" * 5000 + b"}"
        handles = [_Handle("one"), _Handle("two")]
        several = OpenAIIngress(["1", "2"], handles, False)
        self.assertEqual(_ask(several, "/v1/completions", "POST", [], deep)[0], 400)
        scope = {"method": "POST", "headers": []}
        found = asyncio.run(OpenAIIngress(["1"], handles[:1], False)._model_of(scope, deep))
        self.assertEqual(found, ("1", "", {}))
        self.assertIsNone(prefill_body(b"/v1/completions", deep))

    def test_adapters(self) -> None:
        """A name with an adapter's behind it is for replicas that have that one."""
        handle = mock.Mock(deployment_name="one")
        handle.options.side_effect = lambda **options: mock.Mock(given=options)
        ingress = OpenAIIngress(["qwen:7b", "other"], [handle, handle], False)
        scope = {"method": "POST", "headers": []}
        for name, want in (
            ("qwen:7b", ("qwen:7b", "")),
            ("qwen:7b:tax", ("qwen:7b", "qwen:7b:tax")),
            ("other:a/b", ("other", "other:a/b")),
        ):
            found = asyncio.run(ingress._model_of(scope, json.dumps({"model": name}).encode()))
            self.assertEqual(found[:2], want)
        for name in ("qwen", "qwen:", "other:", ":other", "none:other"):
            body = json.dumps({"model": name}).encode()
            self.assertEqual(_ask(ingress, "/v1/completions", "POST", [], body)[0], 404)
        relay = mock.Mock()
        self.assertIs(ingress._with(relay, ""), relay)
        one = ingress._with(relay, "other:a")
        relay.options.assert_called_once_with(multiplexed_model_id="other:a")
        self.assertIs(ingress._with(relay, "other:a"), one)


def _ask(
    ingress: OpenAIIngress,
    path: str,
    method: str = "GET",
    headers: Sequence[tuple[bytes, bytes]] = (),
    body: Optional[bytes] = None,
) -> tuple[int, bytes]:
    """Return the answer to a request, whose body is asked for only where there is one."""
    return asyncio.run(_answer(ingress, path, method, headers, body))


async def _answer(
    ingress: OpenAIIngress,
    path: str,
    method: str = "GET",
    headers: Sequence[tuple[bytes, bytes]] = (),
    body: Optional[bytes] = None,
) -> tuple[int, bytes]:
    sent: list[MutableMapping[str, Any]] = []

    async def receive() -> MutableMapping[str, Any]:
        if body is None:
            raise AssertionError("the body is not needed")
        return {"type": "http.request", "body": body}

    async def send(event: MutableMapping[str, Any]) -> None:
        sent.append(event)

    scope: dict[str, Any] = {"type": "http", "method": method, "path": path}
    scope["headers"] = list(headers)
    await ingress.answer(scope, receive, send)
    return sent[0]["status"], sent[1]["body"]
