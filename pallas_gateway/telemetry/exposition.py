"""The text of this process's metrics. Lines of series that have not changed since the last scrape are kept.

100 agents have 7,000 series, which the library takes 60 to 90 ms to write. The lines of a series are its work here too,
but only when a value has changed.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Sample

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from prometheus_client.registry import Collector

    type Encode = Callable[[Collector], bytes]

MOST_FORMATS = 2
"""Scrapers of one gateway use one format, or two; clients may name any version of a format."""
SERIES_AT_ONCE = 250
"""Series between two pauses for the event loop; they take about 0.3 ms if none has changed."""
SAMPLES_AT_ONCE = 50
"""Samples that the library writes in about 0.3 ms."""
_WRITTEN = 10
"""A series that is written takes as long as this number of series that have not changed."""
_RELIED_ON = ("_samples", "_labelnames", "_name", "_documentation", "_type")


@dataclass
class _Format:
    """Written lines in one format: the heads of metrics, and each series with its values, by metric and labels."""

    heads: dict[str, bytes] = field(default_factory=dict)
    series: dict[str, dict[tuple[str, ...], tuple[Any, bytes]]] = field(default_factory=dict)


class Exposition:
    """Writes metrics on the event loop, with pauses.

    Args:
        metrics: prometheus_client's objects.
        others: collectors that the library writes as a whole.
    """

    def __init__(self, metrics: Iterable[Any], others: Sequence[Collector]) -> None:
        self._metrics = list(metrics)
        self._others = _Families(others)
        self._formats: OrderedDict[str, _Format] = OrderedDict()

    @property
    def fits(self) -> bool:
        """True if the installed library has the names that are relied on."""
        return all(hasattr(metric, name) for metric in self._metrics for name in _RELIED_ON)

    async def text(self, encode: Encode, content_type: str) -> bytes:
        """The metrics as `encode` writes those of a collector; `content_type` names the format."""
        kept = self._formats.setdefault(content_type, _Format())
        self._formats.move_to_end(content_type)
        if len(self._formats) > MOST_FORMATS:
            self._formats.popitem(last=False)
        parts: list[bytes] = []
        work = 0
        for metric in self._metrics:
            if metric._name not in kept.heads:
                kept.heads[metric._name] = _lines(encode, _family(metric), are_comments=True)
            parts.append(kept.heads[metric._name])
            written = kept.series.setdefault(metric._name, {})
            present = _series(metric)
            for labels in written.keys() - present.keys():
                del written[labels]
            for labels, series in present.items():
                values = _values(series)
                known = written.get(labels)
                if known is None or known[0] != values:
                    known = written[labels] = values, _lines(encode, _family(metric, labels, series))
                    work += _WRITTEN
                parts.append(known[1])
                work += 1
                if work >= SERIES_AT_ONCE:
                    work = 0
                    await asyncio.sleep(0)
        return b"".join((*parts, encode(self._others)))  # the last, because it writes the end as well


class WithPauses:
    """A collector for a thread: it lets the event loop go on every few samples, not once in 5 ms as Python does."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    def collect(self) -> Iterator[Metric]:
        """Every family, with samples that pause."""
        for family in self._collector.collect():
            family.samples = _Pausing(family.samples)
            yield family


class _Pausing(list[Sample]):
    def __iter__(self) -> Iterator[Sample]:
        for index, sample in enumerate(super().__iter__()):
            if index % SAMPLES_AT_ONCE == 0:
                time.sleep(0)  # lets another thread run
            yield sample


class _Families:
    """Several collectors, or finished families, as one."""

    def __init__(self, collectors: Sequence[Collector] = (), families: Sequence[Metric] = ()) -> None:
        self._collectors = collectors
        self._families = families

    def collect(self) -> Iterator[Metric]:
        for collector in self._collectors:
            yield from collector.collect()
        yield from self._families


def _series(metric: Any) -> dict[tuple[str, ...], Any]:
    return metric._metrics.copy() if metric._labelnames else {(): metric}


def _values(series: Any) -> Any:
    """The values that the lines of a series depend on; a histogram's samples take 25 µs to make."""
    buckets = getattr(series, "_buckets", None)
    if buckets is None:
        return [sample.value for sample in series._samples()]
    return [series._sum.get(), *(bucket.get() for bucket in buckets)]


def _family(metric: Any, labels: tuple[str, ...] = (), series: Any = None) -> Metric:
    """A metric with one of its series, or none."""
    family = Metric(metric._name, metric._documentation, metric._type)
    own = dict(zip(metric._labelnames, labels, strict=False))
    for sample in series._samples() if series is not None else ():
        family.add_sample(metric._name + sample.name, {**own, **sample.labels}, sample.value)
    return family


def _lines(encode: Encode, family: Metric, *, are_comments: bool = False) -> bytes:
    """The lines of a family: its samples or its head, without the end of the document."""
    lines = encode(_Families(families=[family])).splitlines(keepends=True)
    return b"".join(line for line in lines if line.startswith(b"#") is are_comments and line != b"# EOF\n")
