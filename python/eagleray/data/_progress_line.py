"""One line on the driver's terminal for all engines of a processor, beside Ray Data's own bars."""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from typing import Any, Callable, Optional

BETWEEN = 0.5
"""Seconds between two states of the line."""
IDLE = 1.0
"""Seconds without rows after which the line stays as it is. Ray kills the actors of a pool, which
so cannot say that they end."""


class ProgressLine:
    """Adds up what engines tell, as an actor of Ray's. One event loop runs all of it."""

    def __init__(self, model: str, bar: Optional[Callable[[], Any]] = None) -> None:
        """Show it with what ``bar`` returns; by default one of Ray's distributed progress bars."""
        self._model = os.path.basename(model.rstrip("/"))
        self._new_bar = bar or _Bar
        self._bar: Any = None
        self._engines: dict[str, tuple[int, int, int]] = {}
        self._begun = self._shown = 0.0
        self._rows = self._tokens = 0
        self._waits: Any = None

    async def tell(self, engine: str, rows: int, tokens: int, pending: int) -> None:
        """Take what an engine has done since it began, and how many rows it has."""
        import asyncio

        rows_then, tokens_then, _ = self._engines.get(engine, (0, 0, 0))
        self._engines[engine] = rows, tokens, pending
        now = time.monotonic()
        if self._bar is None:
            # The bar takes its first state for the time it begins.
            self._begun, self._rows, self._tokens = now, 0, 0
            self._bar = self._new_bar()
            self._bar.set_description(f"eagleray {self._model}")
        self._rows += rows - rows_then
        self._tokens += tokens - tokens_then
        if self._waits is not None:
            self._waits.cancel()
        loop, idle = asyncio.get_running_loop(), not any(p for _, _, p in self._engines.values())
        if idle:
            self._waits = loop.call_later(IDLE, self.close)
        else:
            self._waits = loop.call_later(BETWEEN, self._show)
        if idle or now - self._shown >= BETWEEN:
            self._show()

    def close(self) -> None:
        """Leave the line as it is. Rows that come later get another one."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _show(self) -> None:
        self._shown = time.monotonic()
        rate = self._rows / max(self._shown - self._begun, 1e-3)
        self._bar.set_description(f"eagleray {self._model}: {self._rows} rows, {rate:.1f} rows/s")
        self._bar.update(self._tokens - self._bar.n)


class _Bar:
    """Ray's bar, which does not say how far it is on every version."""

    def __init__(self) -> None:
        from ray.experimental import tqdm_ray

        self.n = 0
        # It is shown as often as it is told to.
        self._bar = tqdm_ray.tqdm(unit="tok", flush_interval_s=0)
        self.set_description, self.close = self._bar.set_description, self._bar.close

    def update(self, n: int) -> None:
        """Have so many more done."""
        self.n += n
        self._bar.update(n)


def progress_line(model: str) -> Any:
    """Return the handle of such a line where Ray Data shows bars on a terminal, else None."""
    import ray
    from ray.data import DataContext

    context = DataContext.get_current()
    rich = getattr(context, "enable_rich_progress_bars", False) and not context.use_ray_tqdm
    shown = context.enable_progress_bars and sys.stderr is not None and sys.stderr.isatty()
    if not shown or rich or importlib.util.find_spec("tqdm") is None:
        return None
    return ray.remote(num_cpus=0)(ProgressLine).remote(model)
