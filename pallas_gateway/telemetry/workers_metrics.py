"""The metrics of several workers as those of one gateway, in each of them.

Each worker keeps its values in mapped files of a shared folder (prometheus_client's multiprocess mode), so a scrape
needs no other worker, and a crash loses no counts. The files are named by the worker's number, not its process id, so
its replacement continues its counters. Names, types and texts come from this process's own metrics, so metrics that
agent modules create with the same library are left out.
"""

from __future__ import annotations

import math
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client import GC_COLLECTOR, PLATFORM_COLLECTOR, PROCESS_COLLECTOR, Counter, Gauge, values
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric

_FOLDER_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"  # read by prometheus_client when it opens a file
_ACROSS = {"process_start_time_seconds": "livemin", "process_max_fds": "livemin"}

_joined: Path | None = None


def join(folder: Path, worker: int) -> None:
    """Share the metrics that this process creates from now on, as those of the worker with this number."""
    global _joined  # noqa: PLW0603  one for the process, as in prometheus_client
    os.environ[_FOLDER_VARIABLE] = str(folder)
    values.ValueClass = values.MultiProcessValue(lambda: worker)  # type: ignore[no-untyped-call]  # as documented
    _joined = folder


def joined() -> Path | None:
    """The folder of shared metrics, None if this process does not share its metrics."""
    return _joined


def forget_gauges(folder: Path, worker: int) -> None:
    """Remove the gauges of a worker that has ended; its counters stay."""
    mark_process_dead(worker, str(folder))  # type: ignore[no-untyped-call]


def mark_gone(gauge: Gauge, labels: Mapping[str, str], value: float) -> None:
    """Set series that have ended to `value`; NaN is not shown."""
    for family in gauge.collect():
        for sample in family.samples:
            if labels.items() <= sample.labels.items():
                gauge.labels(**sample.labels).set(value)


class WorkersMetrics:
    """The metrics of all workers, as a collector.

    Args:
        own: the metrics of this process; process metrics are added to it.
        folder: the folder of shared metrics.
    """

    def __init__(self, own: CollectorRegistry, folder: Path) -> None:
        self._own = own
        self._folder = folder
        self.computed: Gauge | None = None
        """Its values are functions; they are shared at each refresh."""
        self.hidden: set[str] = set()
        """Agents whose series are not shown, because shared series cannot be removed."""
        self._process = _ProcessMirror(own)
        own.register(PLATFORM_COLLECTOR)

    def refresh(self) -> None:
        self._process.refresh()
        if self.computed is not None:
            for sample in [one for family in self.computed.collect() for one in family.samples]:
                self.computed.labels(**sample.labels).set(sample.value)

    def collect(self) -> Iterator[Metric]:
        """Every metric, combined over all workers; those of this process as of the last refresh."""
        shared = MultiProcessCollector.merge([*_written(self._folder)])  # type: ignore[no-untyped-call]
        by_name = {family.name: family.samples for family in shared}
        for family in self._own.collect():
            samples = by_name.get(family.name, family.samples)
            seen = (sample for sample in samples if sample.labels.get("agent") not in self.hidden)
            family.samples = [sample for sample in seen if not math.isnan(sample.value)]
            yield family


class _ProcessMirror:
    """Memory, CPU, files and garbage collection of this process; the library's own metrics of these are not shared."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._counted: dict[tuple[str, str], float] = {}
        self._mirrors: dict[str, Counter | Gauge] = {}
        for family in _of_the_process():
            labels = tuple(family.samples[0].labels)
            if family.type == "counter":
                self._mirrors[family.name] = Counter(family.name, family.documentation, labels, registry=registry)
            else:
                across = _ACROSS.get(family.name, "livesum")
                mirror = Gauge(family.name, family.documentation, labels, registry=registry, multiprocess_mode=across)  # type: ignore[arg-type]  # a literal's value
                self._mirrors[family.name] = mirror

    def refresh(self) -> None:
        for family in _of_the_process():
            for sample in family.samples:
                mirror = self._mirrors[family.name]
                one = mirror.labels(**sample.labels) if sample.labels else mirror
                if isinstance(one, Gauge):
                    one.set(sample.value)
                else:
                    key = (sample.name, str(sample.labels))
                    one.inc(max(0.0, sample.value - self._counted.get(key, 0.0)))
                    self._counted[key] = sample.value


def _written(folder: Path) -> Iterator[str]:
    """Yield the files with values: one that a worker has just created is still empty, which the library cannot read."""
    for file in folder.glob("*.db"):
        with suppress(FileNotFoundError):  # its worker, or the parent with the folder, has ended
            if file.stat().st_size:
                yield str(file)


def _of_the_process() -> Iterator[Metric]:
    yield from PROCESS_COLLECTOR.collect()
    yield from GC_COLLECTOR.collect()
