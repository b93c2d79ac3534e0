"""AsyncLLM against the binary and its built-in model."""

from __future__ import annotations

import asyncio
import os
import tempfile
import inspect
import threading
import time
import unittest
from dataclasses import replace

import eagleray
from eagleray import LLM, AsyncLLM, RequestOutput, RequestOutputKind, SamplingParams
from eagleray._trainable import AsyncTrainable
from eagleray.weights import Trainable, WeightTransfer

from .test_weights import MODEL, swapped, tensors

QUESTION = "What does os.Open do?"


async def last(llm: AsyncLLM, prompt: str, params: SamplingParams) -> RequestOutput:
    """Return the last output of a prompt."""
    async for output in llm.generate(prompt, params):
        pass
    return output


class TestAsyncLLM(unittest.IsolatedAsyncioTestCase):
    """One engine for each test: a start is 30 ms."""

    def setUp(self) -> None:
        self.llm = AsyncLLM()
        self.addCleanup(self.llm.shutdown)

    async def test_cumulative(self) -> None:
        params = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)
        outputs: list[RequestOutput] = []
        deadline = time.monotonic() + 30
        while len(outputs) < 2:  # what comes while this process is held up is one output
            self.assertLess(time.monotonic(), deadline)
            outputs = [o async for o in self.llm.generate(QUESTION, params)]
        for before, after in zip(outputs, outputs[1:]):
            self.assertTrue(after.outputs[0].text.startswith(before.outputs[0].text))
            self.assertFalse(before.finished)
        final = outputs[-1]
        self.assertTrue(final.finished)
        self.assertEqual(final.prompt, QUESTION)
        self.assertEqual(len(final.outputs[0].token_ids), 200)
        self.assertEqual(final.outputs[0].finish_reason, "length")

    async def test_together(self) -> None:
        params = SamplingParams(temperature=0, max_tokens=20)
        alone = await last(self.llm, QUESTION, params)
        many = await asyncio.gather(*(last(self.llm, QUESTION, params) for _ in range(50)))
        for output in many:
            self.assertEqual(output.outputs[0].text, alone.outputs[0].text)

    async def test_weights(self) -> None:
        """A trainer's calls have the names that LLM has, and the event loop goes on meanwhile."""
        names = {n for n in vars(Trainable) if not n.startswith("_")} - {"request"}
        self.assertEqual(names - set(vars(AsyncTrainable)), set())
        for name in names:
            here, there = getattr(AsyncTrainable, name), getattr(Trainable, name)
            self.assertEqual(inspect.signature(here), inspect.signature(there), name)
        params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
        before = (await last(self.llm, QUESTION, params)).outputs[0].token_ids
        own = tensors()
        outputs = self.llm.generate(QUESTION, replace(params, max_tokens=300))
        await outputs.__anext__()
        await self.llm.pause("keep")
        self.assertTrue(await self.llm.is_paused())
        held = asyncio.ensure_future(last(self.llm, QUESTION, params))
        self.assertEqual(await self.llm.update_weights(swapped(own), "v1"), "v1")
        self.assertFalse(held.done())
        await self.llm.resume()
        after = (await held).outputs[0].token_ids
        self.assertNotEqual(after, before)
        async for output in outputs:
            pass
        self.assertEqual(len(output.outputs[0].token_ids), 300)
        transfer = WeightTransfer(self.llm.trainable, "unix")
        self.assertEqual(await asyncio.to_thread(transfer.update, own), "2")
        self.assertEqual((await last(self.llm, QUESTION, params)).outputs[0].token_ids, before)
        with self.assertRaisesRegex(eagleray.BadRequestError, "is missing"):
            await self.llm.update_weights({"model.norm.weight": own["model.norm.weight"]})
        await self.llm.sleep(2)
        self.assertTrue(await self.llm.is_sleeping())
        await self.llm.wake_up(["weights"])
        await self.llm.load_weights(str(MODEL), "files")
        await self.llm.wake_up()
        self.assertEqual((await self.llm.weight_info())["weight_version"], "files")
        self.assertTrue(await self.llm.reset_prefix_cache())
        self.assertEqual(await self.llm.collective_rpc("echo", args=[7]), [7])
        await self.llm.abort_requests()
        self.assertEqual((await last(self.llm, QUESTION, params)).outputs[0].token_ids, before)

    async def test_bad_request(self) -> None:
        with self.assertRaisesRegex(ValueError, "temperature must be at least 0") as caught:
            await last(self.llm, QUESTION, SamplingParams(temperature=-1))
        self.assertIsInstance(caught.exception, eagleray.BadRequestError)

    async def test_delta_and_final(self) -> None:
        params = SamplingParams(temperature=0, max_tokens=50, ignore_eos=True, logprobs=1)
        whole = await last(self.llm, QUESTION, params)
        params.output_kind = RequestOutputKind.DELTA
        pieces = [o async for o in self.llm.generate(QUESTION, params)]
        outputs = [output for piece in pieces for output in piece.outputs]
        self.assertEqual("".join(o.text for o in outputs), whole.outputs[0].text)
        self.assertEqual([t for o in outputs for t in o.token_ids], whole.outputs[0].token_ids)
        self.assertEqual(sum(len(o.logprobs or []) for o in outputs), 50)
        self.assertEqual(outputs[-1].cumulative_logprob, whole.outputs[0].cumulative_logprob)
        self.assertEqual([piece.finished for piece in pieces].index(True), len(pieces) - 1)
        params.output_kind = RequestOutputKind.FINAL_ONLY
        (final,) = [o async for o in self.llm.generate(QUESTION, params)]
        self.assertEqual(final.outputs, whole.outputs)

    async def test_several_outputs(self) -> None:
        params = SamplingParams(n=3, temperature=1, seed=7, max_tokens=20, prompt_logprobs=1)
        output = await last(self.llm, QUESTION, params)
        self.assertEqual([o.index for o in output.outputs], [0, 1, 2])
        self.assertEqual(len({o.text for o in output.outputs}), 3)
        self.assertEqual(len(output.prompt_logprobs or []), len(output.prompt_token_ids or []))

    async def test_stops_with_its_reader(self) -> None:
        params = SamplingParams(max_tokens=None, ignore_eos=True, n=32)  # seconds of work
        stream = self.llm.generate(QUESTION, params)
        await stream.__anext__()
        self.assertEqual((await self.load())["server_load"], 1)
        await stream.aclose()
        task = asyncio.create_task(last(self.llm, QUESTION, params))
        await asyncio.sleep(0)
        task.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await task
        deadline = time.monotonic() + 30
        while (await self.load())["server_load"]:
            self.assertLess(time.monotonic(), deadline)

    async def load(self) -> dict[str, int]:
        """Return how many requests run."""
        answer: dict[str, int] = await self.llm.request("/load", method="GET")
        return answer

    async def test_abort(self) -> None:
        params = SamplingParams(max_tokens=None, ignore_eos=True, n=32)  # seconds of work
        stream = self.llm.generate(QUESTION, params, "me")
        await stream.__anext__()
        with self.assertRaisesRegex(ValueError, "me is running already"):
            await self.llm.generate(QUESTION, request_id="me").__anext__()
        await self.llm.abort("me")
        await self.llm.abort("nobody")
        with self.assertRaisesRegex(eagleray.RequestError, "me was aborted"):
            async for _ in stream:
                pass

    async def test_chat_and_stream(self) -> None:
        messages = [{"role": "user", "content": QUESTION}]
        async for output in self.llm.chat(messages, SamplingParams(temperature=0, max_tokens=50)):
            pass
        self.assertEqual(output.outputs[0].text, "Open opens the named file for reading.")
        self.assertIn("<|im_start|>user", output.prompt or "")
        body = {"messages": messages, "temperature": 0, "max_tokens": 50, "stream": True}
        text = ""
        async for event in self.llm.stream("/v1/chat/completions", body):
            text += event["choices"][0]["delta"].get("content") or ""
        self.assertEqual(text, output.outputs[0].text)
        tokenizer = await self.llm.get_tokenizer()
        self.assertEqual(tokenizer.decode(output.outputs[0].token_ids, True), text)

    async def test_request(self) -> None:
        models = await self.llm.request("/v1/models", method="GET")
        self.assertEqual(models["data"][0]["id"], "go-std-tiny")
        with self.assertRaises(eagleray.RequestError) as caught:
            await self.llm.request("/nowhere", {})
        self.assertEqual(caught.exception.status, 404)

    def test_other_loops(self) -> None:
        def ask(results: list[str]) -> None:
            output = asyncio.run(last(self.llm, QUESTION, SamplingParams(temperature=0)))
            results.append(output.outputs[0].text)

        results: list[str] = []
        threads = [threading.Thread(target=ask, args=(results,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(len(results), 4)
        self.assertEqual(len(set(results)), 1)


class TestArguments(unittest.TestCase):
    """What is wrong with the engine's arguments is an exception with its line."""

    def test_wrong(self) -> None:
        for arguments, message in (
            ({"tensor_parallel_sise": 2}, "unknown flag: --tensor-parallel-sise"),
            ({"tensor_parallel_size": 3}, "tensor parallel size 3 does not divide"),
            ({"tensor_parallel_size": "two"}, "--tensor-parallel-size"),
            ({"port": 8000}, "--port is for a server"),
        ):
            with self.assertRaisesRegex(ValueError, message):
                AsyncLLM(**arguments)

    def test_model(self) -> None:
        """A model that is not there, or is none, is a mistake as a flag is."""
        with tempfile.TemporaryDirectory() as folder:
            os.mkdir(os.path.join(folder, "empty"))
            with open(os.path.join(folder, "config.json"), "w") as file:
                file.write('{"architectures": ["FooForCausalLM"]}')
            for model, message in (
                (os.path.join(folder, "other"), "no such file or directory"),
                (os.path.join(folder, "empty"), "has no config.json: give a folder"),
                (folder, "FooForCausalLM"),
            ):
                with self.subTest(message):
                    with self.assertRaisesRegex(eagleray.ConfigError, message) as raised:
                        AsyncLLM(model)
                    self.assertEqual(len(str(raised.exception).splitlines()), 1)

    def test_default_sampling_params(self) -> None:
        given = {"temperature": 0.25, "top_k": 7, "presence_penalty": 0.5, "max_new_tokens": 5}
        with LLM(override_generation_config=given) as llm:
            params = llm.get_default_sampling_params()
            want = SamplingParams(temperature=0.25, top_k=7, presence_penalty=0.5, max_tokens=5)
            self.assertEqual(params, want)
            (same,), (own,) = llm.generate("func ", params), llm.generate("func ")
            self.assertEqual(len(same.outputs[0].token_ids), 5)
            self.assertEqual(len(own.outputs[0].token_ids), 5)


if __name__ == "__main__":
    unittest.main()
