"""What a worker is given when it starts: the checked configuration, and descriptors of what it shares.

It travels through the worker's standard input as a pickle, made and read by the same program: a configuration holds
secrets, which are for no command line and no environment.
"""

from __future__ import annotations

import io
import pickle
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, BinaryIO, cast

if TYPE_CHECKING:
    from pathlib import Path

    from pallas_gateway.config.loading.configuration import Configuration
    from pallas_gateway.config.loading.loader import Overrides


@dataclass(frozen=True, slots=True)
class Rereading:
    """How the configuration is read again: the file and what the command line said; `watch` for changed files."""

    config: Path | None
    overrides: Overrides
    watch: bool


@dataclass(frozen=True, slots=True)
class Start:
    """How one worker begins.

    Attributes:
        configuration: the last one that was good, whatever the file holds now.
        rereading: how it is read for a reload.
        worker: its number, from 1.
        listeners: descriptors of the bound sockets, in the order of `bind_public`.
        channel: descriptor of the socket for messages.
        log: descriptor of the pipe for log lines.
        metrics: the folder in which workers share their metrics.
        restarts: how many workers had ended before this one took a place, and are not counted yet.
    """

    configuration: Configuration
    rereading: Rereading
    worker: int
    listeners: tuple[int, ...]
    channel: int
    log: int
    metrics: Path
    restarts: int

    @property
    def descriptors(self) -> tuple[int, ...]:
        """Everything that the worker inherits."""
        return (*self.listeners, self.channel, self.log)


def written(start: Start) -> bytes:
    """What a worker reads."""
    stream = io.BytesIO()
    _Pickler(stream).dump(start)
    return stream.getvalue()


def read(stream: BinaryIO) -> Start:
    """What was written."""
    return cast("Start", pickle.load(stream))  # noqa: S301  by the parent, which is this program


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        """A mapping that cannot be changed, which pickle does not know, as what it is made of."""
        return (_unchangeable, (dict(value),)) if isinstance(value, MappingProxyType) else NotImplemented


def _unchangeable(items: dict[Any, Any]) -> MappingProxyType[Any, Any]:
    return MappingProxyType(items)
