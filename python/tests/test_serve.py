"""What of eagleray.serve needs no Ray."""

from __future__ import annotations

import os
import tempfile
import types
import unittest
from typing import Any

from eagleray.errors import ConfigError
from eagleray.serve import LLMConfig, LLMServingArgs
from eagleray.serve.autoscaling import queue_policy
from eagleray.serve.builder import _arguments, _bundles, _own_bundle, _single
from eagleray.serve.config import read_args, read_model
from eagleray.serve.metrics import read_load
from eagleray.serve.prefix import BLOCK_CHARS, MAX_BLOCKS, blocks_of

M = {"model_loading_config": {"model_id": "m"}}


class TestConfig(unittest.TestCase):
    def test_all_that_is_wrong_is_told(self) -> None:
        given = {
            "llm_configs": [
                {"model_loading_config": {"model_id": 1, "model_sauce": "x"}, "engine": {}},
                {"engine_kwargs": {}},
                {**M, "engine_kwargs": {"port": 1, "tensor_parallel_size": "2"}},
                {**M, "placement_group_config": {"bundles": [], "strategy": "BEST"}},
                {**M, "engine_kwargs": []},
                7,
            ],
            "ingres": {},
        }
        with self.assertRaises(ConfigError) as raised:
            read_args(given)
        text = str(raised.exception)
        for words in (
            "llm_configs[0].model_loading_config.model_id: 1 is not a text",
            "llm_configs[0].model_loading_config.model_sauce: is not known (known are model_id,",
            "llm_configs[0].engine: is not known",
            "llm_configs[1].model_loading_config: is missing",
            "llm_configs[2].engine_kwargs.port: is said by Serve's http_options",
            "llm_configs[2].engine_kwargs.tensor_parallel_size: '2' is not a number",
            "llm_configs[3].placement_group_config: is for engine_kwargs.distributed_executor",
            "llm_configs[3].placement_group_config.strategy: 'BEST' is none of PACK, SPREAD",
            "llm_configs[4].engine_kwargs: [] is not an object",
            "llm_configs[5].arguments: 7 is not an object",
            "ingres: is not known (known are llm_configs, ingress_deployment_config)",
        ):
            self.assertIn(words, text)
        others: list[Any] = [{}, {"llm_configs": []}, {"llm_configs": M}, [M]]
        for other in others:
            with self.assertRaises(ConfigError):
                read_args(other)
        with self.assertRaisesRegex(ConfigError, "'m' is the model_id of several models"):
            LLMServingArgs([M, LLMConfig({"model_id": "m"})])

    def test_file(self) -> None:
        try:
            import yaml  # noqa: F401
        except ModuleNotFoundError:
            self.skipTest("no yaml")
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "m.yaml")
            with open(path, "w") as f:
                f.write("model_loading_config: {model_id: m, model_source: a/b}\n")
            self.assertEqual(read_model(path).loading.model_source, "a/b")
            with self.assertRaisesRegex(ConfigError, "no.yaml"):
                read_model(os.path.join(folder, "no.yaml"))


