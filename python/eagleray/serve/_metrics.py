"""What an engine's metrics say of its load."""

from __future__ import annotations

_LOAD = {
    "eagleray:num_requests_running": "running",
    "eagleray:num_requests_waiting": "waiting",
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
}


def read_load(text: str) -> dict[str, float]:
    """Return how many requests run and wait, out of Prometheus's text format."""
    load = {"running": 0.0, "waiting": 0.0}
    seen: dict[str, str] = {}
    for line in text.splitlines():
        name = line.partition("{")[0]
        figure = _LOAD.get(name)
        # Both prefixes may be there, and tell the same.
        if figure is not None and seen.setdefault(figure, name) == name:
            load[figure] += float(line.rpartition(" ")[2])
    return load
