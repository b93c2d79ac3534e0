"""Tests of what the actor does without Ray, which a stub stands for: python3 -m unittest
actor_test."""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
import sys
import tempfile
import time
import types
import unittest
from unittest import mock

sys.modules.setdefault("ray", types.ModuleType("ray"))

import actor  # noqa: E402


class Binary(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.home = folder.name
        self.blob = b"#!/bin/sh\n"
        self.sha256 = hashlib.sha256(self.blob).hexdigest()
        patches = [
            mock.patch.dict(os.environ, {"XDG_CACHE_HOME": os.path.join(self.home, "cache")}),
            mock.patch.object(actor, "RAY_DIR", self.home),
        ]
        for patch in patches:
            patch.start()
            self.addCleanup(patch.stop)

    def test_hint_needs_no_folder(self) -> None:
        path = actor.write_binary(self.home, self.sha256, self.blob)
        with mock.patch.object(
            actor, "cache_dirs", side_effect=AssertionError("looked for a folder")
        ):
            self.assertEqual(actor.find_binary(self.sha256, path), path)

    def test_cache_is_found(self) -> None:
        usable, _ = actor.cache_dirs()
        path = actor.write_binary(usable[0], self.sha256, self.blob)
        self.assertEqual(actor.find_binary(self.sha256, os.path.join(self.home, "elsewhere")), path)
        self.assertTrue(os.stat(path).st_mode & stat.S_IXUSR)

    def test_unused_is_forgotten(self) -> None:
        folder = actor.cache_dirs()[0][0]
        old = time.time() - actor.UNUSED_SECONDS - 60
        names = ["eagleray-" + "1" * 64, ".partial-old", "somebody's", "eagleray-" + self.sha256]
        for name in names:
            path = os.path.join(folder, name)
            with open(path, "wb") as f:
                f.write(self.blob)
            os.chmod(path, 0o700)
            os.utime(path, (old, old))
        # Looking for it is using it.
        self.assertTrue(actor.find_binary(self.sha256, ""))
        new = b"#!/bin/false\n"
        written = actor.write_binary(folder, hashlib.sha256(new).hexdigest(), new)
        self.assertEqual(
            sorted(os.listdir(folder)), sorted([*names[2:], os.path.basename(written)])
        )

    def test_no_temporary_folder(self) -> None:
        with mock.patch("tempfile.gettempdir", side_effect=FileNotFoundError("none is usable")):
            usable, _ = actor.cache_dirs()
        self.assertIn(os.path.join(self.home, "cache", "eagleray", "bin"), usable)

    def test_rays_folder_is_not_made(self) -> None:
        nowhere = os.path.join(self.home, "nowhere")
        with mock.patch.object(actor, "RAY_DIR", nowhere):
            actor.cache_dirs()
        self.assertFalse(os.path.exists(nowhere))

    def test_reasons(self) -> None:
        def refuse(path: str, **_: object) -> None:
            raise OSError(30, "Read-only file system")

        with mock.patch("os.makedirs", refuse):
            usable, refused = actor.cache_dirs()
        self.assertEqual(usable, [])
        self.assertTrue(
            all("cannot be made: Read-only file system" in why for why in refused)
            and len(refused) == 3,
            refused,
        )

        class NoExec:
            f_flag = os.ST_NOEXEC

        with mock.patch("os.statvfs", return_value=NoExec):
            usable, refused = actor.cache_dirs()
        self.assertEqual(usable, [])
        self.assertTrue(any("mounted noexec" in why for why in refused), refused)


class Raylet(unittest.TestCase):
    def test_only_what_is_one(self) -> None:
        for pid in ("", "x", "0", str(os.getpid()), "999999999"):
            with mock.patch.dict(os.environ, {"RAY_RAYLET_PID": pid}):
                self.assertEqual(actor.visible_raylet(), "", pid)
        with (
            mock.patch.dict(os.environ, {"RAY_RAYLET_PID": "7"}),
            mock.patch.object(actor, "read_text") as read,
        ):
            read.side_effect = {"/proc/7/comm": "raylet\n"}.get
            self.assertEqual(actor.visible_raylet(), "7")


class Drain(unittest.TestCase):
    def test_full_disk(self) -> None:
        """The worker's output is read to its end also when it cannot be written anywhere."""
        script = "import sys; sys.stderr.write('x' * 300000 + '\\nlast\\n')"
        child = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE)
        worker = actor.Worker.__new__(actor.Worker)
        worker.tail = actor.deque(maxlen=actor.TAIL_LINES)

        class Full:
            def write(self, _: str) -> int:
                raise OSError(28, "No space left on device")

            def flush(self) -> None: ...

        with mock.patch("sys.stderr", Full()):
            worker._drain(child)
        self.assertEqual(child.wait(10), 0)
        child.stderr.close()
        self.assertEqual(worker.tail[-1], "last")


if __name__ == "__main__":
    unittest.main()
