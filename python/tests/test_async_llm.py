"""AsyncLLM against the binary and its built-in model."""

from __future__ import annotations

import asyncio
import unittest

import eagleray
from eagleray import AsyncLLM, RequestOutput, SamplingParams

QUESTION = "What does os.Open do?"


async def last(llm: AsyncLLM, prompt: str, params: SamplingParams) -> RequestOutput:
    """Return the last output of a prompt."""
    async for output in llm.generate(prompt, params):
        pass
    return output


class TestAsyncLLM(unittest.IsolatedAsyncioTestCase):
    """One engine for each test: a start is 30 ms."""

    async def asyncSetUp(self) -> None:
        self.llm = AsyncLLM()
        self.addCleanup(self.llm.shutdown)

    async def test_cumulative(self) -> None:
        outputs = [
            o
            async for o in self.llm.generate(
                QUESTION, SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)
            )
        ]
        self.assertGreater(len(outputs), 1)
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

    async def test_bad_request(self) -> None:
        with self.assertRaisesRegex(ValueError, "temperature must be at least 0") as caught:
            await last(self.llm, QUESTION, SamplingParams(temperature=-1))
        self.assertIsInstance(caught.exception, eagleray.BadRequestError)

    async def test_request(self) -> None:
        models = await self.llm.request("/v1/models", method="GET")
        self.assertEqual(models["data"][0]["id"], "go-std-tiny")


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
                AsyncLLM(**arguments)  # type: ignore[arg-type]


if __name__ == "__main__":
    unittest.main()
