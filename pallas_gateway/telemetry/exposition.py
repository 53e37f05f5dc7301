"""The text of the metrics: written by prometheus_client in a thread, with pauses for the event loop."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, override

from prometheus_client.samples import Sample

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.metrics_core import Metric
    from prometheus_client.registry import Collector

SAMPLES_AT_ONCE = 50
"""Samples that the library writes in about 0.3 ms."""


class WithPauses:
    """A collector for a thread that lets the event loop run every few samples; Python alone would every 5 ms."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    def collect(self) -> Iterator[Metric]:
        """Return every family, with samples that pause."""
        for family in self._collector.collect():
            family.samples = _Pausing(family.samples)
            yield family


class _Pausing(list[Sample]):
    @override
    def __iter__(self) -> Iterator[Sample]:
        for index, sample in enumerate(super().__iter__()):
            if index % SAMPLES_AT_ONCE == 0:
                time.sleep(0)  # lets another thread run
            yield sample
