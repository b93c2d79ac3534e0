"""The CPU seconds of this process and of all that come from it, by what they are."""

from __future__ import annotations

import collections
import os
import threading

_TICK = os.sysconf("SC_CLK_TCK")


class Meter:
    """Looks once a second, so that what ends in between counts nearly whole."""

    def __init__(self) -> None:
        self._last: dict[tuple[int, str], tuple[str, float]] = {}
        self._lock = threading.Lock()
        threading.Thread(target=self._run, daemon=True).start()

    def read(self) -> collections.Counter[str]:
        """Return the seconds until now."""
        with self._lock:
            self._look()
            seconds: collections.Counter[str] = collections.Counter()
            for kind, spent in self._last.values():
                seconds[kind] += spent
            return seconds

    def _run(self) -> None:
        pause = threading.Event()
        while not pause.wait(1):
            self.read()

    def _look(self) -> None:
        stats = {}
        for name in os.listdir("/proc"):
            try:
                if name.isdigit():
                    with open(f"/proc/{name}/stat") as file:
                        stats[int(name)] = file.read().rpartition(")")[2].split()
            except OSError:
                pass  # it has ended
        children = collections.defaultdict(list)
        for pid, stat in stats.items():
            children[int(stat[1])].append(pid)
        ours = [os.getpid()]
        for pid in ours:
            ours += children[pid]
            if pid in stats:
                spent = (int(stats[pid][11]) + int(stats[pid][12])) / _TICK
                key = pid, stats[pid][19]
                # One that has ended, and is not waited for yet, has no name.
                kind = _kind(pid) or self._last.get(key, ("other", 0.0))[0]
                self._last[key] = kind, spent


def _kind(pid: int) -> str:
    if pid == os.getpid():
        return "driver"
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            command = file.read().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""
    if not command:
        return ""
    if " serve " in command:
        return "engine"
    # A worker is named anew by what it does.
    return "workers" if command.startswith("ray::") or "default_worker" in command else "Ray"
