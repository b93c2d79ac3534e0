"""What of eagleray.data needs no Ray."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib.util
import json
import os
import queue
import tempfile
import unittest
from typing import Any, Optional, cast
from unittest import mock

from eagleray import BadRequestError, EngineDeadError, RequestError
from eagleray._calls import Calls
from eagleray.data import (
    ChatTemplateStageConfig,
    EngineProcessorConfig,
    HttpRequestProcessorConfig,
    ServeDeploymentProcessorConfig,
    TokenizerStageConfig,
    _place,
    _progress_line,
    _services,
    build_llm_processor,
    vLLMEngineProcessorConfig,
)
from eagleray.data._checkpoint import Checkpoint, digest_of, key_of
from eagleray.data._feed import Feed, Request
from eagleray.data._rows import ERROR, failed, outputs_of, request_of, shows_text

RAY = {"distributed_executor_backend": "ray", "tensor_parallel_size": 2}


class TestConfig(unittest.TestCase):
    def test_refused(self) -> None:
        for name, fields in {
            "batch_size": {"batch_size": 0},
            "concurrency": {"concurrency": (2, 1)},
            "max_pending_requests": {"max_pending_requests": -1},
            "task_type": {"task_type": "scores"},
            "engine_kwargs": {"engine_kwargs": {"model": "x"}},
            "checkpoint_path": {"checkpoint_path": "s3://bucket/folder"},
            "log_interval_s": {"log_interval_s": 0.0},
            "chat_template_stage": {"chat_template_stage": {"template": "x"}},
            "tokenize_stage": {"tokenize_stage": {"enable": True}},
            "detokenize_stage": {"detokenize": 7},
            "no images": {"has_image": True},
            "no folder of adapters": {"dynamic_lora_loading_path": "s3://x"},
            "give one of": {"placement_group_config": {}},
            "unknown": {"placement_group_config": {"bundle": {}}},
            "3 bundles for 1 ranks": {"placement_group_config": {"bundles": [{"CPU": 1}] * 3}},
            "SPREAD": {
                "engine_kwargs": RAY,
                "placement_group_config": {"bundle_per_worker": {"GPU": 1}, "strategy": "SPREAD"},
            },
            "one device": {
                "engine_kwargs": RAY,
                "placement_group_config": {"bundle_per_worker": {"GPU": 1, "CPU": 1}},
            },
        }.items():
            with self.subTest(name), self.assertRaisesRegex(ValueError, name):
                EngineProcessorConfig(**fields)  # type: ignore[arg-type]

    def test_names_of_ray(self) -> None:
        former = EngineProcessorConfig(
            apply_chat_template=True, chat_template="t", tokenize=False, detokenize=False
        )
        self.assertEqual(former.template, ChatTemplateStageConfig(chat_template="t"))
        self.assertEqual((former.tokenizing.enabled, former.detokenizing.enabled), (False, False))
        self.assertEqual(dataclasses.replace(former), former)
        tuned = EngineProcessorConfig(
            chat_template_stage={"batch_size": 9},
            tokenize_stage=TokenizerStageConfig(num_cpus=2),
        )
        self.assertEqual(
            tuned.without_effect, ["chat_template_stage.batch_size", "tokenize_stage.num_cpus"]
        )
        for row, config, want in (
            ({}, EngineProcessorConfig(), True),
            ({}, former, False),
            ({"sampling_params": {"detokenize": True}}, former, True),
            ({"sampling_params": {"detokenize": False}}, EngineProcessorConfig(), True),
        ):
            self.assertEqual(shows_text(row, config), want)

    def test_processor(self) -> None:
        kwargs = {"chat_template_kwargs": {"enable_thinking": True}}
        processor = build_llm_processor(vLLMEngineProcessorConfig(), builder_kwargs=kwargs)
        config = processor.config
        assert isinstance(config, EngineProcessorConfig)
        self.assertEqual(config.template.chat_template_kwargs, {"enable_thinking": True})
        with self.assertLogs("ray.data.llm", "INFO") as told:
            processor.log_input_column_names()
        self.assertIn("messages: A list of messages", told.output[0])
        with self.assertRaisesRegex(ValueError, "builder_kwargs: preprocess: not known"):
            build_llm_processor(EngineProcessorConfig(), builder_kwargs={"preprocess": None})
        changed = EngineProcessorConfig()
        changed.batch_size = 0
        with self.assertRaisesRegex(ValueError, "batch_size: 0"):
            build_llm_processor(changed)

    def test_services(self) -> None:
        cases: dict[str, dict[str, Any]] = {
            "url: 'x' is neither": {"url": "x"},
            "qps: 0": {"qps": 0},
            "max_retries: -1": {"max_retries": -1},
            "without it nothing": {"http_request_stage": False},
            "concurrency": {"http_request_stage": {"concurrency": 0}},
        }
        for wrong, fields in cases.items():
            with self.subTest(wrong), self.assertRaisesRegex(ValueError, wrong):
                HttpRequestProcessorConfig(**{"url": "http://x", **fields})
        web = HttpRequestProcessorConfig(
            "http://x", http_request_stage={"batch_size": 3, "num_cpus": 0.5}
        )
        self.assertEqual((web.batch_size, web.actor_options()), (3, {"num_cpus": 0.5}))
        with self.assertRaisesRegex(ValueError, "request_timeout_s: 0"):
            ServeDeploymentProcessorConfig("d", request_timeout_s=0)

    def test_asked_of_ray(self) -> None:
        for fields, want in (
            ({}, {"num_cpus": 1}),
            (
                {"engine_kwargs": {"tensor_parallel_size": 2, "cpu_threads": 3}},
                {"num_cpus": 6},
            ),
            (
                {"accelerator_type": "H100", "engine_kwargs": {"pipeline_parallel_size": 2}},
                {"num_gpus": 2, "accelerator_type": "H100"},
            ),
            ({"engine_kwargs": RAY}, {"num_cpus": 0}),
            (
                {"placement_group_config": {"bundles": [{"CPU": 2, "GPU": 1, "NPU": 3}]}},
                {"num_gpus": 1, "resources": {"NPU": 3}},
            ),
            (
                {"placement_group_config": {"bundles": [{"CPU": 2, "memory": 7}]}},
                {"num_cpus": 2, "memory": 7},
            ),
            (
                {"placement_group_config": {"bundles": [{"NPU": 1}]}},
                {"num_cpus": 0, "resources": {"NPU": 1}},
            ),
        ):
            with self.subTest(fields):
                config = EngineProcessorConfig(**fields)
                self.assertEqual(config.actor_options(), want)

    def test_threads(self) -> None:
        """Ranks compute on what Ray gives their actor."""
        two = {"tensor_parallel_size": 2}
        for bundle, engine, want in (
            ({"CPU": 3}, two, {**two, "cpu_threads": 3}),
            ({"CPU": 0.5}, two, {**two, "cpu_threads": 1}),
            ({"CPU": 3}, {**two, "cpu_threads": 2}, {**two, "cpu_threads": 2}),
            ({"GPU": 1}, two, two),
        ):
            group = {"bundle_per_worker": bundle}
            config = EngineProcessorConfig(engine_kwargs=engine, placement_group_config=group)
            self.assertEqual(_place.engine_args(config), want)

    def test_pool(self) -> None:
        self.assertEqual(
            EngineProcessorConfig(concurrency=(1, 4), max_concurrent_batches=3).pool(),
            {"min_size": 1, "max_size": 4, "max_tasks_in_flight_per_actor": 6},
        )
        self.assertEqual(EngineProcessorConfig(engine_kwargs={"max_num_seqs": 10}).pending, 20)


class TestServices(unittest.TestCase):
    def setUp(self) -> None:
        stats = mock.patch.object(_services, "StatLogger")  # which needs Ray
        stats.start()
        self.addCleanup(stats.stop)

    def errors(self, calls: list[Any]) -> list[str]:
        """Return what rows have as their errors."""
        config = ServeDeploymentProcessorConfig("d", should_continue_on_error=True)
        stage = _services._ServiceStage(config)
        rows = asyncio.run(stage._together([{}] * len(calls), calls))
        return [row.get(ERROR, "") for row in rows]

    def test_errors_of_rows(self) -> None:
        async def answer(error: Optional[Exception]) -> dict[str, Any]:
            if error is not None:
                raise error
            return {}

        failed = [BadRequestError("x"), RequestError("step failed", 500), TimeoutError("late")]
        want = ["", "BadRequestError: x", "RequestError: step failed", "TimeoutError: late"]
        self.assertEqual(self.errors([answer(e) for e in (None, *failed)]), want)
        with self.assertRaises(EngineDeadError):
            self.errors([answer(EngineDeadError("x"))])

    @unittest.skipUnless(importlib.util.find_spec("aiohttp"), "aiohttp is not here")
    def test_answers_of_a_service(self) -> None:
        said = [(500, "a proxy says no"), (200, '{"a": 1}'), (400, '{"b": 2}'), (200, "")]

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"{}")
            status, text = said.pop(0)
            kind = "application/json" if text.startswith("{") else "text/plain"
            head = f"HTTP/1.1 {status} x\r\nContent-Type: {kind}\r\nConnection: close\r\n\r\n"
            writer.write((head + text).encode())
            writer.close()

        async def run() -> list[Any]:
            server = await asyncio.start_server(serve, "127.0.0.1", 0)
            async with server:
                url = "http://127.0.0.1:%d" % server.sockets[0].getsockname()[1]
                # One after the other.
                config = HttpRequestProcessorConfig(url, should_continue_on_error=True)
                stage = _services.HttpStage(config)
                rows = [await stage._batch([{"payload": {}}]) for _ in range(4)]
            return [row.get("http_response") or row[ERROR].replace(url, "URL") for (row,) in rows]

        no = "ValueError: URL: the answer is no JSON: status"
        want = [f"{no} 500: a proxy says no", {"a": 1}, {"b": 2}, f"{no} 200: "]
        self.assertEqual(asyncio.run(run()), want)


class TestRows(unittest.TestCase):
    def body(self, row: dict[str, Any], **fields: Any) -> tuple[str, dict[str, Any]]:
        """Return what is asked, without what every request has."""
        route, body = request_of(row, EngineProcessorConfig(**fields))
        known = request_of({"prompt": ""}, EngineProcessorConfig())[1]
        return route, {k: v for k, v in body.items() if k not in known or v != known[k]}

    def test_row_of_another_processor(self) -> None:
        """What the one before has read is no prompt of this one."""
        before = {"prompt_token_ids": [1, 2], "prompt": "a", "generated_text": "b"}
        self.assertEqual(self.body({**before, "prompt": "c"})[1]["prompt"], "c")
        self.assertEqual(self.body({**before, "prompt": "c"}, task_type="embed")[1]["input"], "c")
        messages = [{"role": "user", "content": "c"}]
        route, body = self.body({**before, "messages": messages})
        self.assertEqual((route, body["messages"]), ("/v1/chat/completions", messages))

    def test_routes(self) -> None:
        said = [{"role": "user", "content": "hi", "name": None}]
        chat = {"messages": [{"role": "user", "content": "hi"}], "return_prompt_text": True}
        for row, fields, want in (
            ({"prompt": "a"}, {}, ("/v1/completions", {"prompt": "a"})),
            (
                {"tokenized_prompt": [1, 2], "prompt": "a"},
                {},
                ("/v1/completions", {"prompt": [1, 2]}),
            ),
            ({"messages": said}, {}, ("/v1/chat/completions", chat)),
            (
                {"messages": said, "prompt": "a"},
                {"chat_template_stage": False},
                ("/v1/completions", {"prompt": "a"}),
            ),
            (
                {"messages": said, "sampling_params": {"temperature": 0.0, "seed": None}},
                {"chat_template_stage": {"chat_template_kwargs": {"x": 1}}},
                (
                    "/v1/chat/completions",
                    {**chat, "temperature": 0.0, "chat_template_kwargs": {"x": 1}},
                ),
            ),
            (
                {"prompt": "a", "sampling_params": {"guided_decoding": {"regex": "a+"}}},
                {},
                ("/v1/completions", {"prompt": "a", "structured_outputs": {"regex": "a+"}}),
            ),
            (
                {"prompt": "a", "model": "sql"},
                {"dynamic_lora_loading_path": "/adapters"},
                ("/v1/completions", {"prompt": "a", "model": "sql"}),
            ),
            (
                {"prompt": "a", "model": "m"},
                {"dynamic_lora_loading_path": "/adapters", "model_source": "m"},
                ("/v1/completions", {"prompt": "a"}),
            ),
            ({"prompt": "a", "model": "sql"}, {}, ("/v1/completions", {"prompt": "a"})),
            ({"prompt": "a"}, {"task_type": "embed"}, ("/v1/embeddings", {"input": "a"})),
            (
                {"prompt": "a", "pooling_params": {"use_activation": False}},
                {"task_type": "classify"},
                ("/classify", {"input": "a", "use_activation": False}),
            ),
            (
                {"text_1": "a", "text_2": "b", "pooling_params": {"truncate_prompt_tokens": 3}},
                {"task_type": "score"},
                ("/v1/score", {"text_1": "a", "text_2": "b", "truncate_prompt_tokens": 3}),
            ),
        ):
            with self.subTest(row=row):
                self.assertEqual(self.body(row, **fields), want)

    def test_refused(self) -> None:
        wrong: dict[str, dict[str, Any]] = {
            "neither messages": {"text": "a"},
            "sampling_params": {"prompt": "a", "sampling_params": {"temprature": 1}},
            "is no dict": {"prompt": "a", "sampling_params": 3},
            "token ids": {"tokenized_prompt": ["a"]},
            "exactly one": {"prompt": "a", "sampling_params": {"structured_outputs": {}}},
        }
        for name, row in wrong.items():
            with self.subTest(name), self.assertRaisesRegex((ValueError, TypeError), name):
                request_of(row, EngineProcessorConfig())
        with self.assertRaisesRegex(ValueError, "text_2: NoneType"):
            request_of({"text_1": "a"}, EngineProcessorConfig(task_type="score"))

    def test_classes(self) -> None:
        config = EngineProcessorConfig(task_type="classify")
        data = {"index": 0, "label": "yes", "probs": [0.25, 0.75], "num_classes": 2}
        answer = {"usage": {"prompt_tokens": 3}, "data": [data]}
        got = outputs_of({}, {}, answer, True)
        probs = [0.25, 0.75]
        want = {"num_input_tokens": 3, "label": "yes", "probs": probs, "embeddings": probs}
        self.assertEqual(got, want)
        lost = failed({}, "why", config)
        self.assertEqual((lost["label"], lost["probs"]), ("", []))
        self.assertLessEqual(set(got), set(lost))


class TestCheckpoint(unittest.TestCase):
    def setUp(self) -> None:
        held = tempfile.TemporaryDirectory()
        self.addCleanup(held.cleanup)
        self.folder = held.name

    def open(self) -> Checkpoint:
        """Return one more actor's."""
        kept = Checkpoint(self.folder)
        self.addCleanup(kept.close)
        return kept

    def test_kept(self) -> None:
        first, other = self.open(), self.open()
        for i in range(3):
            first.add(key_of(i), "d", {"text": f"é{i}"})
        self.assertEqual(first.find("1", "d"), {"text": "é1"})
        self.assertIsNone(other.find("1", "d"))
        other.refresh()
        self.assertEqual(other.find("2", "d"), {"text": "é2"})
        first.add(key_of("3"), "d", {"text": "later"})
        other.refresh()
        self.assertEqual(other.find('"3"', "d"), {"text": "later"})
        self.assertIsNone(other.find("3", "d"), "a number is not the text of it")
        self.assertIsNone(other.find("2", "e"), "of another request")
        self.assertEqual(self.open().find("0", "d"), {"text": "é0"})

    def test_asked_otherwise(self) -> None:
        """What was asked of a row before, or of another model, is kept beside it."""
        kept = [self.open() for _ in range(2)]
        for number, of_request in enumerate(kept):
            of_request.add("1", f"d{number}", {"text": str(number)})
        again = self.open()
        for number in range(len(kept)):
            self.assertEqual(again.find("1", f"d{number}"), {"text": str(number)})

    def test_cut_off(self) -> None:
        first = self.open()
        first.add("1", "d", {"text": "a"})
        first.add("2", "d", {"text": "b"})
        (name,) = os.listdir(self.folder)
        path = os.path.join(self.folder, name)
        whole = os.path.getsize(path)
        os.truncate(path, whole - 3)
        again = self.open()
        self.assertEqual(again.find("1", "d"), {"text": "a"})
        self.assertIsNone(again.find("2", "d"))
        # Its writer finishes the line, and a disk that is full leaves one that is no answer.
        with open(path, "ab") as file:
            file.write(b'}}\n{"id": "3", "req\n')
            file.write(json.dumps({"id": "4", "request": "d", "outputs": {}}).encode() + b"\n")
        again.refresh()
        self.assertEqual(again.find("2", "d"), {"text": "b"})
        self.assertIsNone(again.find("3", "d"))
        self.assertEqual(again.find("4", "d"), {})

    def test_names(self) -> None:
        with self.assertRaisesRegex(ValueError, "neither a text nor a number"):
            key_of(None)
        self.assertNotEqual(digest_of("a", "/r", {"x": 1}), digest_of("b", "/r", {"x": 1}))
        self.assertEqual(
            digest_of("a", "/r", {"x": 1, "y": 2}), digest_of("a", "/r", {"y": 2, "x": 1})
        )