class TestDeployment(unittest.TestCase):
    def test_arguments(self) -> None:
        config: dict[str, Any] = {
            "model_loading_config": {"model_id": "m", "model_source": "/x"},
            "engine_kwargs": {"max_model_len": 9, "enable_prefix_caching": False},
            "deployment_config": {"ray_actor_options": {"num_cpus": 4}},
        }
        want = ["--served-model-name=m", "--model=/x", "--cpu-threads=4", "--log-format=logfmt"]
        want += ["--max-model-len=9", "--enable-prefix-caching=false"]
        self.assertEqual(_arguments(read_model(config)), want)
        config["engine_kwargs"]["tensor_parallel_size"] = 2
        self.assertIn("--cpu-threads=2", _arguments(read_model(config)))
        built_in = LLMConfig({"model_id": "m", "model_source": "go-std-tiny"})
        self.assertEqual(_arguments(built_in), [want[0], want[3]])

    def test_bundles(self) -> None:
        engine = {"distributed_executor_backend": "ray", "tensor_parallel_size": 2}
        config: dict[str, Any] = {**M, "engine_kwargs": engine}
        self.assertEqual(_bundles(read_model(config)), [{"CPU": 1.0}] * 2)
        config["accelerator_type"] = "L4"
        self.assertEqual(
            _bundles(read_model(config)), [{"GPU": 1.0, "accelerator_type:L4": 0.001}] * 2
        )
        config["placement_group_config"] = {"bundles": [{"GPU": 1}, {"NPU": 1}]}
        self.assertEqual(_bundles(read_model(config)), [{"GPU": 1}, {"NPU": 1}])
        self.assertEqual(_own_bundle({"num_cpus": 2, "resources": {"x": 1}}), {"CPU": 2.0, "x": 1})
        self.assertEqual(_own_bundle({"num_cpus": 0}), {"CPU": 0.001})

    def test_single(self) -> None:
        for options, want in (
            ({}, True),
            ({"num_replicas": 1}, True),
            ({"num_replicas": 2}, False),
            ({"num_replicas": "auto"}, False),
            ({"autoscaling_config": {"min_replicas": 0}}, True),
            ({"autoscaling_config": {"max_replicas": 3}}, False),
        ):
            self.assertEqual(_single(options), want, options)


class TestPrefix(unittest.TestCase):
    def test_blocks(self) -> None:
        text = "x" * (3 * BLOCK_CHARS)
        blocks = blocks_of({"prompt": text + "tail"})
        self.assertEqual(len(blocks), 3)
        self.assertEqual(blocks, blocks_of({"prompt": text + "another tail"}))
        self.assertEqual(blocks[:1], blocks_of({"prompt": text[:BLOCK_CHARS] + "y" * 700})[:1])
        self.assertNotEqual(blocks[0], blocks_of({"prompt": "y" + text})[0])
        self.assertEqual(len(blocks_of({"prompt": "x" * 10**6})), MAX_BLOCKS)
        for fields in (
            {},
            {"prompt": 5},
            {"messages": "no"},
            {"messages": [1]},
            {"prompt": "\ud800"},
        ):
            self.assertEqual(blocks_of(fields), ())
        self.assertTrue(blocks_of({"prompt": "\ud800" * BLOCK_CHARS}))
        self.assertTrue(blocks_of({"prompt": list(range(400))}))
        talk = [{"role": "user", "content": text}]
        self.assertEqual(
            blocks_of({"messages": talk})[:3],
            blocks_of({"messages": [*talk, {"role": "user", "content": text}]})[:3],
        )


class TestLoad(unittest.TestCase):
    def test_read(self) -> None:
        text = (
            "# TYPE eagleray:num_requests_running gauge\n"
            'eagleray:num_requests_running{engine="0"} 3\n'
            'eagleray:num_requests_running{engine="1"} 4\n'
            'vllm:num_requests_running{engine="0"} 3\n'
            'eagleray:num_requests_waiting{engine="0"} 1e+01\n'
        )
        self.assertEqual(read_load(text), {"running": 7.0, "waiting": 10.0})
        self.assertEqual(read_load(""), {"running": 0.0, "waiting": 0.0})

    def test_policy(self) -> None:
        for replicas, running, waiting, queued, want in (
            (0, [], [], 0, 0),
            (0, [], [], 3, 1),
            (2, [4, 4], [0, 0], 8, 2),
            (2, [1, 1], [0, 0], 2, 1),
            (2, [2, 2], [6, 0], 10, 5),  # three more run six at two each
            (1, [0], [5], 5, 6),
            (1, [0], [0], 0, 0),
        ):
            context = types.SimpleNamespace(
                aggregated_metrics={
                    "running": dict(enumerate(running)),
                    "waiting": dict(enumerate(waiting)),
                },
                current_num_replicas=replicas,
                total_num_requests=queued,
                config=types.SimpleNamespace(target_ongoing_requests=4),
            )
            self.assertEqual(queue_policy(context), (want, {}), (running, waiting))
