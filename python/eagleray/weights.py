"""New weights for an engine: from a trainer's process into every rank, all or none.

An ``LLM`` and a server (``eagleray.weights.Server``) take them in the same way::

    update_weights(llm, model.state_dict())

Tensors may be torch's, numpy's, or Raw bytes; neither library is needed.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import socket
import ssl
import struct
import threading
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Optional, Protocol, Union

from . import errors

__all__ = ["Ask", "Part", "Raw", "Server", "Trainable", "WeightTransfer", "update_weights"]

_CRC = struct.Struct("<I")
_CHUNK = 1 << 20
# Linux's numbers, which Python names from 3.8 on where it was built with them.
_ADD_SEALS, _SEAL_SHRINK, _SEAL_GROW, _SEAL_WRITE = 1033, 2, 4, 8


class Ask(Protocol):
    """What can be asked for a route: an ``LLM``, or a ``Server``."""

    def request(
        self, route: str, body: Optional[dict[str, Any]] = None, method: str = "POST"
    ) -> Any:
        """Ask a route, and return the body of the answer."""


@dataclass
class Part:
    """A part of a tensor, as a rank of a trainer has it.

    offset is where it begins in the whole tensor, one number per dimension: a matrix whose rows are
    divided has ``(rank * rows, 0)``, one whose columns are ``(0, rank * columns)``.
    """

    tensor: Any
    offset: Sequence[int]


@dataclass
class Raw:
    """A tensor as its bytes, row by row, little endian, as a safetensors file has it."""

    data: Any
    dtype: str
    shape: Sequence[int]


Weights = Union[Mapping[str, Any], Iterable[tuple[str, Any]]]


class Server:
    """A server started with ``--enable-rlhf``, at its URL."""

    def __init__(self, url: str, api_key: Optional[str] = None, timeout: float = 600) -> None:
        self._url, self._key, self._timeout = url.rstrip("/"), api_key, timeout

    def request(
        self, route: str, body: Optional[dict[str, Any]] = None, method: str = "POST"
    ) -> Any:
        """Ask a route, and return the body of the answer."""
        request = urllib.request.Request(self._url + route, method=method)
        if body is not None:
            request.data = json.dumps(body).encode()
            request.add_header("Content-Type", "application/json")
        if self._key is not None:
            request.add_header("Authorization", f"Bearer {self._key}")
        try:
            with urllib.request.urlopen(request, timeout=self._timeout) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            text = error.read()
            try:
                said = json.loads(text)
            except ValueError:
                said = text.decode(errors="replace")
            raise errors.of_answer(error.code, said) from None
        return json.loads(text) if text else None


class WeightTransfer:
    """A session of weight transfer: it can bring any number of updates, one after the other.

    transport is ``shm`` for memory that is handed over (the engine's driver is on this host),
    ``unix`` for a socket, ``tcp`` for a TLS connection from another machine; by default ``shm``.
    """

    def __init__(self, engine: Ask, transport: str = "shm") -> None:
        if transport not in ("shm", "unix", "tcp"):
            raise ValueError(f"transport {transport!r} is none of shm, unix, tcp")
        self._engine, self._transport = engine, transport
        self._names = itertools.count()
        info = {"init_info": {"transport": transport}}
        self._session = engine.request("/init_weight_transfer_engine", info)["session"]
        if transport == "tcp" and "tcp" not in self._session:
            raise ValueError("the server lets in no trainers of other machines")

    @property
    def session(self) -> dict[str, Any]:
        """What other processes of the trainer need to bring parts of an update."""
        return dict(self._session)

    def update(self, weights: Weights, version: Optional[str] = None) -> str:
        """Bring a whole set of weights, and return its version.

        Raises BadRequestError when names or shapes are not the model's, or what came was broken:
        then the weights are those from before.
        """
        arrays = _arrays(weights)  # which no update waits for: they may be none
        self.start()
        self._send(arrays)
        return self.finish(version)

    def start(self) -> None:
        """Begin an update whose weights come by several calls of send."""
        self._engine.request("/start_weight_update", {})

    def finish(self, version: Optional[str] = None) -> str:
        """Have all ranks compute with the weights that were sent, and return their version."""
        body = {} if version is None else {"weight_version": version}
        return str(self._engine.request("/finish_weight_update", body)["weight_version"])

    def send(self, weights: Weights) -> None:
        """Bring some of the weights of an update, or parts of them."""
        self._send(_arrays(weights))

    def _send(self, arrays: list[_Array]) -> None:
        stream = f"{os.getpid()}-{next(self._names)}"
        info: dict[str, Any] = {
            "stream": stream,
            "names": [a.name for a in arrays],
            "dtype_names": [a.dtype for a in arrays],
            "shapes": [list(a.shape) for a in arrays],
        }
        if any(a.offset is not None for a in arrays):
            info["offsets"] = [a.offset for a in arrays]
        if self._transport == "shm":
            self._hand_over(stream, arrays, info)
        else:
            self._stream(stream, arrays, info)

    def _hand_over(self, stream: str, arrays: list[_Array], info: dict[str, Any]) -> None:
        fd = os.memfd_create(f"eagleray-{stream}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        with contextlib.closing(_Descriptor(fd)):
            positions, size = [], 0
            for array in arrays:
                positions.append(size)
                size += -(-len(array.data) // 4096) * 4096
            os.ftruncate(fd, size)
            with ThreadPoolExecutor(os.cpu_count() or 1) as threads:
                sums = list(threads.map(_write, itertools.repeat(fd), arrays, positions))
            fcntl.fcntl(fd, _ADD_SEALS, _SEAL_SHRINK | _SEAL_GROW | _SEAL_WRITE)
            info["positions"], info["checksums"] = positions, sums
            with self._connect() as connection:
                line = self._line(stream)
                sent = socket.send_fds(connection, [line], [fd])
                connection.sendall(line[sent:])
                self._engine.request("/update_weights", {"update_info": info})

    def _stream(self, stream: str, arrays: list[_Array], info: dict[str, Any]) -> None:
        with self._connect() as connection:
            connection.sendall(self._line(stream))

            def bring() -> None:
                # The sums are worked out beside the sending, which waits for none but the first.
                with ThreadPoolExecutor(1) as beside:
                    sums = beside.map(_sum, arrays)
                    try:
                        for array in arrays:
                            for at in range(0, len(array.data), _CHUNK):
                                connection.sendall(array.data[at : at + _CHUNK])
                            connection.sendall(_CRC.pack(next(sums)))
                    except OSError:  # the answer says why the engine stopped reading
                        beside.shutdown(cancel_futures=True)

            thread = threading.Thread(target=bring, name="eagleray weights", daemon=True)
            thread.start()
            try:
                self._engine.request("/update_weights", {"update_info": info})
            finally:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
                thread.join()

    def _line(self, stream: str) -> bytes:
        return f"EAGLERAY-WEIGHTS/1 {self._session['token']} {stream}\n".encode()

    def _connect(self) -> socket.socket:
        if self._transport != "tcp":
            connection = socket.socket(socket.AF_UNIX)
            connection.connect(b"\0" + self._session["unix"].encode())
            return connection
        host, _, port = self._session["tcp"].rpartition(":")
        context = ssl.create_default_context(cadata=self._session["certificate"])
        plain = socket.create_connection((host.strip("[]"), int(port)))
        return context.wrap_socket(plain, server_hostname="eagleray-weights")


def update_weights(
    engine: Ask, weights: Weights, version: Optional[str] = None, transport: str = "shm"
) -> str:
    """Bring a whole set of weights into an engine, and return its version: see WeightTransfer."""
    return WeightTransfer(engine, transport).update(weights, version)


class Trainable:
    """What a trainer asks of an engine beside new weights, with vLLM's names."""

    # An update whose tensors come by collective_rpc one after the other.
    _coming: Optional[WeightTransfer] = None

    def request(
        self, route: str, body: Optional[dict[str, Any]] = None, method: str = "POST"
    ) -> Any:
        """Ask any route of the server's API, and return the body of the answer."""
        raise NotImplementedError

    def pause(self, mode: str = "abort", clear_cache: bool = True) -> None:
        """Let new requests wait; those in flight are ended, finish (wait) or freeze (keep)."""
        self.request(f"/pause?mode={mode}&clear_cache={str(clear_cache).lower()}")

    def resume(self) -> None:
        """Go on after a pause."""
        self.request("/resume")

    def is_paused(self) -> bool:
        """Say whether generation is paused."""
        return bool(self.request("/is_paused", method="GET")["is_paused"])

    def abort_requests(self, request_ids: Optional[Sequence[str]] = None) -> None:
        """End requests with what they have, all if no ids are given."""
        self.request(
            "/abort_requests", None if request_ids is None else {"request_ids": list(request_ids)}
        )

    def sleep(self, level: int = 1, mode: str = "abort") -> None:
        """Give back the memory of the KV cache, at level 2 that of the weights too."""
        self.request(f"/sleep?level={level}&mode={mode}")

    def wake_up(self, tags: Optional[Sequence[str]] = None) -> None:
        """Take the memory again, with tags that of ``weights`` or ``kv_cache`` alone."""
        query = "&".join(f"tags={tag}" for tag in tags or ())
        self.request(f"/wake_up?{query}" if query else "/wake_up")

    def is_sleeping(self) -> bool:
        """Say whether a part of the engine sleeps."""
        return bool(self.request("/is_sleeping", method="GET")["is_sleeping"])

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Empty the prefix cache. False where requests run, unless they may start anew."""
        flag = str(reset_running_requests).lower()
        answer = self.request(f"/reset_prefix_cache?reset_running_requests={flag}")
        return bool(answer["success"])

    def collective_rpc(
        self,
        method: str,
        timeout: Optional[float] = None,
        args: Sequence[Any] = (),
        kwargs: Optional[Mapping[str, Any]] = None,
    ) -> list[Any]:
        """Call a method of every rank, and return the results in rank order.

        Ranks run no Python. Beside the server's methods there is ``update_weight`` for trainers
        that bring one tensor per call: its arguments are the name, the tensor, and whether it is
        the last one, after which all ranks compute with those that came.
        """
        if not isinstance(method, str):
            raise TypeError(f"collective_rpc: {method!r} is no name: ranks run no Python")
        if method == "update_weight":
            self._update_weight(*args, **(kwargs or {}))
            return [None] * int(self.request("/get_world_size", method="GET")["world_size"])
        if kwargs:
            raise TypeError(f"collective_rpc: {method!r} has no keyword arguments")
        body = {"method": method, "args": list(args), "timeout": timeout}
        return list(self.request("/collective_rpc", body)["results"])

    def _update_weight(self, name: str, tensor: Any, last: bool = False) -> None:
        array = {name: _tensor(name, tensor)}
        if self._coming is None:
            coming = WeightTransfer(self)
            coming.start()
            self._coming = coming
        transfer = self._coming
        try:
            transfer.send(array)
        except Exception:
            self._coming = None  # the update has ended, and the next tensor begins another
            raise
        if last:
            self._coming = None
            transfer.finish()

    def update_weights(self, weights: Weights, version: Optional[str] = None) -> str:
        """Bring a whole set of weights into all ranks, and return its version."""
        return update_weights(self, weights, version)

    def load_weights(self, path: str, version: Optional[str] = None) -> str:
        """Bring the weights of a safetensors file, or of a folder of them, into all ranks.

        A server reads them itself: its own folder, and what lies below --allowed-local-weights.
        """
        self.request("/init_weight_transfer_engine", {"init_info": {}})
        self.request("/start_weight_update", {})
        self.request("/update_weights", {"update_info": {"path": os.path.abspath(path)}})
        body = {} if version is None else {"weight_version": version}
        return str(self.request("/finish_weight_update", body)["weight_version"])

    def weight_info(self) -> dict[str, Any]:
        """Return the version of the weights, how many updates there were, and the state."""
        return dict(self.request("/weight_info", method="GET"))


def _tensor(name: str, value: Any) -> Any:
    """Return a tensor; where trainers for NCCL give its type alone, say what to give."""
    if isinstance(value, Part) or hasattr(value, "shape"):
        return value
    raise TypeError(
        f"collective_rpc: update_weight takes the tensor {name!r} itself, not {value!r}: bytes "
        "come by memory, not over NCCL"
    )


def _arrays(weights: Weights) -> list[_Array]:
    items = weights.items() if isinstance(weights, Mapping) else weights
    return [_Array(name, value) for name, value in items]


class _Array:
    """A tensor as bytes, row by row."""

    def __init__(self, name: str, value: Any) -> None:
        self.name = name
        self.offset: Optional[list[int]] = None
        if isinstance(value, Part):
            self.offset = [int(n) for n in value.offset]
            value = value.tensor
        self._held, self.dtype, self.shape = _contiguous(name, value)
        empty = 0 in self.shape
        self.data = memoryview(b"") if empty else memoryview(self._held).cast("B")


def _contiguous(name: str, value: Any) -> tuple[Any, str, tuple[int, ...]]:
    """Return an object with the buffer protocol, the type's name, and the shape."""
    library = type(value).__module__.partition(".")[0]
    if library == "torch":
        tensor = value.detach().to("cpu").contiguous()
        bits = getattr(__import__("torch"), _bits(name, tensor.dtype, tensor.element_size()))
        return tensor.view(bits).numpy(), str(tensor.dtype), tuple(tensor.shape)
    if library in ("numpy", "ml_dtypes"):
        numpy = __import__("numpy")
        array = numpy.ascontiguousarray(value)
        bits = getattr(numpy, _bits(name, array.dtype, array.itemsize))
        return array.view(bits), str(array.dtype), tuple(value.shape)
    if isinstance(value, Raw):
        return value.data, value.dtype, tuple(value.shape)
    kind = type(value).__name__
    raise TypeError(f"{name}: {kind} is no tensor of torch or numpy, and not Raw")


def _bits(name: str, dtype: Any, width: int) -> str:
    """Return the integers by which tensors are handed over: numpy has no bfloat16."""
    if width not in (2, 4):
        raise TypeError(f"{name}: {dtype} is no type of weights")
    return f"int{8 * width}"


def _sum(array: _Array) -> int:
    crc = 0
    for at in range(0, len(array.data), _CHUNK):
        crc = zlib.crc32(array.data[at : at + _CHUNK], crc)
    return crc


def _write(fd: int, array: _Array, position: int) -> int:
    crc = 0
    for at in range(0, len(array.data), _CHUNK):
        chunk = array.data[at : at + _CHUNK]
        crc = zlib.crc32(chunk, crc)
        done = 0
        while done < len(chunk):
            done += os.pwrite(fd, chunk[done:], position + at + done)
    return crc


class _Descriptor:
    def __init__(self, fd: int) -> None:
        self._fd = fd

    def close(self) -> None:
        os.close(self._fd)
