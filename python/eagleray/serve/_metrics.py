"""What an engine's metrics say of its load."""

from __future__ import annotations

from collections.abc import Iterable

_LOAD = {
    "eagleray:num_requests_running": "running",
    "eagleray:num_requests_waiting": "waiting",
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
}


def merge(texts: Iterable[tuple[str, str]]) -> str:
    """Return the metrics of several replicas as one text, with the label ``replica``.

    ``texts`` are the names of replicas with their metrics in Prometheus's text format, which has
    the lines of a family together.
    """
    families: dict[str, tuple[dict[str, str], list[str]]] = {}
    for replica, text in texts:
        label = f'{{replica="{replica}"'
        found: tuple[dict[str, str], list[str]] = ({}, [])
        for line in text.splitlines():
            if line.startswith("# "):
                kind, name = line.split(" ", 3)[1:3]
                found = families.setdefault(name, ({}, []))
                found[0].setdefault(kind, line)
            elif line:
                name, brace, rest = line.partition("{")
                if brace:
                    found[1].append(f"{name}{label},{rest}")
                else:
                    name, _, rest = line.partition(" ")
                    found[1].append(f"{name}{label}}} {rest}")
    parts = [line for heads, samples in families.values() for line in (*heads.values(), *samples)]
    return "".join(line + "\n" for line in parts)


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
