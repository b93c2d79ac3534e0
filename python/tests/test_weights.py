"""New weights, pauses and sleep, against the binary and its built-in model."""

from __future__ import annotations

import importlib.util
import json
import pathlib
import struct
import unittest
from collections.abc import Iterator
from typing import Any

from eagleray import LLM, BadRequestError, ConfigError, SamplingParams
from eagleray.weights import Part, Raw, WeightTransfer, update_weights

MODEL = pathlib.Path(__file__).parents[2] / "internal/rank/builtin/go-std-tiny/model.safetensors"
QUESTION = "What does os.Open do?"
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


def tensors() -> dict[str, Raw]:
    """Return the weights of the built-in model."""
    raw = MODEL.read_bytes()
    (length,) = struct.unpack_from("<Q", raw)
    header = json.loads(raw[8 : 8 + length])
    header.pop("__metadata__", None)
    data = memoryview(raw)[8 + length :]
    return {
        name: Raw(data[slice(*t["data_offsets"])], t["dtype"], t["shape"])
        for name, t in header.items()
    }


def swapped(own: dict[str, Raw]) -> dict[str, Raw]:
    """Return the same with the first two layers in each other's place."""
    other = {".layers.0.": ".layers.1.", ".layers.1.": ".layers.0."}
    result = {}
    for name, tensor in own.items():
        for here, there in other.items():
            if here in name:
                name = name.replace(here, there)
                break
        result[name] = tensor
    return result


def halves(name: str, tensor: Raw) -> list[tuple[str, Any]]:
    """Return a tensor as two ranks have it, that divide its rows."""
    if len(tensor.shape) != 2 or tensor.shape[0] % 2:
        return [(name, tensor)]
    rows, columns = tensor.shape[0] // 2, tensor.shape[1]
    middle = len(tensor.data) // 2
    return [
        (name, Part(Raw(tensor.data[:middle], tensor.dtype, [rows, columns]), (0, 0))),
        (name, Part(Raw(tensor.data[middle:], tensor.dtype, [rows, columns]), (rows, 0))),
    ]


class TestWeights(unittest.TestCase):
    """What becomes of answers when the weights change."""

    llm: LLM

    @classmethod
    def setUpClass(cls) -> None:
        cls.llm = LLM(max_num_seqs=8, tensor_parallel_size=2)
        cls.addClassCleanup(cls.llm.close)
        cls.own = tensors()
        cls.other = swapped(cls.own)

    own: dict[str, Raw]
    other: dict[str, Raw]

    def answer(self) -> list[int]:
        (output,) = self.llm.generate(QUESTION, GREEDY, use_tqdm=False)
        return list(output.outputs[0].token_ids)

    def test_transports(self) -> None:
        before = self.answer()
        answers = []
        for transport in ("shm", "unix", "tcp"):
            if transport == "tcp":
                with self.assertRaises(ValueError):  # only its program reaches this engine
                    WeightTransfer(self.llm, transport)
                continue
            self.assertEqual(update_weights(self.llm, self.other, transport, transport), transport)
            answers.append(self.answer())
            transfer = WeightTransfer(self.llm, transport)
            transfer.start()
            for name, tensor in self.own.items():
                transfer.send(halves(name, tensor))
            transfer.finish()
            self.assertEqual(self.answer(), before)
        self.assertEqual(answers[0], answers[1])
        self.assertNotEqual(answers[0], before)
        self.llm.load_weights(str(MODEL), "files")
        self.assertEqual(self.llm.weight_info()["weight_version"], "files")
        self.assertEqual(self.answer(), before)

    def test_differences(self) -> None:
        before = self.answer()
        wrong = {f"x.{name}": tensor for name, tensor in self.own.items()}
        for transport in ("shm", "unix"):
            with self.assertRaisesRegex(BadRequestError, f"differ .* in {len(wrong)} tensors"):
                update_weights(self.llm, wrong, transport=transport)
        missing = dict(self.own)
        missing.pop("model.norm.weight")
        with self.assertRaisesRegex(BadRequestError, '"model.norm.weight" is missing'):
            self.llm.update_weights(missing)
        self.assertEqual(self.answer(), before)

    def test_what_is_no_tensor(self) -> None:
        """A session goes on: no update has begun."""

        def broken() -> Iterator[tuple[str, Any]]:
            yield "model.norm.weight", self.own["model.norm.weight"]
            raise OSError("the file is gone")

        transfer = WeightTransfer(self.llm)
        with self.assertRaisesRegex(TypeError, "^x: float is no tensor"):
            transfer.update({"x": 1.5})
        with self.assertRaisesRegex(OSError, "the file is gone"):
            transfer.update(broken())
        if importlib.util.find_spec("numpy"):
            double = importlib.import_module("numpy").zeros(2)
            with self.assertRaisesRegex(TypeError, "^x: float64 is no type of weights"):
                transfer.update({"x": double})
        transfer.update(self.own)

    def test_one_by_one(self) -> None:
        before = self.answer()
        with self.assertRaisesRegex(TypeError, "takes the tensor 'x' itself, not 'bfloat16'"):
            self.llm.collective_rpc("update_weight", args=("x", "bfloat16", (1,)))
        wrong = Raw(b"", "bfloat16", (0,))
        with self.assertRaises(BadRequestError):
            self.llm.collective_rpc("update_weight", args=("x", wrong, True))
        names = list(self.other)
        for name, tensor in self.other.items():
            self.assertEqual(self.answer(), before)
            done = self.llm.collective_rpc(
                "update_weight", args=(name, tensor), kwargs={"last": name == names[-1]}
            )
            self.assertEqual(done, [None, None])
        self.assertNotEqual(self.answer(), before)
        self.llm.update_weights(self.own)
        self.assertEqual(self.answer(), before)

    def test_python_of_ranks(self) -> None:
        with self.assertRaisesRegex(TypeError, "ranks run no Python"):
            self.llm.collective_rpc(len)  # type: ignore[arg-type]
        with self.assertRaisesRegex(ConfigError, "worker-extension-cls.*eagleray.weights"):
            LLM(worker_extension_cls="trainer.WorkerWrap")

    def test_logprobs_mode(self) -> None:
        params = SamplingParams(temperature=0.5, top_k=1, max_tokens=4, logprobs=0)
        with LLM(logprobs_mode="processed_logprobs") as processed:
            (output,) = processed.generate(QUESTION, params, use_tqdm=False)
        (raw,) = self.llm.generate(QUESTION, params, use_tqdm=False)
        self.assertEqual(output.outputs[0].token_ids, raw.outputs[0].token_ids)
        self.assertEqual(output.outputs[0].cumulative_logprob, 0)
        self.assertLess(raw.outputs[0].cumulative_logprob or 0, 0)

    def test_pause_and_sleep(self) -> None:
        before = self.answer()
        self.llm.pause("wait")
        self.assertTrue(self.llm.is_paused())
        self.llm.resume()
        self.assertFalse(self.llm.is_paused())
        self.llm.sleep(2)
        self.llm.wake_up(["weights"])
        self.assertTrue(self.llm.is_sleeping())
        self.llm.wake_up()
        self.assertEqual(self.answer(), before)
        self.assertTrue(self.llm.reset_prefix_cache())
        self.assertEqual(self.llm.collective_rpc("echo", args=[7]), [7, 7])
