"""What of eagleray.serve needs no Ray."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import types
import unittest
import unittest.mock
from typing import Any

from eagleray._bundles import bundle_of_replica
from eagleray._engine import Engine, _memory
from eagleray.errors import ConfigError, EngineDeadError
from eagleray.serve import CloudMirrorConfig, LLMConfig, LLMServingArgs, LoraConfig
from eagleray.serve.autoscaling import queue_policy
from eagleray.serve._builder import (
    _arguments,
    _bundles,
    _options,
    _own_bundle,
    _single,
    _wrong_router,
    server_arguments,
)
from eagleray.serve._config import read_args, read_model, read_one_model
from eagleray.serve._handover import (
    decode_body,
    prefill_body,
    read_pd_args,
    refuses_transfer,
    transfer_flag,
    transfer_params,
)
from eagleray.serve._metrics import merge, read_load
from eagleray.serve._prefix import BLOCK_CHARS, MAX_BLOCKS, blocks_of

M = {"model_loading_config": {"model_id": "m"}}


class TestEngine(unittest.TestCase):
    def test_nothing_has_a_name_that_an_end_could_leave(self) -> None:
        """When the engine starts there is no folder any more, and a socket that listens."""
        folders: list[str] = []

        def make(*args: Any, real: Any = tempfile.mkdtemp, **kwargs: Any) -> str:
            folders.append(real(*args, **kwargs))
            return folders[-1]

        for private in (False, True):
            with self.subTest(private), tempfile.TemporaryDirectory() as scratch:
                binary, said = os.path.join(scratch, "eagleray"), os.path.join(scratch, "said")
                with open(binary, "w") as f:
                    f.write(f"#!/bin/sh\nexec 2>&1 >{said}\n")
                    f.write(
                        'for x in "$@"; do\n'
                        'case $x in --uds=*) readlink "${x#--uds=}";; esac\n'
                        "done\n"
                    )
                    f.write(
                        '[ -z "$EAGLERAY_PARENT_SOCKET" ] ||\n'
                        "readlink /dev/fd/$EAGLERAY_PARENT_SOCKET\n"
                    )
                    f.write("ls /tmp\n")
                    f.write(
                        """echo '{"failed": {"message": "enough", "usage": false}}' >&2; exit 1\n"""
                    )
                os.chmod(binary, 0o700)
                with (
                    unittest.mock.patch.dict(os.environ, {"EAGLERAY_BINARY": binary}),
                    unittest.mock.patch.object(tempfile, "mkdtemp", make),
                    self.assertRaisesRegex(EngineDeadError, "^enough$"),
                ):
                    Engine([], private=private)
                with open(said) as f:
                    lines = f.read().splitlines()
                folder = folders.pop()
                self.assertRegex(lines[0], r"socket:\[")
                self.assertNotIn(os.path.basename(folder), lines)
                self.assertFalse(os.path.exists(folder))


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
            "llm_configs[3].placement_group_config.strategy: 'BEST' is none of PACK, SPREAD",
            "llm_configs[4].engine_kwargs: [] is not an object",
            "llm_configs[5].arguments: 7 is not an object",
            "ingres: is not known (known are llm_configs, ingress_deployment_config,",
        ):
            self.assertIn(words, text)
        others: list[Any] = [{}, {"llm_configs": []}, {"llm_configs": M}, [M]]
        for other in others:
            with self.assertRaises(ConfigError):
                read_args(other)
        with self.assertRaisesRegex(ConfigError, "'m' is the model_id of several models"):
            LLMServingArgs([M, LLMConfig({"model_id": "m"})])

    def test_fields_of_ray(self) -> None:
        given = LLMConfig(
            {"model_id": "m"},
            accelerator_type="L4",
            llm_engine="vLLM",
            log_engine_metrics=True,
            lora_config={"max_num_adapters_per_replica": 4},
            experimental_configs={"dp_size_per_node": 2, "num_ingress_replicas": 3},
        )
        given.accelerator_type = None
        given.engine_kwargs = {"tensor_parallel_size": 0}
        self.assertEqual(given.without_effect, ["experimental_configs.dp_size_per_node"])
        self.assertEqual(given.ingress_replicas, 3)
        with self.assertRaisesRegex(ConfigError, "tensor_parallel_size: 0 is not"):
            read_args({"llm_configs": [given]})
        for fields, words in (
            ({"lora_config": {"dynamic_lora_loading_path": 3}}, "loading_path: 3 is not a text"),
            ({"lora_config": LoraConfig("s3://x", 0)}, "per_replica: 0 is not 1 or more"),
            ({"lora_config": {"path": "x"}}, "lora_config.path: is not known"),
            ({"server_cls": "a:b"}, "server_cls: the deployment has one class"),
            ({"callback_config": {}}, "callback_config: an engine starts without Python"),
            ({"llm_engine": "SGLang"}, "llm_engine: 'SGLang' is not vLLM"),
            ({"experimental_configs": {"num_ingress_replicas": 0}}, "0 is not 1 or more"),
        ):
            with self.assertRaisesRegex(ConfigError, words):
                read_model({**M, **fields})
        for source, words in (
            ({"bucket_uri": "abfss://c@a/m"}, "bucket_uri: 'abfss://c@a/m' does not begin with s3"),
            (CloudMirrorConfig(), "bucket_uri: None does not begin with s3"),
            (CloudMirrorConfig("s3://b/m", [{}]), "extra_files: are not read"),
            ({"bucket": "s3://b/m"}, "model_source.bucket: is not known"),
            ("", "model_source: '' is not a text"),
            (7, "model_source: 7 is neither a text"),
        ):
            with self.assertRaisesRegex(ConfigError, words):
                read_model({"model_loading_config": {"model_id": "m", "model_source": source}})
        for good in ("s3://b/m", {"bucket_uri": "s3://b/m"}, CloudMirrorConfig("s3://b/m")):
            loading = {"model_id": "m", "model_source": good}
            self.assertEqual(read_model({"model_loading_config": loading}).source, "s3://b/m")
        named = read_model(M)
        self.assertEqual(named.source, "m")
        named.model_loading_config["model_source"] = "org/name"  # type: ignore[index]
        self.assertEqual(read_model(named).source, "org/name")
        with self.assertRaises(KeyError):
            named.model_loading_config["source"] = "x"  # type: ignore[index]
        with self.assertRaisesRegex(ConfigError, "llm_config: is missing"):
            read_one_model({})
        self.assertEqual(read_one_model({"llm_config": M}).models[0].model_id, "m")

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
        named = LLMConfig({"model_id": "m"})
        self.assertEqual(_arguments(named), [want[0], "--model=m", want[3]])

    def test_bundles(self) -> None:
        engine = {"distributed_executor_backend": "ray", "tensor_parallel_size": 2}
        config: dict[str, Any] = {**M, "engine_kwargs": engine}
        self.assertEqual(_bundles(read_model(config)), [{"CPU": 1.0}] * 2)
        config["accelerator_type"] = "L4"
        self.assertEqual(
            _bundles(read_model(config)), [{"GPU": 1.0, "accelerator_type:L4": 0.001}] * 2
        )
        config["placement_group_config"] = {"bundles": [{"GPU": 1}, {"NPU": 1}]}
        typed = [{"GPU": 1, "accelerator_type:L4": 0.001}, {"NPU": 1, "accelerator_type:L4": 0.001}]
        self.assertEqual(_bundles(read_model(config)), typed)
        config["placement_group_config"] = {"bundle_per_worker": {"GPU": 2}}
        self.assertEqual(
            _bundles(read_model(config)), [{"GPU": 2, "accelerator_type:L4": 0.001}] * 2
        )
        self.assertEqual(_own_bundle({"num_cpus": 2, "resources": {"x": 1}}), {"CPU": 2.0, "x": 1})
        self.assertEqual(_own_bundle({"num_cpus": 0}), {"CPU": 0.001})

    def test_bundles_of_processes(self) -> None:
        engine = {"tensor_parallel_size": 2}
        group = {"bundle_per_worker": {"GPU": 1, "CPU": 2, "x": 1}}
        config = {**M, "engine_kwargs": engine, "placement_group_config": group}
        options = _options(read_model(config))
        self.assertEqual(
            options["ray_actor_options"], {"num_gpus": 2, "num_cpus": 4, "resources": {"x": 2}}
        )
        self.assertNotIn("placement_group_bundles", options)
        self.assertIn("--cpu-threads=2", _arguments(read_model(config)))
        typed = _options(read_model({**config, "accelerator_type": "L4"}))
        self.assertEqual(
            typed["ray_actor_options"]["resources"], {"accelerator_type:L4": 0.002, "x": 2}
        )

    def test_bundle_of_a_replica(self) -> None:
        one, more = {"CPU": 1.0}, {"CPU": 1.0, "GPU": 1.0}
        for bundles, nodes, want in (
            ([one, one, one], "abc", 0),
            ([one, one, one], "bac", 1),
            ([one, one, one], "bca", 2),
            ([one, one, one], "baa", 1),
            ([one, more, one], "baa", 2),
            ([one, more], "ba", 0),
        ):
            group = {
                "bundles": dict(enumerate(bundles)),
                "bundles_to_node_id": dict(enumerate(nodes)),
            }
            self.assertEqual(bundle_of_replica(group, "a"), want)

    def test_one_starts_where_none_need(self) -> None:
        for given, want in (
            ({"min_replicas": 0}, 1),
            ({"min_replicas": 0, "initial_replicas": 0}, 0),
            ({"min_replicas": 1}, None),
        ):
            options = _options(
                read_model({**M, "deployment_config": {"autoscaling_config": given}})
            )
            self.assertEqual(options["autoscaling_config"].get("initial_replicas"), want)

    def test_wrong_router(self) -> None:
        class Router:
            def initialize_state(self, most: float = 2, on: bool = True, at: Any = None) -> None:
                """Take arguments."""

        for kwargs, words in (
            ({"most": 3, "on": False, "at": "x"}, []),
            ({"least": 3}, ["least: is not known (known are most, on, at)"]),
            ({"most": "3", "on": 1}, ["most: '3' is not a number", "on: 1 is neither true nor"]),
        ):
            config = {"request_router_class": Router, "request_router_kwargs": kwargs}
            told = _wrong_router({"request_router_config": config})
            self.assertEqual(len(told), len(words), told)
            for line, word in zip(told, words):
                self.assertIn(f"request_router_config.request_router_kwargs.{word}", line)
        for cls in ("no.such:R", 7):
            wrong = {"request_router_config": {"request_router_class": cls}}
            self.assertEqual(len(_wrong_router(wrong)), 1)

    def test_token_is_no_flag(self) -> None:
        given = {**M, "engine_kwargs": {"hf_token": "secret"}}
        arguments, *_, more, _ = server_arguments(read_model(given))
        self.assertEqual(more, {"HF_TOKEN": "secret"})
        self.assertNotIn("secret", " ".join(arguments))

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

    def test_merge(self) -> None:
        one = '# HELP a A.\n# TYPE a counter\na 1\n# TYPE b gauge\nb{x="y {z"} 2\n'
        self.assertEqual(
            merge([("r", one), ("s", one)]),
            "# HELP a A.\n# TYPE a counter\n"
            'a{replica="r"} 1\na{replica="s"} 1\n'
            "# TYPE b gauge\n"
            'b{replica="r",x="y {z"} 2\nb{replica="s",x="y {z"} 2\n',
        )

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


class TestSplit(unittest.TestCase):
    def test_roles(self) -> None:
        extra = {"kv_connector_extra_config": {"hold_timeout_seconds": 9}}
        given = {**M, "engine_kwargs": {"block_size": 8, "kv_transfer_config": extra}}
        args = read_pd_args({"prefill_config": given, "decode_config": M})
        connector = {"kv_connector": "EagleRayConnector"}
        self.assertEqual(
            args.prefill.engine_kwargs,
            {
                "block_size": 8,
                "kv_transfer_config": {**connector, "kv_role": "kv_producer", **extra},
            },
        )
        config = args.decode.engine_kwargs["kv_transfer_config"]
        self.assertEqual(config, {**connector, "kv_role": "kv_consumer"})
        flag, _, value = transfer_flag(config, "10.0.0.1").partition("=")
        self.assertEqual(flag, "--kv-transfer-config")
        self.assertEqual(json.loads(value), {**config, "kv_ip": "10.0.0.1"})

    def test_all_that_is_wrong_is_told(self) -> None:
        def role(name: Any) -> dict[str, Any]:
            return {**M, "engine_kwargs": {"kv_transfer_config": name}}

        for prefill, decode, words in (
            (
                role({"kv_role": "kv_consumer"}),
                M,
                "prefill_config.engine_kwargs.kv_transfer_config",
            ),
            (M, role({"kv_role": "kv_producer"}), "'kv_producer' is not kv_consumer or kv_both"),
            (role("{}"), M, "kv_transfer_config: '{}' is not an object"),
            ({}, M, "prefill_config.model_loading_config: is missing"),
            (M, {"model_loading_config": {"model_id": "n"}}, "'n' is not that of prefill_config"),
        ):
            with self.assertRaises(ConfigError) as raised:
                read_pd_args({"prefill_config": prefill, "decode_config": decode})
            self.assertIn(words, str(raised.exception))
        with self.assertRaisesRegex(ConfigError, "decode_config: is missing"):
            read_pd_args({"prefill_config": M})
        with self.assertRaisesRegex(ConfigError, "ingress_deployment_config: 7 is not an object"):
            read_pd_args({"prefill_config": M, "decode_config": M, "ingress_deployment_config": 7})

    def test_requests(self) -> None:
        body = b' {"prompt": "x",  "stream": true, "seed": 3, "n": 2, "logprob_token_ids": [5]}'
        asked = prefill_body(b"/v1/completions?a=b", body)
        assert asked is not None
        want = {"prompt": "x", "max_tokens": 1, "seed": 3}
        self.assertEqual(
            json.loads(asked), {**want, "kv_transfer_params": {"do_remote_decode": True}}
        )
        answer = json.dumps({"choices": [], "kv_transfer_params": {"remote_port": 7}}).encode()
        params = transfer_params(200, answer)
        assert params is not None
        self.assertEqual(
            decode_body(body, params),
            b' {"kv_transfer_params":{"remote_port": 7},' + body[2:],
        )
        for status, text in ((200, b"{}"), (200, b"[]"), (200, b"no"), (503, answer)):
            self.assertIsNone(transfer_params(status, text))
        for target, text in (
            (b"/v1/embeddings", body),
            (b"/v1/completions", b"[1]"),
            (b"/v1/completions", b"{}"),
            (b"/v1/completions", b"no"),
            (b"/v1/chat/completions", b'{"use_beam_search": true}'),
            (b"/v1/chat/completions", b'{"kv_transfer_params": {}}'),
        ):
            self.assertIsNone(prefill_body(target, text))

    def test_refusals(self) -> None:
        for status, param, want in (
            (400, "kv_transfer_params.remote_seal", True),
            (400, "kv_transfer_params", True),
            (400, "max_tokens", False),
            (400, None, False),
            (500, "kv_transfer_params", False),
        ):
            text = json.dumps({"error": {"param": param}}).encode()
            self.assertEqual(refuses_transfer(status, text), want, (status, param))
        self.assertFalse(refuses_transfer(400, b"no"))

    def test_token_has_no_name(self) -> None:
        fd = _memory("secret")
        try:
            for _ in range(2):
                read = subprocess.run(
                    ["cat", f"/proc/self/fd/{fd}"], pass_fds=(fd,), capture_output=True, check=True
                )
                self.assertEqual(read.stdout, b"secret")
        finally:
            os.close(fd)
