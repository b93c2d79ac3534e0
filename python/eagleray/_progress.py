"""How far a batch is, as a line on standard error."""

from __future__ import annotations

import sys
import time
from typing import Any, Callable, Protocol, Union


class Bar(Protocol):
    """What is used of tqdm."""

    def update(self, n: int) -> Any:
        """Have so many more done."""

    def close(self) -> Any:
        """Leave the line clean."""


UseTqdm = Union[bool, Callable[..., Bar]]
"""True shows a line on a terminal; so does a function with tqdm's parameters, its own."""


def bar(use_tqdm: UseTqdm, total: int, what: str) -> Bar:
    """Return what shows the progress of a batch."""
    if callable(use_tqdm):
        return use_tqdm(total=total, desc=what, dynamic_ncols=True)
    return _Line(total, what, use_tqdm and sys.stderr is not None and sys.stderr.isatty())


class _Line:
    """A line that is rewritten in place, a few times a second."""

    def __init__(self, total: int, what: str, shown: bool) -> None:
        self._total, self._what, self._shown = total, what, shown
        self._done = 0
        self._begun = self._last = time.monotonic()
        self._width = 0

    def update(self, n: int) -> None:
        """Have so many more done."""
        self._done += n
        now = time.monotonic()
        if not self._shown or (now - self._last < 0.2 and self._done < self._total):
            return
        self._last = now
        rate = self._done / max(now - self._begun, 1e-9)
        self._write(
            f"{self._what}: {self._done} of {self._total}, {now - self._begun:.0f} s, "
            f"{rate:.2f} a second, {(self._total - self._done) / max(rate, 1e-9):.0f} s left"
        )

    def close(self) -> None:
        """Leave the line clean."""
        if self._width:
            self._write("")
            sys.stderr.write("\r")
            sys.stderr.flush()

    def _write(self, text: str) -> None:
        sys.stderr.write("\r" + text.ljust(self._width))
        sys.stderr.flush()
        self._width = len(text)
