"""The calls of a trainer, for programs that run an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Callable, Optional, TypeVar

from .weights import Trainable, Weights

_Result = TypeVar("_Result")


class AsyncTrainable:
    """What a trainer asks of an engine, as ``LLM`` has it, without holding up the event loop.

    Each call is made by a thread: one that is cancelled ends by itself, and is not undone.
    """

    @property
    def trainable(self) -> Trainable:
        """The same calls for threads that wait, and what a ``WeightTransfer`` takes."""
        raise NotImplementedError

    async def pause(self, mode: str = "abort", clear_cache: bool = True) -> None:
        """Let new requests wait; those in flight are ended, finish (wait) or freeze (keep)."""
        await _by_thread(self.trainable.pause, mode, clear_cache)

    async def resume(self) -> None:
        """Go on after a pause."""
        await _by_thread(self.trainable.resume)

    async def is_paused(self) -> bool:
        """Say whether generation is paused."""
        return await _by_thread(self.trainable.is_paused)

    async def abort_requests(self, request_ids: Optional[Sequence[str]] = None) -> None:
        """End requests with what they have, all if no ids are given."""
        await _by_thread(self.trainable.abort_requests, request_ids)

    async def sleep(self, level: int = 1, mode: str = "abort") -> None:
        """Give back the memory of the KV cache, at level 2 that of the weights too."""
        await _by_thread(self.trainable.sleep, level, mode)

    async def wake_up(self, tags: Optional[Sequence[str]] = None) -> None:
        """Take the memory again, with tags that of ``weights`` or ``kv_cache`` alone."""
        await _by_thread(self.trainable.wake_up, tags)

    async def is_sleeping(self) -> bool:
        """Say whether a part of the engine sleeps."""
        return await _by_thread(self.trainable.is_sleeping)

    async def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Empty the prefix cache. It returns False where requests run, unless they may start anew."""
        return await _by_thread(self.trainable.reset_prefix_cache, reset_running_requests)

    async def collective_rpc(
        self, method: str, timeout: Optional[float] = None, args: Sequence[Any] = ()
    ) -> list[Any]:
        """Call a method of every rank, and return the results in rank order."""
        return await _by_thread(self.trainable.collective_rpc, method, timeout, args)

    async def update_weights(self, weights: Weights, version: Optional[str] = None) -> str:
        """Bring a whole set of weights into all ranks, and return its version."""
        return await _by_thread(self.trainable.update_weights, weights, version)

    async def load_weights(self, path: str, version: Optional[str] = None) -> str:
        """Bring the weights of a safetensors file, or of a folder of them, into all ranks."""
        return await _by_thread(self.trainable.load_weights, path, version)

    async def weight_info(self) -> dict[str, Any]:
        """Return the version of the weights, how many updates there were, and the state."""
        return await _by_thread(self.trainable.weight_info)


async def _by_thread(call: Callable[..., _Result], *args: Any) -> _Result:
    return await asyncio.get_running_loop().run_in_executor(None, call, *args)
