"""New weights for a server that runs: over TCP with TLS, a unix socket, and shared memory."""

from __future__ import annotations

import os
import pathlib
import re
import socket
import ssl
import subprocess
import tempfile
import unittest
from typing import Any

from eagleray import BadRequestError, RequestError, _binary
from eagleray.weights import Part, Raw, Server, Trainable, WeightTransfer, update_weights

from .test_weights import MODEL, halves, swapped, tensors

QUESTION = "What does os.Open do?"


def start(folder: str, *arguments: str) -> tuple[subprocess.Popen[bytes], str]:
    """Start a server whose key is in a file, and return its process and URL."""
    key = pathlib.Path(folder, "key")
    key.write_text("secret\n")
    command = [os.fspath(_binary.find()), "serve", "--port", "0", "--api-key-file", str(key)]
    process = subprocess.Popen([*command, *arguments], stderr=subprocess.PIPE)
    assert process.stderr is not None
    said = b""
    for line in process.stderr:
        said += line
        if found := re.search(rb"\burl=(\S+)", line):
            return process, found[1].decode()
    raise AssertionError(f"the server has ended: {said.decode()}")


class TestServer(unittest.TestCase):
    """A server with two ranks, its key, and a trainer."""

    process: subprocess.Popen[bytes]
    server: Server

    @classmethod
    def setUpClass(cls) -> None:
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.process, cls.url = start(
            folder.name,
            "--enable-rlhf",
            f"--allowed-local-weights={MODEL.parent}",
            "--host=0.0.0.0",
            "--tensor-parallel-size=2",
            "--max-num-seqs=8",
        )
        cls.addClassCleanup(cls.end)
        cls.server = Server(cls.url, "secret")
        cls.own = tensors()
        cls.other = swapped(cls.own)

    url: str
    own: dict[str, Raw]
    other: dict[str, Raw]

    @classmethod
    def end(cls) -> None:
        cls.process.terminate()
        assert cls.process.stderr is not None
        cls.process.stderr.close()
        cls.process.wait()

    def answer(self) -> tuple[str, str]:
        """Return what the server says, and the version of the weights that said it."""
        body = {"prompt": QUESTION, "max_tokens": 12, "temperature": 0, "ignore_eos": True}
        answer = self.server.request("/v1/completions", body)
        return answer["choices"][0]["text"], answer["weight_version"]

    def test_transports(self) -> None:
        before, _ = self.answer()
        answers = []
        for transport in ("tcp", "unix", "shm"):
            version = f"{transport}-other"
            self.assertEqual(update_weights(self.server, self.other, version, transport), version)
            text, by = self.answer()
            self.assertEqual(by, version)
            answers.append(text)
            transfer = WeightTransfer(self.server, transport)
            transfer.start()
            for name, tensor in self.own.items():
                transfer.send(halves(name, tensor))
            self.assertEqual(transfer.finish(f"{transport}-own"), f"{transport}-own")
            self.assertEqual(self.answer(), (before, f"{transport}-own"))
        self.assertEqual(len(set(answers)), 1)
        self.assertNotEqual(answers[0], before)

    def test_keys(self) -> None:
        for key in (None, "wrong"):
            with self.assertRaises(RequestError) as caught:
                WeightTransfer(Server(self.url, key))
            self.assertEqual(caught.exception.status, 401)

    def test_without_the_token(self) -> None:
        """A connection that does not know the session's secret is closed, and brings nothing."""
        transfer = WeightTransfer(self.server, "tcp")
        host, _, port = transfer.session["tcp"].rpartition(":")
        self.assertEqual(host, "127.0.0.1")  # the one at which the server was asked
        context = ssl.create_default_context(cadata=transfer.session["certificate"])
        with socket.create_connection((host, int(port))) as plain:
            with context.wrap_socket(plain, server_hostname="eagleray-weights") as connection:
                connection.sendall(b"EAGLERAY-WEIGHTS/1 wrong s\n")
                connection.settimeout(60)
                try:
                    self.assertEqual(connection.recv(1), b"")
                except OSError:
                    pass
        with self.assertRaises(ssl.SSLError):
            with socket.create_connection((host, int(port))) as plain:
                ssl.create_default_context().wrap_socket(plain, server_hostname="eagleray-weights")

    def test_broken(self) -> None:
        """Whatever breaks, the answers are those from before, and the next update succeeds."""
        before = self.answer()
        for transport in ("tcp", "unix", "shm"):
            transfer = WeightTransfer(self.server, transport)
            transfer.start()
            some = dict(list(self.own.items())[:-1])
            transfer.send(some)
            with self.assertRaisesRegex(BadRequestError, "is missing"):
                transfer.finish()
            with self.assertRaises(RequestError) as caught:
                transfer.send(some)
            self.assertEqual(caught.exception.status, 409)
            wrong = {f"x.{name}": tensor for name, tensor in self.own.items()}
            with self.assertRaisesRegex(BadRequestError, f"differ .* in {len(wrong)} tensors"):
                transfer.update(wrong)
            self.assertEqual(self.answer(), before)
        self.assertEqual(transfer.update(self.own, before[1]), before[1])
        self.assertEqual(self.answer(), before)

    def test_steering(self) -> None:
        """A server has the other calls by its routes: Trainable needs nothing but request."""

        class Steered(Trainable):
            def request(
                self,
                route: str,
                body: Any = None,
                method: str = "POST",
                server: Server = self.server,
            ) -> Any:
                return server.request(route, body, method)

        steered = Steered()
        before, _ = self.answer()
        steered.pause("wait")
        self.assertTrue(steered.is_paused())
        steered.resume()
        steered.sleep(2)
        steered.wake_up(["weights"])
        self.assertTrue(steered.is_sleeping())
        steered.wake_up()
        steered.load_weights(str(MODEL), "files")
        self.assertEqual(steered.weight_info()["weight_version"], "files")
        self.assertEqual(self.answer(), (before, "files"))
        self.assertEqual(steered.collective_rpc("echo", args=[7]), [7, 7])

    def test_torch(self) -> None:
        """A state_dict is taken in bf16 and f32, whole and as TP ranks have it."""
        try:
            import torch
        except ImportError:
            self.skipTest("torch is not installed")
        state = {
            name: torch.frombuffer(bytearray(t.data), dtype=torch.bfloat16).reshape(tuple(t.shape))
            for name, t in self.other.items()
        }
        update_weights(self.server, self.other, "bytes", "unix")
        want, _ = self.answer()
        for transport in ("tcp", "unix", "shm"):
            update_weights(self.server, self.own, "own", transport)
            self.assertNotEqual(self.answer()[0], want)
            update_weights(self.server, state, "torch", transport)
            self.assertEqual(self.answer(), (want, "torch"))
            # What autograd and a transposed view have is copied as it reads.
            parameters = {
                name: torch.nn.Parameter(x.t().contiguous().t() if x.dim() == 2 else x)
                for name, x in state.items()
            }
            update_weights(self.server, parameters, "views", transport)
            self.assertEqual(self.answer(), (want, "views"))
            update_weights(self.server, {n: x.float() for n, x in state.items()}, "f32", transport)
            self.assertEqual(self.answer(), (want, "f32"))
            transfer = WeightTransfer(self.server, transport)
            transfer.start()
            for rank in range(2):
                transfer.send(
                    {name: shard(name, x, rank) for name, x in state.items() if owned(x, rank)}
                )
            self.assertEqual(transfer.finish("shards"), "shards")
            self.assertEqual(self.answer(), (want, "shards"))
        update_weights(self.server, self.own, "own")


def owned(tensor: Any, rank: int) -> bool:
    """Say whether a rank of two sends a tensor: what both have whole is sent by the first."""
    return rank == 0 or tensor.dim() == 2


def shard(name: str, tensor: Any, rank: int) -> Any:
    """Return what a rank of two has of a tensor, as Megatron divides it."""
    if tensor.dim() != 2:
        return tensor
    dimension = 1 if name.endswith(("o_proj.weight", "down_proj.weight")) else 0
    middle = tensor.shape[dimension] // 2
    offset = [0, 0]
    offset[dimension] = rank * middle
    size = middle if rank == 0 else tensor.shape[dimension] - middle
    return Part(tensor.narrow(dimension, rank * middle, size), offset)
