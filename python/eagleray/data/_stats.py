"""What an engine has done, in the job's log and in Ray's metrics."""

from __future__ import annotations

import sys
import threading
import time
import uuid
from typing import Any, Optional


class StatLogger:
    """Counts rows and tokens. Any thread may use it."""

    def __init__(self, model: str, interval: float, line: Any = None) -> None:
        """Tell it to a line on the terminal too, the handle of a ProgressLine."""
        from ray.util import metrics

        tags = {"model": model}
        self._rows = metrics.Counter(
            "eagleray_data_rows", "Rows that have ended.", tag_keys=("model", "outcome")
        )
        self._tokens = metrics.Counter(
            "eagleray_data_tokens", "Tokens of answered rows.", tag_keys=("model", "kind")
        )
        self._waiting = metrics.Gauge(
            "eagleray_data_pending_rows", "Rows that the engine has.", tag_keys=("model",)
        )
        for metric in (self._rows, self._tokens, self._waiting):
            metric.set_default_tags(tags)
        self._interval = interval
        self._shown_on, self._name = line, uuid.uuid4().hex
        self._lock = threading.Lock()
        self._pending = 0
        self._counts = {"answered": 0, "failed": 0, "kept": 0}
        self._prompt = self._generated = 0
        self._begun: Optional[float] = None
        self._idle = 0.0
        self._told = (time.monotonic(), 0, 0, 0)
        self._published = 0.0
        self._said: dict[tuple[Any, str, str], int] = {}

    def begin(self, count: int) -> None:
        """Count rows that have come."""
        with self._lock:
            if self._begun is None:
                self._begun = time.monotonic()
                self._told = (self._begun, 0, 0, 0)
            first = self._pending == 0
            self._pending += count
            if first:
                self._tell()

    def end(self, outcome: str, prompt: int = 0, generated: int = 0) -> None:
        """Count a row that has ended: answered, failed, or kept in a checkpoint."""
        with self._lock:
            self._pending -= 1
            self._counts[outcome] += 1
            self._prompt += prompt
            self._generated += generated
            now, line = time.monotonic(), ""
            idle = self._pending == 0 and now - self._idle >= 1
            if idle:
                self._idle = now
            if idle or now - self._told[0] >= self._interval:
                line = self._line(now)
            if self._pending == 0 or now - self._published >= 1:
                self._publish(now)
        if line:
            _show(line)

    def close(self) -> None:
        """Tell what has not been told."""
        with self._lock:
            rows = sum(self._counts.values())
            line = self._line(time.monotonic()) if rows > self._told[1] else ""
        if line:
            _show(line)

    def _publish(self, now: float) -> None:
        """Have Ray's metrics say what is so now: for each row it would cost as much as the row."""
        self._published = now
        counts = {
            **{(self._rows, "outcome", name): count for name, count in self._counts.items()},
            (self._tokens, "kind", "prompt"): self._prompt,
            (self._tokens, "kind", "generated"): self._generated,
        }
        for key, count in counts.items():
            metric, tag, value = key
            if count > self._said.get(key, 0):
                metric.inc(count - self._said.get(key, 0), {tag: value})
        self._said = counts
        self._waiting.set(self._pending)
        self._tell()

    def _tell(self) -> None:
        if self._shown_on is not None:
            rows, tokens = sum(self._counts.values()), self._prompt + self._generated
            self._shown_on.tell.remote(self._name, rows, tokens, self._pending)

    def _line(self, now: float) -> str:
        rows = sum(self._counts.values())
        then, rows_then, prompt_then, generated_then = self._told
        took = max(now - then, 1e-9)
        self._told = (now, rows, self._prompt, self._generated)
        return (
            f"eagleray data: {rows} rows, {(rows - rows_then) / took:.1f} rows/s, "
            f"{(self._prompt - prompt_then) / took:.0f} prompt tokens/s, "
            f"{(self._generated - generated_then) / took:.0f} generated tokens/s, "
            f"{self._pending} pending, {self._counts['failed']} failed, "
            f"{self._counts['kept']} of a checkpoint, "
            f"{now - (self._begun or now):.1f} s since the first"
        )


def _show(line: str) -> None:
    """Write to where Ray takes it to the driver's log."""
    print(line, file=sys.stderr, flush=True)