class Asked(Request):
    """A request that keeps what it took."""

    def __init__(self, feed: Feed, name: str) -> None:
        super().__init__(feed, "/v1/completions", {"name": name})
        self.taken: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def take(self, answer: Any) -> None:
        self.taken.put(answer)


class Sent:
    """An engine that is only told."""

    def __init__(self) -> None:
        self.sent: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.cancelled: queue.SimpleQueue[str] = queue.SimpleQueue()

    def call(self, route: str, body: dict[str, Any], receiver: Asked) -> str:
        if body["name"] == "bad":
            raise BadRequestError("too long", 413)
        return str(body["name"])

    def send(self, calls: list[str]) -> None:
        self.sent.put("".join(calls))

    def cancel(self, call: str) -> None:
        self.cancelled.put(call)


class TestFeed(unittest.TestCase):
    def setUp(self) -> None:
        self.engine = Sent()
        self.feed = Feed(cast(Calls, self.engine), 2)
        self.addCleanup(self.feed.close)

    def asked(self, names: str) -> dict[str, Asked]:
        requests = {name: Asked(self.feed, name) for name in names}
        self.feed.put(requests.values())
        return requests

    def sent(self, count: int) -> str:
        """Wait for so many to be sent, and return them."""
        names = ""
        while len(names) < count:
            names += self.engine.sent.get(timeout=60)
        return names

    def test_room(self) -> None:
        rows = self.asked("abcde")
        self.assertEqual(self.sent(2), "ab")
        rows["b"].answer({"x": 1})
        self.assertEqual(rows["b"].taken.get(timeout=60), {"x": 1})
        self.assertEqual(self.sent(1), "c")
        rows["a"].fail(BadRequestError("wrong"))
        self.assertRegex(str(rows["a"].taken.get(timeout=60)), "wrong")
        rows["c"].answer({})
        self.assertEqual(self.sent(2), "de")
        rows["d"].fail(EngineDeadError("gone"))
        self.assertIsInstance(rows["d"].taken.get(timeout=60), EngineDeadError)

    def test_dropped(self) -> None:
        first, other = self.asked("abcd"), self.asked("ef")
        self.assertEqual(self.sent(2), "ab")
        self.feed.drop(first.values())
        self.assertEqual({self.engine.cancelled.get(timeout=60) for _ in "ab"}, {"a", "b"})
        # An answer that was on its way belongs to no request, and makes no more room.
        first["a"].answer({})
        later = self.asked("gh")
        self.assertEqual(self.sent(2), "ef")
        other["e"].answer({})
        self.assertEqual(self.sent(1), "g")
        later["g"].answer({})
        self.assertEqual(self.sent(1), "h")
        self.assertTrue(all(row.taken.empty() for row in first.values()))

    def test_that_cannot_be_sent(self) -> None:
        bad = Asked(self.feed, "bad")
        self.feed.put([bad])
        self.assertIsInstance(bad.taken.get(timeout=60), BadRequestError)
        self.asked("ab")
        self.assertEqual(self.sent(2), "ab")


