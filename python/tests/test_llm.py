"""LLM against the binary and its built-in model."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import math
import pathlib
import shutil
import struct
import tempfile
import time
import unittest

import eagleray
from eagleray import (
    LLM,
    AsyncLLM,
    BadRequestError,
    BeamSearchParams,
    LoRARequest,
    RequestError,
    SamplingParams,
    StructuredOutputsParams,
)
from eagleray.metrics import Counter, Gauge, Histogram

QUESTION = "What does os.Open do?"
GREEDY = SamplingParams(temperature=0, max_tokens=20)


def adapter(path: pathlib.Path, scale: float) -> str:
    """Write an adapter of the built-in model's query projections, of rank 1, and its folder."""
    path.mkdir()
    header: dict[str, object] = {}
    data = b""
    for layer in range(4):
        module = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        for name, shape in (("lora_A", [1, 256]), ("lora_B", [256, 1])):
            values = [scale * ((i * 7 + layer) % 5 - 2) for i in range(256)]
            raw = struct.pack("<256f", *values)
            header[f"{module}.{name}.weight"] = {
                "dtype": "F32",
                "shape": shape,
                "data_offsets": [len(data), len(data) + len(raw)],
            }
            data += raw
    text = json.dumps(header).encode()
    (path / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    config = {"peft_type": "LORA", "r": 1, "lora_alpha": 1, "target_modules": ["q_proj"]}
    (path / "adapter_config.json").write_text(json.dumps(config))
    return str(path)


class TestAdapters(unittest.TestCase):
    """Requests that are answered with adapters."""

    def folder(self) -> pathlib.Path:
        """Return a folder that ends with the test."""
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        return pathlib.Path(holder.name)

    def test_adapters(self) -> None:
        folder = self.folder()
        one = LoRARequest("one", 1, adapter(folder / "one", 0.5))
        two = LoRARequest("two", 2, adapter(folder / "two", -0.7))
        with LLM(enable_lora=True, max_loras=2) as llm:
            (base,) = llm.generate(QUESTION, GREEDY)
            alone = [llm.generate(QUESTION, GREEDY, lora_request=r)[0] for r in (one, two)]
            texts = {output.outputs[0].text for output in (base, *alone)}
            self.assertEqual(len(texts), 3, texts)
            self.assertEqual(alone[0].lora_request, one)
            many = llm.generate([QUESTION] * 4, GREEDY, lora_request=[one, None, two, one])
            self.assertEqual(
                [output.outputs for output in many],
                [o.outputs for o in (alone[0], base, alone[1], alone[0])],
            )
            messages = [{"role": "user", "content": QUESTION}]
            plain = llm.chat(messages, GREEDY)[0].outputs[0].text
            adapted = llm.chat(messages, GREEDY, lora_request=LoRARequest("two"))[0].outputs[0].text
            self.assertNotEqual(plain, adapted)
            with self.assertRaisesRegex(BadRequestError, "adapter_config.json"):
                llm.generate(QUESTION, GREEDY, lora_request=LoRARequest("x", 3, str(folder)))
            with self.assertRaises(RequestError):
                llm.generate(QUESTION, GREEDY, lora_request=LoRARequest("unknown"))
            # Another folder of the name takes its place.
            again = llm.generate(QUESTION, GREEDY, lora_request=LoRARequest("one", 1, two.path))
            self.assertEqual(again[0].outputs, alone[1].outputs)

    def test_async(self) -> None:
        folder = self.folder()
        request = LoRARequest("one", 1, adapter(folder / "one", 0.5))

        async def both() -> list[str]:
            engine = AsyncLLM(enable_lora=True)
            try:
                texts = []
                for lora_request in (None, request, request):
                    async for output in engine.generate(
                        QUESTION, GREEDY, lora_request=lora_request
                    ):
                        text = output.outputs[0].text
                    texts.append(text)
                return texts
            finally:
                engine.shutdown()

        base, first, again = asyncio.run(both())
        self.assertNotEqual(base, first)
        self.assertEqual(first, again)


class TestLLM(unittest.TestCase):
    """What a model that generates answers."""

    llm: LLM

    @classmethod
    def setUpClass(cls) -> None:
        cls.llm = LLM(max_num_seqs=8)  # a window of 16
        cls.addClassCleanup(cls.llm.close)

    def test_prompts(self) -> None:
        (text,) = self.llm.generate(QUESTION, GREEDY)
        tokens = text.prompt_token_ids
        assert tokens is not None
        for prompts in (
            [QUESTION],
            tokens,
            [tokens],
            {"prompt": QUESTION},
            [{"prompt_token_ids": tokens}],
        ):
            (output,) = self.llm.generate(prompts, GREEDY)
            self.assertEqual(output.outputs, text.outputs)
            self.assertEqual(output.prompt_token_ids, tokens)
        self.assertEqual(self.llm.generate([], GREEDY), [])

    def test_scripts_for_vllm(self) -> None:
        """What they use beside prompts and parameters."""
        params = SamplingParams.from_optional(temperature=0, top_p=None, max_tokens=20)
        self.assertEqual(params, GREEDY)
        self.assertIsNone(SamplingParams.from_optional(max_tokens=None).max_tokens)
        (output,) = self.llm.generate(QUESTION, params, lora_request=None)
        with self.assertRaisesRegex(ValueError, "lora_request: 'x' is no LoRARequest"):
            self.llm.generate(QUESTION, params, lora_request="x")  # type: ignore[arg-type]
        unspaced = dataclasses.replace(params, spaces_between_special_tokens=False)
        self.assertEqual(self.llm.generate(QUESTION, unspaced)[0].outputs, output.outputs)
        unspaced.skip_special_tokens = False
        with self.assertRaisesRegex(BadRequestError, "spaces_between_special_tokens"):
            self.llm.generate(QUESTION, unspaced)
        tokenizer = self.llm.get_tokenizer()
        self.assertEqual(tokenizer(QUESTION).input_ids, output.prompt_token_ids)
        several = tokenizer([QUESTION, "x y"], truncation=True, max_length=2)
        self.assertEqual(several["attention_mask"], [[1, 1], [1, 1]])
        self.assertEqual(several["input_ids"][0], tokenizer.encode(QUESTION)[:2])
        self.assertEqual((tokenizer.vocab_size, len(tokenizer)), (2048, 2048))
        self.assertEqual(tokenizer.eos_token, tokenizer.decode(tokenizer.eos_token_id or 0))
        self.assertIn(tokenizer.eos_token_id, tokenizer.all_special_ids)
        self.assertIsNone(tokenizer.unk_token_id)
        self.assertEqual("".join(tokenizer.tokenize("ab")), "ab")
        self.assertEqual(tokenizer.batch_decode([tokenizer.encode("a b")]), ["a b"])
        talk = [{"role": "user", "content": "x"}]
        one = tokenizer.apply_chat_template(talk, tokenize=False)
        self.assertEqual(tokenizer.apply_chat_template([talk], tokenize=False), [one])
        counted = {m.name: m for m in self.llm.get_metrics()}
        tokens = counted["vllm:generation_tokens"]
        assert isinstance(tokens, Counter)
        self.assertGreaterEqual(tokens.value, len(output.outputs[0].token_ids))
        self.assertIsInstance(counted["vllm:num_requests_running"], Gauge)
        first = counted["vllm:time_to_first_token_seconds"]
        assert isinstance(first, Histogram)
        self.assertEqual(first.buckets["+Inf"], first.count)
        self.assertRegex(eagleray.__version__, r"^\d+\.\d+\.\d+")

    def test_wrong_prompts(self) -> None:
        for prompt, kind in (
            ({"multi_modal_data": 1}, ValueError),
            ({"prompt": "x", "multi_modal_data": {"image": 1}}, ValueError),
            ([1.5], TypeError),
            ([[True]], TypeError),
            ("", ValueError),
            ([[1 << 30]], ValueError),
            ("\ud800", ValueError),
        ):
            with self.assertRaises(kind):
                self.llm.generate(prompt, GREEDY)  # type: ignore[arg-type]

    def test_order(self) -> None:
        prompts = [f"{QUESTION} {i}" for i in range(50)]
        lengths = [1 + (7 * i) % 23 for i in range(50)]
        params = [SamplingParams(max_tokens=n, ignore_eos=True) for n in lengths]
        outputs = self.llm.generate(prompts, params)
        self.assertEqual([o.prompt for o in outputs], prompts)
        self.assertEqual([len(o.outputs[0].token_ids) for o in outputs], lengths)
        with self.assertRaisesRegex(ValueError, "there are 50 for 49 prompts"):
            self.llm.generate(prompts[1:], params)

    def test_one_refused_ends_all(self) -> None:
        params = [SamplingParams(max_tokens=None, ignore_eos=True) for _ in range(20)]
        params[9].temperature = -1
        with self.assertRaisesRegex(BadRequestError, "temperature must be at least 0") as caught:
            self.llm.generate([QUESTION] * 20, params)
        self.assertEqual((caught.exception.status, caught.exception.param), (400, "temperature"))
        deadline = time.monotonic() + 30
        while self.llm.request("/load", method="GET")["server_load"]:
            self.assertLess(time.monotonic(), deadline)

    def test_parameters(self) -> None:
        with self.assertRaises(TypeError):
            SamplingParams(tempurature=1)  # type: ignore[call-arg]
        with self.assertRaisesRegex(ValueError, "exactly one of"):
            StructuredOutputsParams()
        choice = StructuredOutputsParams(choice=["red", "blue"])
        regex = StructuredOutputsParams(regex="[0-9]{3}")
        schema = StructuredOutputsParams(json={"type": "integer"})
        params = [
            SamplingParams(structured_outputs=choice, seed=1),
            SamplingParams(structured_outputs=regex),
            SamplingParams(structured_outputs=schema),
            SamplingParams(logit_bias={5: 100.0}, max_tokens=3, ignore_eos=True),
            SamplingParams(stop=[" the"], temperature=0, include_stop_str_in_output=True),
            SamplingParams(max_tokens=1_000_000, temperature=0),
            SamplingParams(
                max_tokens=4, detokenize=False, truncate_prompt_tokens=2, ignore_eos=True
            ),
            None,
        ]
        outputs = [o.outputs[0] for o in self.llm.generate([QUESTION] * len(params), params)]
        self.assertIn(outputs[0].text, ("red", "blue"))
        self.assertRegex(outputs[1].text, "^[0-9]{3}$")
        int(outputs[2].text)
        self.assertEqual(outputs[3].token_ids, [5, 5, 5])
        self.assertTrue(outputs[4].text.endswith(" the"))
        self.assertEqual(outputs[4].stop_reason, " the")
        self.assertEqual((outputs[5].finish_reason, outputs[5].stop_reason), ("stop", None))
        self.assertEqual((outputs[6].text, len(outputs[6].token_ids)), ("", 4))

    def test_named_logprobs(self) -> None:
        params = SamplingParams(temperature=0, max_tokens=4, logprobs=20)
        likely = self.llm.generate("import (", params)[0].outputs[0].logprobs
        assert likely is not None
        ids = [token for token, entry in likely[0].items() if entry.rank in (1, 3, 5)]
        named = SamplingParams(temperature=0, max_tokens=4, logprob_token_ids=ids)
        self.assertEqual(named.num_logprobs, 3)
        got = self.llm.generate("import (", named)[0].outputs[0].logprobs
        assert got is not None
        self.assertEqual(got[0], {token: likely[0][token] for token in ids})
        for position in got:
            self.assertEqual(set(position), {next(iter(position)), *ids})
        with self.assertRaisesRegex(ValueError, "logprobs"):
            SamplingParams(logprobs=1, logprob_token_ids=ids)

    def test_logprobs(self) -> None:
        params = SamplingParams(temperature=0, max_tokens=5, logprobs=2, prompt_logprobs=1)
        (output,) = self.llm.generate(QUESTION, params)
        completion = output.outputs[0]
        assert completion.logprobs is not None
        assert output.prompt_logprobs is not None
        total = 0.0
        for token, position in zip(completion.token_ids, completion.logprobs):
            self.assertEqual(position[token].rank, 1)
            self.assertEqual(len(position), 2)
            total += position[token].logprob
        self.assertEqual(completion.cumulative_logprob, total)
        text = "".join(
            position[token].decoded_token or ""
            for token, position in zip(completion.token_ids, completion.logprobs)
        )
        self.assertEqual(text, completion.text)
        self.assertIsNone(output.prompt_logprobs[0])
        for token, prompt in list(zip(output.prompt_token_ids or [], output.prompt_logprobs))[1:]:
            assert prompt is not None
            self.assertIn(token, prompt)

    def test_chat(self) -> None:
        talk = [{"role": "user", "content": QUESTION}]
        (output,) = self.llm.chat(talk, GREEDY)
        self.assertEqual(output.outputs[0].text, "Open opens the named file for reading.")
        both = self.llm.chat([talk, [{"role": "user", "content": "Hello"}]], GREEDY)
        self.assertEqual(both[0].outputs, output.outputs)
        template = "{% for m in messages %}<{{ m.content }}>{% endfor %}"
        (own,) = self.llm.chat(talk, GREEDY, chat_template=template)
        self.assertEqual(own.prompt, f"<{QUESTION}>")

    def test_tokenizer(self) -> None:
        tokenizer = self.llm.get_tokenizer()
        tokens = tokenizer.encode(QUESTION)
        self.assertEqual(tokenizer.decode(tokens), QUESTION)
        talk = [{"role": "user", "content": "x"}]
        text = tokenizer.apply_chat_template(talk, tokenize=False, add_generation_prompt=True)
        assert isinstance(text, str)
        self.assertTrue(text.endswith("assistant\n"))
        self.assertEqual(
            tokenizer.apply_chat_template(talk, add_generation_prompt=True),
            tokenizer.encode(text),
        )

    def test_beam_search(self) -> None:
        (found,) = self.llm.beam_search(["What does os.Open"], BeamSearchParams(3, 5))
        self.assertEqual(len(found.sequences), 3)
        for beam in found.sequences:
            own = beam.tokens[-len(beam.logprobs) :]
            total = sum(position[token].logprob for token, position in zip(own, beam.logprobs))
            self.assertAlmostEqual(beam.cum_logprob, total)

    def test_cached_tokens(self) -> None:
        prompt = "Tell me: " + " ".join(f"word{i}" for i in range(40))
        self.llm.generate(prompt, GREEDY)
        (again,) = self.llm.generate(prompt, GREEDY)
        self.assertGreaterEqual(again.num_cached_tokens or 0, 16)

    def test_progress(self) -> None:
        shown: list[int] = []

        class Bar:
            def __init__(self, total: int, desc: str, dynamic_ncols: bool) -> None:
                shown.append(-total)

            def update(self, n: int) -> None:
                shown.append(n)

            def close(self) -> None:
                shown.append(0)

        self.llm.generate([QUESTION] * 3, GREEDY, use_tqdm=Bar)
        self.assertEqual(shown, [-3, 1, 1, 1, 0])


class TestPooling(unittest.TestCase):
    """What a model that pools answers."""

    def test_vectors(self) -> None:
        with LLM(runner="pooling") as llm:
            one, two, same = llm.embed(["a file", "a number", "a file"])
            self.assertEqual(one.outputs, same.outputs)
            self.assertEqual(one.outputs.hidden_size, 256)
            self.assertAlmostEqual(sum(x * x for x in one.outputs.embedding), 1, places=5)
            self.assertGreater(len(one.prompt_token_ids), 0)
            (pooled,) = llm.encode("a file", pooling_task="embed")
            self.assertEqual(pooled.outputs.data, one.outputs.embedding)
            self.assertEqual(pooled.prompt_token_ids, one.prompt_token_ids)
            (each,) = llm.encode("a file", pooling_task="token_embed")
            self.assertEqual(len(each.outputs.data), len(one.prompt_token_ids))
            self.assertEqual(each.outputs.data[-1], one.outputs.embedding)
            with self.assertRaisesRegex(ValueError, "pooling_task: None"):
                llm.encode("a file")
            product = sum(x * y for x, y in zip(one.outputs.embedding, two.outputs.embedding))
            first, second = llm.score("a file", ["a number", "a file"])
            self.assertAlmostEqual(first.outputs.score, product, places=5)
            self.assertAlmostEqual(second.outputs.score, 1, places=5)
            with self.assertRaisesRegex(ValueError, "2 texts meet 3"):
                llm.score(["a", "b"], ["c", "d", "e"])
            with self.assertRaisesRegex(BadRequestError, "does not generate"):
                llm.generate("a")

    def test_classes(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            classifier(folder)
            with LLM(folder, dtype="float32") as llm:
                one, other = llm.classify(["a file", "a number"])
                self.assertEqual(one.outputs.num_classes, 3)
                self.assertAlmostEqual(sum(one.outputs.probs), 1, places=5)
                self.assertNotEqual(one.outputs.probs, other.outputs.probs)
                self.assertGreater(len(one.prompt_token_ids), 0)
                (pooled,) = llm.encode("a file", pooling_task="classify")
                self.assertEqual(pooled.outputs.data, one.outputs.probs)
                (each,) = llm.encode("a file", pooling_task="token_classify")
                self.assertEqual(len(each.outputs.data), len(one.prompt_token_ids))
                self.assertEqual(each.outputs.data[-1], one.outputs.probs)
                (logits,) = llm.classify("a file", use_activation=False)
                weights = [math.exp(x) for x in logits.outputs.probs]
                for weight, prob in zip(weights, one.outputs.probs):
                    self.assertAlmostEqual(weight / sum(weights), prob, places=5)
                with self.assertRaisesRegex(BadRequestError, "classifies texts"):
                    llm.embed("a file")
                with self.assertRaisesRegex(BadRequestError, "it has 3 classes"):
                    llm.score("a file", "a number")
                with self.assertRaisesRegex(BadRequestError, "score.weight, is not in the ranks"):
                    llm.load_weights(folder)

    def test_cross_encoder(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            classifier(folder, classes=1)
            with LLM(folder, dtype="float32") as llm:
                tokens = llm.get_tokenizer()
                texts = "a file", "is opened"
                pair = tokens.encode(texts[0]) + tokens.encode(texts[1])
                (whole,) = llm.classify({"prompt_token_ids": pair})
                found = llm.score(texts[0], [texts[1], "x"])
                (probability,) = whole.outputs.probs
                self.assertAlmostEqual(found[0].outputs.score, probability, places=6)
                self.assertNotEqual(found[0].outputs.score, found[1].outputs.score)
            asyncio.run(self.asked_in_a_loop(folder, found[0].outputs.score))

    async def asked_in_a_loop(self, folder: str, score: float) -> None:
        """Ask the same of an AsyncLLM."""
        async with AsyncLLM(folder, dtype="float32") as llm:
            (found,) = await llm.score("a file", ["is opened"])
            self.assertEqual(found.outputs.score, score)
            logit = await llm.classify("a file", use_activation=False)
            one = await llm.classify("a file")
            self.assertGreater(len(one.prompt_token_ids), 0)
            want = 1 / (1 + math.exp(-logit.outputs.probs[0]))
            self.assertAlmostEqual(one.outputs.probs[0], want, places=5)
            pooled = await llm.encode("a file", pooling_task="classify")
            self.assertEqual(pooled.outputs.data, one.outputs.probs)
            with self.assertRaisesRegex(ValueError, "pooling_task: None"):
                await llm.encode("a file")


def classifier(folder: str, classes: int = 3) -> None:
    """Make the model of the tests one of some classes."""
    model = pathlib.Path(__file__, "../../../testdata/models/go-std-tiny").resolve()
    shutil.copytree(model, folder, dirs_exist_ok=True)
    path = pathlib.Path(folder, "config.json")
    config = json.loads(path.read_text())
    (name,) = config["architectures"]
    config["architectures"] = [name.replace("ForCausalLM", "ForSequenceClassification")]
    config["id2label"] = {str(i): f"class {i}" for i in range(classes)}
    path.write_text(json.dumps(config))
    path = pathlib.Path(folder, "model.safetensors")
    raw = path.read_bytes()
    end = 8 + int.from_bytes(raw[:8], "little")
    header, width = json.loads(raw[8:end]), config["hidden_size"]
    head = struct.pack(f"<{classes * width}f", *(i % 7 / 100 for i in range(classes * width)))
    offsets = [len(raw) - end, len(raw) - end + len(head)]
    header["score.weight"] = {"dtype": "F32", "shape": [classes, width], "data_offsets": offsets}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + raw[end:] + head)


if __name__ == "__main__":
    unittest.main()
