"""What Ray's own examples do, with the import changed and the built-in model."""

from __future__ import annotations

import json
import time
from typing import Any

import ray
import ray.data
from ray import serve

import eagleray.serve as eagle
from eagleray.data import (
    HttpRequestProcessorConfig,
    ServeDeploymentProcessorConfig,
    build_llm_processor,
    build_processor,
)
from eagleray.errors import ConfigError
from eagleray.serve.deployment import LLMServer
from eagleray.serve.ingress import OpenAiIngress, make_fastapi_ingress
from eagleray.serve.openai_api_models import ChatCompletionRequest
from tests.ray_serve.cluster import BUILTIN, PATIENCE, RAY, Cluster, model

QUESTION = [{"role": "user", "content": "What does os.Open do?"}]
ANSWER = "Open opens the named file for reading."


def config(name: str, engine: Any = None, **fields: Any) -> eagle.LLMConfig:
    """Return the configuration of a small engine, as an object."""
    given = model(name, engine)
    return eagle.LLMConfig(**{**given, **fields})


def figure(text: str, name: str) -> float:
    """Return the sum of a metric in Prometheus's text format."""
    return sum(
        float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(name)
    )


class Examples(Cluster):
    """What Ray's own examples do."""

    def chat(self, name: str, app: str) -> None:
        """Have a model answer."""
        body = {"model": name, "messages": QUESTION, "temperature": 0, "max_tokens": 20}
        status, answer = self.ask(f"/{app}/v1/chat/completions", body)
        self.assertEqual(status, 200, answer)
        self.assertEqual(answer["choices"][0]["message"]["content"], ANSWER)

    def test_bound_classes(self) -> None:
        """Deployments and an ingress that a program binds itself."""
        configs = [config(name) for name in ("one/a.b", "two")]
        servers = [
            serve.deployment(LLMServer).options(**LLMServer.get_deployment_options(c)).bind(c)
            for c in configs
        ]
        options = OpenAiIngress.get_deployment_options(llm_configs=configs)
        ingress = serve.deployment(make_fastapi_ingress(OpenAiIngress)).options(**options)
        for given in (servers, dict(zip(["one/a.b", "two"], servers))):
            serve.run(ingress.bind(given), name="bound", route_prefix="/bound")
            listed = self.ask("/bound/v1/models")[1]["data"]
            self.assertEqual([m["id"] for m in listed], ["one/a.b", "two"])
            self.chat("two", "bound")
            serve.delete("bound")

    def test_copies_and_changed_fields(self) -> None:
        """A model in copies; a field that is set after the object was made."""
        given = config(
            BUILTIN,
            {"data_parallel_size": 2, "max_model_len": 1024, "max_num_seqs": 32},
            accelerator_type="L4",
            experimental_configs={"dp_size_per_node": 2, "num_ingress_replicas": 2},
        )
        given.accelerator_type = None
        app = eagle.build_dp_openai_app({"llm_config": given})
        serve.run(app, name="copies", route_prefix="/copies")
        self.chat(BUILTIN, "copies")
        self.assertEqual(self.replicas("OpenAIIngress", "copies"), 2)
        serve.delete("copies")

    def test_bundles_of_processes(self) -> None:
        """``bundle_per_worker`` where ranks are processes: the replica asks for the sum."""
        given = config(
            "sum",
            {"tensor_parallel_size": 2},
            deployment_config={"num_replicas": 1},
            placement_group_config={"bundle_per_worker": {"CPU": 0.25}},
        )
        self.deploy(given, name="sum")  # type: ignore[arg-type]
        self.chat("sum", "sum")
        serve.delete("sum")

    def test_several_models_tell_of_themselves(self) -> None:
        self.deploy(model("one"), model("two"), name="several")
        for name in ("one", "two"):
            self.chat(name, "several")
        status, answer = self.ask("/several/version")
        self.assertEqual((status, list(answer)), (200, ["version"]))
        status, text = self.fetch("/several/metrics")
        lines = text.decode().splitlines()
        self.assertEqual(status, 200)
        for name in ("one", "two"):
            found = [
                line
                for line in lines
                if line.startswith("eagleray:generation_tokens_total{replica=")
                and f'model_name="{name}"' in line
            ]
            self.assertEqual(len(found), 1, found)
        heads = [line for line in lines if line.startswith("# TYPE eagleray:generation_tokens")]
        self.assertEqual(len(heads), 1)
        serve.delete("several")

    def test_prefix_router(self) -> None:
        if RAY < (2, 49):
            self.skipTest("no request routers")
        from eagleray.serve.request_router import PrefixCacheAffinityRouter

        def deployment(**kwargs: Any) -> dict[str, Any]:
            router = {
                "request_router_class": PrefixCacheAffinityRouter,
                "request_router_kwargs": kwargs,
            }
            return {"num_replicas": 2, "request_router_config": router}

        given = config("routed", deployment_config=deployment(imbalanced_threshold=5))
        self.deploy(given, name="routed")  # type: ignore[arg-type]
        prompt = "func Index " * 300
        for _ in range(8):
            self.assertEqual(self.completion("routed", "routed", prompt=prompt)[0], 200)
        told = [self.fetch("/routed/metrics")[1].decode() for _ in range(40)]
        asked = {figure(text, "eagleray:request_success_total") for text in told}
        self.assertEqual(asked, {0.0, 8.0}, "one replica has had all")
        serve.delete("routed")
        for kwargs, words in (
            ({"imbalance": 5}, "request_router_kwargs.imbalance: is not known"),
            ({"do_eviction": 1}, "do_eviction: 1 is neither true nor false"),
            ({"match_rate_threshold": "x"}, "match_rate_threshold: 'x' is not a number"),
        ):
            wrong = config("routed", deployment_config=deployment(**kwargs))
            with self.assertRaisesRegex(ConfigError, words):
                eagle.build_openai_app({"llm_configs": [wrong]})

    def test_nothing_that_starts_with_none(self) -> None:
        """A wrong path fails the deployment, or the first request, with the engine's line."""
        for name, scaling in (
            ("gone", {"min_replicas": 0, "max_replicas": 2}),
            ("lazy", {"min_replicas": 0, "initial_replicas": 0, "max_replicas": 2}),
        ):
            given = model(name, autoscaling_config=scaling)
            given["model_loading_config"]["model_source"] = "/no/such/folder"
            self.put(name, {"llm_configs": [given], "ingress_deployment_config": {}})
            if name == "gone":
                self.eventually("DEPLOY_FAILED", lambda: self.status("gone") == "DEPLOY_FAILED")
                self.assertIn("/no/such/folder", self.message("gone"))
            else:
                self.eventually("RUNNING", lambda: self.status("lazy") == "RUNNING")
                begun = time.monotonic()
                status, text = self.fetch("/lazy/v1/completions", {"model": name, "prompt": "x"})
                self.assertEqual(status, 503, text)
                self.assertIn("/no/such/folder", json.loads(text)["error"]["message"])
                self.assertLess(time.monotonic() - begun, PATIENCE / 2)
            serve.delete(name)

    def status(self, app: str) -> str:
        """Return the status of an application."""
        found = serve.status().applications.get(app)
        return str(found.status.value) if found else ""

    def message(self, app: str) -> str:
        """Return what Serve says of an application's deployments."""
        found = serve.status().applications[app].deployments
        return "".join(d.message for d in found.values())

    def test_processors(self) -> None:
        """Rows that are answered by a deployment, and by the HTTP service that it is."""
        app = eagle.build_llm_deployment(
            model(BUILTIN), override_serve_options={"name": "llm_deployment"}
        )
        serve.run(app, name="rows", route_prefix=None)
        served = ServeDeploymentProcessorConfig(
            deployment_name="llm_deployment",
            app_name="rows",
            dtype_mapping={"ChatCompletionRequest": ChatCompletionRequest},
            should_continue_on_error=True,
        )
        rows = ray.data.from_items([{"n": n} for n in range(12)])

        def asked(row: dict[str, Any]) -> dict[str, Any]:
            length = -1 if row["n"] == 7 else 20
            fields = {"messages": QUESTION, "max_tokens": length, "temperature": 0}
            return {
                "method": "chat",
                "dtype": "ChatCompletionRequest",
                "request_kwargs": {"model": BUILTIN, "stream": False, **fields},
            }

        answered = build_processor(
            served,
            preprocess=asked,
            postprocess=lambda row: {
                "n": row["n"],
                "text": row["choices"][0]["message"]["content"],
            },
        )(rows).take_all()
        for row in answered:
            if row["n"] == 7:
                self.assertIn("max_tokens", row["__inference_error__"])
            else:
                self.assertEqual((row["text"], row["__inference_error__"]), (ANSWER, ""))
        self.assertEqual(len(answered), 12)
        serve.delete("rows")

        self.deploy(model("gpt-4o-mini"), name="web")
        web = HttpRequestProcessorConfig(
            url=f"http://127.0.0.1:{self.port}/web/v1/chat/completions",
            headers={"Authorization": "Bearer x"},
            qps=50,
        )
        answered = build_llm_processor(
            web,
            preprocess=lambda row: {
                "payload": {
                    "model": "gpt-4o-mini",
                    "messages": QUESTION,
                    "temperature": 0.0,
                    "max_tokens": 20,
                }
            },
            postprocess=lambda row: {
                "text": row["http_response"]["choices"][0]["message"]["content"]
            },
        )(rows).take_all()
        self.assertEqual([row["text"] for row in answered], [ANSWER] * 12)
        serve.delete("web")