class Shown:
    """A bar without a terminal."""

    def __init__(self) -> None:
        self.n = 0
        self.said = ""
        self.closed = asyncio.Event()
        self.set_description = self.say
        self.close = self.closed.set

    def say(self, text: str) -> None:
        self.said = text

    def update(self, n: int) -> None:
        self.n += n


class TestProgressLine(unittest.IsolatedAsyncioTestCase):
    async def test_adds_up(self) -> None:
        bars: list[Shown] = []

        def bar() -> Shown:
            bars.append(Shown())
            return bars[-1]

        with (
            mock.patch.object(_progress_line, "IDLE", 0.01),
            mock.patch.object(_progress_line, "BETWEEN", 0.01),
        ):
            line = _progress_line.ProgressLine("/models/Qwen3-0.6B/", bar)
            await line.tell("a", 0, 0, 2)
            self.assertEqual(
                (bars[0].n, bars[0].said[:39]), (0, "eagleray Qwen3-0.6B: 0 rows, 0.0 rows/s")
            )
            await line.tell("a", 1, 10, 1)
            await line.tell("b", 3, 300, 1)
            # One of them has rows still, and it says nothing more for a while.
            await line.tell("a", 2, 20, 0)
            await asyncio.sleep(0.05)
            self.assertFalse(bars[0].closed.is_set())
            await line.tell("b", 4, 400, 0)
            await asyncio.wait_for(bars[0].closed.wait(), 60)
            self.assertEqual(bars[0].n, 420)
            self.assertRegex(bars[0].said, r"^eagleray Qwen3-0.6B: 6 rows, \d+\.\d rows/s$")
            # What comes later has a line of its own, which begins anew.
            await line.tell("a", 2, 20, 1)
            await line.tell("c", 1, 5, 0)
            await line.tell("a", 3, 30, 0)
            await asyncio.wait_for(bars[1].closed.wait(), 60)
            self.assertEqual(bars[1].n, 15)
            self.assertIn(": 2 rows,", bars[1].said)
        self.assertEqual(len(bars), 2)
