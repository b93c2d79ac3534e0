"""The engine's process begins and ends with the program's."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import threading
import time
import unittest
from typing import Any
from unittest import mock

from eagleray import LLM, AsyncLLM, EngineDeadError, RequestOutput, SamplingParams

# Seconds of work, so that no pause of this process outlasts it.
ENDLESS = SamplingParams(max_tokens=None, ignore_eos=True, n=32)


def descendants(pid: int) -> list[int]:
    """Return the processes that a process has started, and those that they have."""
    pids: list[int] = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the process has ended
        for thread in os.listdir(f"/proc/{pid}/task"):
            # A thread that has ended has handed its children to another one.
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                children = pathlib.Path(f"/proc/{pid}/task/{thread}/children").read_text()
                pids += map(int, children.split())
    return pids + [below for child in pids for below in descendants(child)]


def state(pid: int) -> str:
    """Return the letter of a process's state, X for one that is gone."""
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return "X"
    return stat.rpartition(")")[2].split()[0]


def lives(pid: int) -> bool:
    """Say whether a process runs; a zombie does not."""
    return state(pid) not in "ZX"


class Program:
    """A Python program in a process of its own, which prints a line when it is ready."""

    def __init__(self, test: unittest.TestCase, text: str) -> None:
        text = "import os, signal, threading, time\nfrom eagleray import *\n" + textwrap.dedent(
            text
        )
        self.process = subprocess.Popen(
            [sys.executable, "-B", "-c", text],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        test.addCleanup(self.end)
        self.test = test
        assert self.process.stdout is not None
        self.said = self.process.stdout.readline().strip()
        test.assertTrue(self.said, "the program ended")
        self.started = descendants(self.process.pid)

    def end(self) -> tuple[str, str]:
        """End it by the end of its input, and return what it printed."""
        said = self.process.communicate(timeout=60)
        return said[0], said[1]

    def wait(self) -> None:
        """Wait until all that it started has ended."""
        deadline = time.monotonic() + 30
        while any(lives(pid) for pid in self.started):
            self.test.assertLess(time.monotonic(), deadline, "processes are left")
            time.sleep(0.01)


class TestEnds(unittest.TestCase):
    """However the program ends, so does the engine."""

    def test_killed(self) -> None:
        for what, text in {
            "alone": 'llm = LLM(); print("ready", flush=True); time.sleep(60)',
            "with ranks": """
                llm = LLM(tensor_parallel_size=2, distributed_executor_backend="mp")
                print("ready", flush=True)
                llm.generate("x" , SamplingParams(max_tokens=None, ignore_eos=True, n=32))
                time.sleep(60)
                """,
            "while it starts": """
                made = []  # keeps it: an LLM without a reference ends
                start = lambda: made.append(LLM(tensor_parallel_size=2))
                threading.Thread(target=start).start()
                print("ready", flush=True)
                time.sleep(60)
                """,
        }.items():
            with self.subTest(what):
                program = Program(self, text)
                while not program.started:  # the first of them is on its way
                    self.assertIsNone(program.process.poll())
                    program.started = descendants(program.process.pid)
                program.process.kill()
                program.wait()

    def test_killed_with_a_child(self) -> None:
        program = Program(
            self,
            """
            llm = LLM()
            if os.fork() == 0:
                try:
                    llm.generate("x")
                except EngineDeadError:
                    print("refused", flush=True)
                signal.pause()
            signal.pause()
            """,
        )
        self.assertEqual(program.said, "refused")
        (child,) = (pid for pid in program.started if name(pid).startswith("python"))
        (engine,) = (pid for pid in program.started if pid != child)
        self.assertTrue(lives(engine))
        program.process.kill()
        program.started = [engine]
        program.wait()
        self.assertTrue(lives(child))
        os.kill(child, signal.SIGKILL)

    def test_exit_without_close(self) -> None:
        program = Program(
            self,
            """
            import asyncio, sys
            llm, streams = LLM(), AsyncLLM()
            print("ready", flush=True)
            sys.stdin.read()
            """,
        )
        said = program.end()
        self.assertEqual((program.process.returncode, said), (0, ("", "")))
        self.assertEqual(len(program.started), 2)
        program.wait()

    def test_interrupted(self) -> None:
        program = Program(
            self,
            """
            # A shell ignores it in what it runs in the background, and so do the children of that.
            signal.signal(signal.SIGINT, signal.default_int_handler)
            llm = LLM()
            many = SamplingParams(max_tokens=None, ignore_eos=True, n=64)
            try:
                print("ready", flush=True)
                llm.generate(["x"] * 100, many)
            except KeyboardInterrupt:
                llm.generate("x", SamplingParams(max_tokens=2))
                print("interrupted")
            """,
        )
        # As a terminal does: to the engine, too.
        for pid in [program.process.pid, *program.started]:
            os.kill(pid, signal.SIGINT)
        self.assertEqual(program.end()[0], "interrupted\n")

    def test_closed(self) -> None:
        before = os.listdir("/proc/self/fd")
        threads = threading.active_count()
        for _ in range(3):
            llm = LLM()
            llm.close()
            llm.close()
            with self.assertRaisesRegex(EngineDeadError, "the engine was closed"):
                llm.generate("x")
        llm = LLM()
        (engine,) = descendants(os.getpid())
        del llm
        gc.collect()
        self.assertFalse(lives(engine))
        with self.assertRaises(ValueError):
            LLM(nothing_of_the_kind=1)
        self.assertEqual(descendants(os.getpid()), [])
        with self.assertRaises(ChildProcessError):  # no zombie
            os.waitpid(-1, os.WNOHANG)
        self.assertEqual(os.listdir("/proc/self/fd"), before)
        self.assertEqual(threading.active_count(), threads)

    def test_environment_for_servers(self) -> None:
        environment = {"EAGLERAY_PORT": "1", "VLLM_API_KEY": "secret"}
        with mock.patch.dict(os.environ, environment), LLM() as llm:
            self.assertTrue(llm.generate("x", SamplingParams(max_tokens=1))[0].finished)
        with mock.patch.dict(os.environ, EAGLERAY_BLOCK_SIZE="none"):
            with self.assertRaisesRegex(ValueError, "EAGLERAY_BLOCK_SIZE"):
                LLM()

    def test_outlives_the_thread_that_made_it(self) -> None:
        made: list[LLM] = []
        thread = threading.Thread(target=lambda: made.append(LLM()))
        thread.start()
        thread.join()
        with made[0] as llm:
            self.assertTrue(llm.generate("x", SamplingParams(max_tokens=2))[0].finished)


class TestEngineDies(unittest.IsolatedAsyncioTestCase):
    """Everybody who waits learns that the engine has ended."""

    async def test_streams(self) -> None:
        llm = AsyncLLM()
        self.addCleanup(llm.shutdown)

        async def read() -> RequestOutput:
            async for output in llm.generate("x", ENDLESS):
                reading.set()
            return output

        reading = asyncio.Event()
        tasks = [asyncio.create_task(read()) for _ in range(20)]
        await reading.wait()
        (engine,) = descendants(os.getpid())
        os.kill(engine, signal.SIGKILL)
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            self.assertIsInstance(result, EngineDeadError)
            self.assertEqual(str(result), "the engine's process ended: signal 9")
        with self.assertRaisesRegex(EngineDeadError, "signal 9"):
            await llm.request("/v1/models", method="GET")

    async def test_requests_unread(self) -> None:
        llm = AsyncLLM()
        self.addCleanup(llm.shutdown)
        (engine,) = descendants(os.getpid())
        os.kill(engine, signal.SIGSTOP)
        while state(engine) != "T":
            await asyncio.sleep(0.001)
        tasks = [asyncio.create_task(llm.request("/v1/models", method="GET")) for _ in range(3)]
        await asyncio.sleep(0.05)
        os.kill(engine, signal.SIGKILL)
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            self.assertEqual(str(result), "the engine's process ended: signal 9")

    async def test_closed_by_another(self) -> None:
        async with AsyncLLM() as llm:
            stream = llm.generate("x", ENDLESS)
            await stream.__anext__()
        with self.assertRaisesRegex(EngineDeadError, "the engine was closed"):
            async for _ in stream:
                pass

    async def test_aborted_by_the_end(self) -> None:
        """An engine that is closed may still say that it has aborted a request."""
        async with AsyncLLM() as llm:
            stream = llm.generate("x", ENDLESS)
            await stream.__anext__()
            await llm.request("/pause?mode=abort")
            llm._engine._note(EngineDeadError("the engine was closed"))
            with self.assertRaisesRegex(EngineDeadError, "the engine was closed"):
                async for _ in stream:
                    pass

    def test_reader_fails(self) -> None:
        class Broken:
            def answer(self, body: Any) -> None:
                raise KeyError("broken")

            def fail(self, error: Exception) -> None: ...

        with LLM() as llm:
            llm._calls.ask("/load", None, Broken(), "GET")
            with self.assertRaisesRegex(EngineDeadError, r"not understood: KeyError\('broken'\)"):
                while True:
                    llm.generate("x", SamplingParams(max_tokens=1))
            deadline = time.monotonic() + 30
            while descendants(os.getpid()):  # it ends by itself
                self.assertLess(time.monotonic(), deadline)

    def test_failed(self) -> None:
        """A rank is lost for good: the engine says which, before its process ends."""
        with LLM(
            tensor_parallel_size=2, distributed_executor_backend="mp", on_failure="exit"
        ) as llm:
            ranks = [pid for pid in descendants(os.getpid()) if b"worker" in command(pid)]
            self.assertEqual(len(ranks), 2)
            killer = threading.Timer(0.05, os.kill, (ranks[1], signal.SIGKILL))
            killer.start()
            with self.assertRaisesRegex(RuntimeError, "rank "):
                while True:
                    llm.generate("x", ENDLESS)
            killer.join()
            deadline = time.monotonic() + 30
            with self.assertRaises(EngineDeadError):
                while time.monotonic() < deadline:
                    llm.request("/v1/models", method="GET")


def command(pid: int) -> bytes:
    """Return the command line of a process."""
    return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()


def name(pid: int) -> str:
    """Return the name of a process."""
    return pathlib.Path(f"/proc/{pid}/comm").read_text()


if __name__ == "__main__":
    unittest.main()
