"""What the engine counts, as objects with the names of ``vllm.v1.metrics.reader``."""

from __future__ import annotations

import dataclasses
import re
from typing import Union

_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(.)")


@dataclasses.dataclass
class Metric:
    """A metric of one set of labels; its name begins with ``vllm:`` and has no ``_total``."""

    name: str
    labels: dict[str, str]


@dataclasses.dataclass
class Counter(Metric):
    """What only grows."""

    value: Union[int, float] = 0


@dataclasses.dataclass
class Gauge(Metric):
    """What grows and shrinks."""

    value: float = 0.0


@dataclasses.dataclass
class Histogram(Metric):
    """How values are spread."""

    count: int = 0
    sum: float = 0.0
    buckets: dict[str, int] = dataclasses.field(default_factory=dict)
    """How many values are at most a bound, which is a text: ``"+Inf"`` is the last."""


def read_metrics(text: str) -> list[Metric]:
    """Return the engine's metrics of Prometheus's text format, under vLLM's names."""
    kinds: dict[str, str] = {}
    found: dict[tuple[str, tuple[tuple[str, str], ...]], Metric] = {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ", 3)
            kinds[name] = kind
            continue
        sample = None if line.startswith("#") else _SAMPLE.match(line)
        if sample is None:
            continue
        name, given, value = sample.group(1), sample.group(2), float(sample.group(3))
        labels = {k: _ESCAPE.sub(_unescaped, v) for k, v in _LABEL.findall(given or "")}
        family, part = _family(name, kinds)
        bound = labels.pop("le", "") if part == "bucket" else ""
        kind = kinds.get(family, "")
        # Both prefixes may be there, and tell the same. Others are the runtime's.
        prefix, _, family = family.rpartition(":")
        if prefix not in ("eagleray", "vllm"):
            continue
        family = "vllm:" + family
        key = family, tuple(sorted(labels.items()))
        if kind == "histogram":
            metric = found.setdefault(key, Histogram(family, labels))
            assert isinstance(metric, Histogram)
            if part == "bucket":
                metric.buckets[bound] = int(value)
            elif part == "sum":
                metric.sum = value
            else:
                metric.count = int(value)
        elif kind == "counter":
            number = int(value) if value.is_integer() else value
            found[key] = Counter(family.removesuffix("_total"), labels, number)
        elif kind == "gauge":
            found[key] = Gauge(family, labels, value)
    return list(found.values())


def _family(name: str, kinds: dict[str, str]) -> tuple[str, str]:
    """Return the family of a sample, and which part of a histogram it is."""
    for part in ("bucket", "sum", "count"):
        family = name.removesuffix("_" + part)
        if family != name and kinds.get(family) == "histogram":
            return family, part
    return name, ""


def _unescaped(match: re.Match[str]) -> str:
    return "\n" if match.group(1) == "n" else match.group(1)
