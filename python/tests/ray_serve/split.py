"""Prompts are computed by one deployment, answers by another."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import json
import os
import signal
import unittest.mock
from collections.abc import AsyncGenerator, Generator
from typing import Any

from ray import serve

import eagleray.serve as eagle
from eagleray.errors import ConfigError
from eagleray.serve import _split, _status
from eagleray._http import decode, encode
from eagleray.serve._resume import Attempts
from tests.ray_serve.cluster import Cluster, PATIENCE, PROMPT, engines, model, parent


class Split(Cluster):
    """Prompts are computed by one deployment, answers by another."""

    def test_answers_are_those_of_one_engine(self) -> None:
        # Without a prefix cache every prompt travels.
        engine = {"enable_prefix_caching": False}
        one = model("split", engine)
        two = model("split", engine, num_replicas=2)
        app = eagle.build_pd_openai_app({"prefill_config": two, "decode_config": one})
        serve.run(app, name="split", route_prefix="/split")
        self.deploy(one, name="whole")
        travelled = self.taken()
        asked = 0
        for n in range(12):
            prompt = f"{PROMPT} And what does example {n} of it print?" * (n % 3 + 1)
            fields: dict[str, Any] = {"prompt": prompt, "max_tokens": 24}
            if n % 2:
                fields.update(temperature=1.0, seed=n, logprobs=2)
            got, want = (self.completion("split", a, **fields) for a in ("split", "whole"))
            self.assertEqual((got[0], got[1]["choices"]), (200, want[1]["choices"]))
            self.assertEqual(got[1]["usage"], want[1]["usage"])
            streamed = [list(self.events("split", a, **fields)) for a in ("split", "whole")]
            texts = ["".join(e["choices"][0]["text"] for e in s) for s in streamed]
            self.assertEqual(texts, [want[1]["choices"][0]["text"]] * 2)
            asked += 2
        self.assertEqual(self.taken() - travelled, asked)
        # What only the decode side may refuse, and what is not split.
        self.assertEqual(self.completion("split", "split", max_tokens=-1)[0], 400)
        self.assertEqual(self.ask("/split/v1/models")[1]["data"][0]["id"], "split")
        self.prompts_are_computed_without_prefill()
        for name in ("split", "whole"):
            serve.delete(name)
        self.eventually("the end of the engines", lambda: not engines("split"))

    def test_many_answers_while_prefill_replicas_die(self) -> None:
        engine = {"enable_prefix_caching": False}
        one = model("many", engine)
        two = model("many", engine, num_replicas=2)
        app = eagle.build_pd_openai_app({"prefill_config": two, "decode_config": one})
        serve.run(app, name="split", route_prefix="/split")
        self.deploy(one, name="whole")
        asked: list[dict[str, Any]] = []
        for n in range(150):
            prompt = f"{n}: {PROMPT} And what does example {n} of it print?" * (n % 3 + 1)
            asked.append({"prompt": prompt, "max_tokens": 8 + n % 17, "seed": n, "logprobs": n % 3})
            asked[-1]["temperature"] = n % 2
        travelled = self.taken()
        done = 0

        def both(app: str, fields: dict[str, Any]) -> tuple[Any, str]:
            status, answer = self.completion("many", app, **fields)
            self.assertEqual(status, 200, answer)
            parts = [e["choices"] for e in self.events("many", app, **fields)]
            return answer["choices"], "".join(c[0]["text"] for c in parts if c)

        def answered(fields: dict[str, Any]) -> tuple[Any, str]:
            nonlocal done
            got = both("split", fields)
            done += 1
            return got

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            want = list(pool.map(lambda f: both("whole", f), asked))
            split = [pool.submit(answered, f) for f in asked]
            # Both prefill replicas die, one after the other: Serve starts them again meanwhile.
            for part in (1, 2):
                self.eventually("answers", lambda n=part * len(asked) // 3: done >= n)
                self.kill_prefill("many", 1)
            got = [s.result(PATIENCE) for s in split]
        different = [n for n in range(len(asked)) if got[n] != want[n]]
        self.assertEqual(different, [])
        came = self.taken() - travelled
        print(
            f"{2 * len(asked)} answers, {came} of them by blocks of a prefill replica", flush=True
        )
        self.assertGreater(came, len(asked) / 2)
        for name in ("split", "whole"):
            serve.delete(name)
        self.eventually("the end of the engines", lambda: not engines("many"))

    def kill_prefill(self, name: str, most: int) -> None:
        """Kill replicas that compute prompts, with their engines."""
        for pid in engines(name):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as f:
                if b"kv_producer" in f.read() and most:
                    os.kill(parent(pid), signal.SIGKILL)
                    most -= 1

    def test_mistakes_of_both_are_told(self) -> None:
        bad = model("split", {"tensor_parallel_size": 3}, num_replica=2)
        with self.assertRaises(ConfigError) as raised:
            eagle.build_pd_openai_app({"prefill_config": bad, "decode_config": bad})
        for name in ("prefill_config", "decode_config"):
            for words in (
                "deployment_config.num_replica: Ray",
                "eagleray: --tensor-parallel-size 3",
            ):
                self.assertRegex(str(raised.exception), f"(?m)^{name}: {words}")

    def test_what_prefill_cannot_do_decode_does(self) -> None:
        ticket = json.dumps({"kv_transfer_params": {"remote_port": 7}}).encode()
        refused = b'{"error": {"param": "kv_transfer_params.remote_seal"}}'
        mistake = b'{"error": {"param": "max_tokens"}}'
        for name, prefilled, decoded, want, bodies, parts in (
            ("split", [(200, ticket)], [(200, b"a")], (200, b"a"), [True], False),
            (
                "refused",
                [(200, ticket)],
                [(400, refused), (200, b"a")],
                (200, b"a"),
                [True, False],
                True,
            ),
            ("mistake", [(200, ticket)], [(400, mistake)], (400, mistake), [True], True),
            ("failed", [(500, b"{}")], [(200, b"a")], (200, b"a"), [False], False),
            ("broken", [OSError("no")], [(200, b"a")], (200, b"a"), [False], False),
            ("nobody", [None], [(200, b"a")], (200, b"a"), [False], False),
            ("lost", [(200, ticket)], [OSError("no")], None, [True], True),
        ):
            parted: list[Any] = []
            found = {FakeHandle.deployment_name: unittest.mock.Mock(replica_states={})}

            async def renounce(params: Any, parted: list[Any] = parted) -> None:
                parted.append(params)

            with (
                self.subTest(name),
                unittest.mock.patch.object(_status, "own_deployments", return_value=found),
                unittest.mock.patch.object(_split, "_LOOK_SECONDS", 0.01),
                unittest.mock.patch.object(_split, "renounce", renounce),
            ):
                first, second = FakeHandle(prefilled), FakeHandle(decoded)
                ingress = _split.PDIngress("m", first, second, False)
                request: tuple[Any, ...] = (
                    b"POST",
                    b"/v1/completions",
                    [],
                    b'{"prompt": "x"}',
                    (),
                    "",
                )
                try:
                    head = asyncio.run(only(ingress._ask("m", request, Attempts())))
                    self.assertEqual((head[0], head[2]), want)
                except OSError:
                    self.assertIsNone(want)
                carried = [b"remote_port" in r[3] for r in second.asked]
                self.assertEqual((carried, len(first.asked)), (bodies, 1))
                self.assertEqual(first.cancelled, name == "nobody")
                self.assertEqual(parted, [{"remote_port": 7}] if parts else [])

    def taken(self) -> int:
        """Return how many prompts' blocks the engine that answers has taken from another one."""
        text = self.fetch("/split/metrics")[1].decode()
        lines = [x for x in text.splitlines() if x.startswith("eagleray:kv_transfers_total{")]
        return sum(
            int(float(x.rpartition(" ")[2]))
            for x in lines
            if 'direction="in"' in x and 'outcome="done"' in x
        )

    def prompts_are_computed_without_prefill(self) -> None:
        want = self.completion("split", "whole")[1]["choices"]
        self.kill_prefill("split", 2)
        for _ in range(4):
            status, answer = self.completion("split", "split")
            self.assertEqual((status, answer["choices"]), (200, want))


class FakeHandle:
    """A deployment with given answers by turns; None never comes."""

    deployment_name = "fake"

    def __init__(self, answers: list[Any]) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[Any, ...]] = []
        self.cancelled = False

    def options(self, **_: Any) -> FakeHandle:
        return self

    def remote(self, *request: Any) -> FakeHandle:
        if len(request) < 3:
            line, *message = decode(request[0])
            request = (*line.split(b" ", 2)[:2], *message)
        self.asked.append(request)
        return self

    def __await__(self) -> Generator[Any, None, bytes]:
        ((status, headers, body, _),) = yield from self._all().__await__()
        return encode(b"%d" % status, headers, body)

    async def _all(self) -> list[Any]:
        return [item async for item in self]

    def cancel(self) -> None:
        self.cancelled = self.answers[:1] == [None]

    async def __aiter__(self) -> AsyncGenerator[Any, None]:
        if self.answers[0] is None:
            await asyncio.Event().wait()
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        yield (answer[0], [], answer[1], False)


async def only(answers: AsyncGenerator[Any, None]) -> Any:
    """Return the only item."""
    (item,) = [a async for a in answers]
    await asyncio.sleep(0)  # what was cancelled ends
    return item
