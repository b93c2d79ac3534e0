"""Keyword arguments as flags, and where the binary is."""

from __future__ import annotations

import enum
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

from eagleray import _binary
from eagleray import EngineArgs, LLM
from eagleray._arguments import command_and_environment, command_line
from eagleray.metrics import Counter, Gauge, Histogram, read_metrics


class Color(enum.Enum):
    """An enumeration."""

    RED = "red"


class TestScripts(unittest.TestCase):
    """What scripts for vLLM start engines with, and read of them."""

    def test_environment(self) -> None:
        flags, env = command_and_environment({"model": "m", "hf_token": "secret"})
        assert env is not None
        self.assertEqual((flags, env["HF_TOKEN"]), (["--model=m"], "secret"))
        for task in ("embed", "classify"):
            self.assertEqual(command_and_environment({"task": task}), (["--runner=pooling"], None))
        self.assertEqual(command_and_environment({"task": "draw"}), (["--task=draw"], None))

    def test_engine_args(self) -> None:
        args = EngineArgs(model="m", max_num_seqs=3)
        args.max_num_seqs = 4  # type: ignore[attr-defined]
        self.assertEqual(args, EngineArgs("m", max_num_seqs=4))
        self.assertEqual(repr(args), "EngineArgs(model='m', max_num_seqs=4)")
        with mock.patch.object(LLM, "__init__", return_value=None) as started:
            LLM.from_engine_args(args)
        started.assert_called_once_with(model="m", max_num_seqs=4)

    def test_metrics(self) -> None:
        text = (
            "# HELP eagleray:tokens_total Tokens.\n"
            "# TYPE eagleray:tokens_total counter\n"
            'eagleray:tokens_total{model_name="a\\"b"} 3\n'
            "# TYPE vllm:tokens_total counter\n"
            'vllm:tokens_total{model_name="a\\"b"} 3\n'
            "# TYPE eagleray:usage gauge\n"
            "eagleray:usage 0.5\n"
            "# TYPE eagleray:wait histogram\n"
            'eagleray:wait_bucket{engine="0",le="1"} 2\n'
            'eagleray:wait_bucket{engine="0",le="+Inf"} 4\n'
            'eagleray:wait_sum{engine="0"} 1.5\n'
            'eagleray:wait_count{engine="0"} 4\n'
            "# TYPE go_goroutines gauge\n"
            "go_goroutines 9\n"
        )
        self.assertEqual(
            read_metrics(text),
            [
                Counter("vllm:tokens", {"model_name": 'a"b'}, 3),
                Gauge("vllm:usage", {}, 0.5),
                Histogram("vllm:wait", {"engine": "0"}, 4, 1.5, {"1": 2, "+Inf": 4}),
            ],
        )


class TestCommandLine(unittest.TestCase):
    """What becomes of keyword arguments."""

    def test_values(self) -> None:
        for value, flags in (
            (2, ["--a-b=2"]),
            (0.5, ["--a-b=0.5"]),
            ("x y", ["--a-b=x y"]),
            ("", ["--a-b="]),
            (None, []),
            (True, ["--a-b=true"]),
            (False, ["--a-b=false"]),
            (pathlib.Path("/m"), ["--a-b=/m"]),
            (Color.RED, ["--a-b=red"]),
            ([3, 4], ["--a-b=3,4"]),
            (["x", "y"], ["--a-b=x", "--a-b=y"]),
            (("x", pathlib.Path("y")), ["--a-b=x", "--a-b=y"]),
            ({"k": [1, None]}, ['--a-b={"k": [1, null]}']),
        ):
            with self.subTest(value):
                self.assertEqual(command_line({"a_b": value}), flags)

    def test_what_no_flag_has(self) -> None:
        for value in (object(), {1, 2}, [1, "x"], [None], b"x"):
            with self.assertRaisesRegex(TypeError, "a_b: a flag cannot have the value"):
                command_line({"a_b": value})


class TestBinary(unittest.TestCase):
    """Which binary is taken, and what is said where there is none."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def program(self, name: str, text: bytes) -> pathlib.Path:
        """Write an executable file."""
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(text)
        path.chmod(0o755)
        return path

    def test_named(self) -> None:
        path = self.program("x", b"\x7fELF")
        with mock.patch.dict(os.environ, EAGLERAY_BINARY=str(path)):
            self.assertEqual(_binary.find(), path)
        with mock.patch.dict(os.environ, EAGLERAY_BINARY=str(path) + "y"):
            with self.assertRaisesRegex(FileNotFoundError, "EAGLERAY_BINARY: .*y is not an exec"):
                _binary.find()

    def test_packed_then_path(self) -> None:
        packed = self.program("bin/eagleray", b"\x7fELF")
        on_path = self.program("path/eagleray", b"\x7fELF")
        environment = {"PATH": str(on_path.parent)}
        here = mock.patch.object(_binary, "__file__", str(self.folder / "_binary.py"))
        with mock.patch.dict(os.environ, environment, clear=True), here:
            self.assertEqual(_binary.find(), packed)
            packed.unlink()
            self.assertEqual(_binary.find(), on_path)
            on_path.write_bytes(b"#!/usr/bin/python3\n")  # this package's own entry point
            with self.assertRaises(FileNotFoundError) as caught:
                _binary.find()
        said = str(caught.exception)
        for part in (sys.platform, os.uname().machine, str(packed), "EAGLERAY_BINARY"):
            self.assertIn(part, said)

    def test_packed_for_another_platform(self) -> None:
        # An ELF header, of which e_machine is at 18.
        other = (183, "aarch64") if os.uname().machine == "x86_64" else (62, "x86_64")
        packed = self.program("bin/eagleray", b"\x7fELF".ljust(18, b"\0") + bytes([other[0], 0]))
        environment = {"PATH": str(self.folder)}
        here = mock.patch.object(_binary, "__file__", str(self.folder / "_binary.py"))
        with mock.patch.dict(os.environ, environment, clear=True), here:
            with self.assertRaisesRegex(FileNotFoundError, f"{packed} is for {other[1]}"):
                _binary.find()

    def test_module_is_the_binary(self) -> None:
        path = self.program("x", b'#!/bin/sh\necho "$@"; exit 3\n')
        command = [sys.executable, "-B", "-m", "eagleray", "serve", "--port", "0"]
        environment = {**os.environ, "EAGLERAY_BINARY": str(path)}
        ended = subprocess.run(command, env=environment, capture_output=True, text=True)
        self.assertEqual((ended.stdout, ended.returncode), ("serve --port 0\n", 3))
        environment["EAGLERAY_BINARY"] = "/nowhere"
        ended = subprocess.run(command, env=environment, capture_output=True, text=True)
        self.assertEqual(ended.returncode, 1)
        self.assertIn("eagleray: EAGLERAY_BINARY: /nowhere is not an executable", ended.stderr)


if __name__ == "__main__":
    unittest.main()
