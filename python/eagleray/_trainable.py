"""The calls of a trainer, for programs that run an event loop."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Callable, TypeVar

from .weights import Trainable

if TYPE_CHECKING:
    from typing_extensions import Concatenate, ParamSpec

    _Params = ParamSpec("_Params")

_Result = TypeVar("_Result")


def _by_thread(
    call: Callable[Concatenate[Trainable, _Params], _Result],
) -> Callable[Concatenate[AsyncTrainable, _Params], Coroutine[Any, Any, _Result]]:
    """Return a method that has a thread make a call."""

    @functools.wraps(call)
    async def method(
        self: AsyncTrainable, /, *args: _Params.args, **kwargs: _Params.kwargs
    ) -> _Result:
        made = functools.partial(call, self.trainable, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(None, made)

    return method


class AsyncTrainable:
    """What a trainer asks of an engine, as ``LLM`` has it, without holding up the event loop.

    Each call is made by a thread: one that is cancelled ends by itself, and is not undone.
    """

    @property
    def trainable(self) -> Trainable:
        """The same calls for threads that wait, and what a ``WeightTransfer`` takes."""
        raise NotImplementedError

    pause = _by_thread(Trainable.pause)
    resume = _by_thread(Trainable.resume)
    # vLLM's names of these two.
    pause_generation, resume_generation = pause, resume
    is_paused = _by_thread(Trainable.is_paused)
    abort_requests = _by_thread(Trainable.abort_requests)
    sleep = _by_thread(Trainable.sleep)
    wake_up = _by_thread(Trainable.wake_up)
    is_sleeping = _by_thread(Trainable.is_sleeping)
    reset_prefix_cache = _by_thread(Trainable.reset_prefix_cache)
    collective_rpc = _by_thread(Trainable.collective_rpc)
    update_weights = _by_thread(Trainable.update_weights)
    load_weights = _by_thread(Trainable.load_weights)
    weight_info = _by_thread(Trainable.weight_info)
