"""The start of workers: with the checked configuration, and the folder and descriptors of what they share.

A worker reads its `Start` from standard input as a pickle, written by the same program: a configuration holds secrets,
which must not be on a command line or in an environment.
"""

from __future__ import annotations

import fcntl
import io
import os
import pickle
import shutil
import tempfile
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, BinaryIO, cast, override

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pallas_gateway.config.loading.configuration import Configuration
    from pallas_gateway.config.loading.loader import Overrides
PREFIX = "pallas-workers-"
_LOCK = "lock"


@dataclass(frozen=True, slots=True)
class Rereading:
    """The sources of a reload: the file and the command line's values; `watch` reloads on changes."""

    config: Path | None
    overrides: Overrides
    watch: bool


@dataclass(frozen=True, slots=True)
class Start:
    """The start data of one worker.

    Attributes:
        configuration: the last valid one.
        rereading: how it is read for a reload.
        worker: its number, from 1, of so many `workers`.
        listeners: descriptors of the bound sockets, in the order of `bind_public`.
        channel: descriptor of the socket for messages.
        log: descriptor of the pipe for log lines.
        folder: in which workers share their metrics, and each has the socket for requests of the others.
        state_key: seals the states of open questions where `gateway.state_keys` has none; the same for all workers.
        restarts: ended workers that no worker has counted yet.
        process: the worker's name in what clients return to it.
        lock: descriptor that says, while any process has it, that the folder is in use.
        started_at: the start of the gateway.
    """

    configuration: Configuration
    rereading: Rereading
    worker: int
    listeners: tuple[int, ...]
    channel: int
    log: int
    folder: Path
    restarts: int
    state_key: bytes | None = field(default=None, repr=False)
    process: str = ""
    workers: int = 1
    lock: int = -1
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))

    @property
    def descriptors(self) -> tuple[int, ...]:
        """All descriptors that the worker inherits."""
        lock = (self.lock,) if self.lock >= 0 else ()
        return (*self.listeners, self.channel, self.log, *lock)


@dataclass(frozen=True, slots=True)
class Plan:
    """The start data of all workers.

    Attributes:
        count: how many workers.
        command: the program that each runs.
        environ: returns their environment whenever one starts.
        start: for each, except its number and its own descriptors.
        sockets: the bound sockets that `start` names.
    """

    count: int
    command: Sequence[str]
    environ: Callable[[], Mapping[str, str]]
    start: Start
    sockets: Sequence[socket.socket]


def written(start: Start) -> bytes:
    stream = io.BytesIO()
    _Pickler(stream).dump(start)
    return stream.getvalue()


def read(stream: BinaryIO) -> Start:
    return cast("Start", pickle.load(stream))  # noqa: S301  written by the parent, which is this program


class _Pickler(pickle.Pickler):
    @override
    def reducer_override(self, value: Any) -> Any:
        """Serialize read-only mappings, which pickle does not support."""
        return (_read_only, (dict(value),)) if isinstance(value, MappingProxyType) else NotImplemented


def _read_only(items: dict[Any, Any]) -> MappingProxyType[Any, Any]:
    return MappingProxyType(items)


@contextmanager
def shared_folder(place: str) -> Iterator[tuple[Path, int]]:
    """Make a folder in `place`; yield it with a descriptor, which workers inherit: it is in use while one has that."""
    _remove_unused(Path(place))
    with tempfile.TemporaryDirectory(prefix=PREFIX, dir=place) as name:
        folder = Path(name)
        descriptor = os.open(folder / "unlocked", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            (folder / "unlocked").rename(folder / _LOCK)  # only now others look at it
            yield folder, descriptor
        finally:
            os.close(descriptor)


def _remove_unused(place: Path) -> None:
    """Remove folders of this user whose lock no process has; those of earlier releases have none, and stay."""
    for folder in place.glob(f"{PREFIX}*"):
        with suppress(OSError):  # in use, of another user, or just removed
            if folder.lstat().st_uid != os.geteuid():
                continue
            descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(descriptor)
