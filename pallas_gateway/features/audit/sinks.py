"""Outputs of the audit log: a file, stdout, syslog. None of them waits for a reader."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import select
import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from threading import Thread
from time import monotonic
from typing import Any, Protocol

from pallas_gateway import daemon_threads
from pallas_gateway.features.audit.chain import BEGIN, Head, UnusableFileError, head_before, open_file, tail_of

SYNC_SECONDS = 1.0
"""Time after a line until it is forced to disk, with `audit_sync: second`."""
STDOUT = "-"
SYSLOG = "syslog:"
_SYSLOG_SOCKET = "/dev/log"
_SYSLOG_PRIORITY = 13 * 8 + 6
"""RFC 5424: facility "log audit", severity "informational"."""
FIRST_LOOKUP_SECONDS = 1.0
"""The first line waits so long for the name of a syslog server to be found, further lines do not wait."""
LOOKUP_AGAIN_SECONDS = 30.0


class Sink(Protocol):
    """An output of lines.

    Attributes:
        kind: `file`, `stdout` or `syslog`.
        name: as in the ordinary log.
        head: the last line of the chain in the output; `BEGIN` for one that cannot be read again.
    """

    kind: str
    name: str
    head: Head

    def open(self) -> None:
        """Open the output if it is not open; a file also if it was renamed.

        Raises:
            OSError: it cannot be opened.
        """

    def write(self, line: bytes, time: str) -> None:
        """Write a line and its newline, after `open`.

        Raises:
            OSError: it was not written, or only in part.
        """

    def close(self) -> None:
        """Force all lines to disk, and close the output.

        Raises:
            OSError: the disk fails.
        """


def sink_for(output: str, folder: Path, stdout: int, report_sync: Callable[[OSError | None], None]) -> Sink:
    """Return the sink for a value of `gateway.audit_log`; `report_sync` gets the error of each sync, or None."""
    if output == STDOUT:
        return StdoutSink(stdout)
    if output.startswith(SYSLOG):
        return SyslogSink(output.removeprefix(SYSLOG) or _SYSLOG_SOCKET)
    return FileSink(folder / output, report_sync)


class _Lines:
    """Writes whole lines; one of which only a part could be written is closed by a newline before the next one."""

    is_torn = False

    def write(self, descriptor: int, line: bytes) -> None:
        rest = memoryview(b"%b%b\n" % (b"\n" if self.is_torn else b"", line))
        try:
            while rest:
                rest = rest[os.write(descriptor, rest) :]
                self.is_torn = len(rest) > 0
        except OSError:
            if bytes(rest) != b"\n":  # else the line is complete
                raise


class FileSink:
    """A file, for this gateway alone; opened again when it was renamed or removed.

    It is forced to disk in a thread; lines that are written until a sync begins share it.
    """

    kind = "file"

    def __init__(self, path: Path, report_sync: Callable[[OSError | None], None]) -> None:
        self.name = str(path)
        self.head = BEGIN
        self._path = path
        self._report_sync = report_sync
        self._descriptor: int | None = None
        self._id: tuple[int, int] | None = None
        self._lines = _Lines()
        self._rotated: list[int] = []
        """Files that were renamed since the last sync."""
        self._timer: asyncio.TimerHandle | None = None
        self._next_sync: asyncio.Task[bool] | None = None
        self._one_sync = asyncio.Lock()

    def open(self) -> None:
        if self._descriptor is not None:
            try:
                status = os.lstat(self._path)
            except FileNotFoundError:
                status = None
            if status is not None and (status.st_dev, status.st_ino) == self._id:
                return
        descriptor = open_file(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
        try:
            self._begin(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        if self._descriptor is not None:
            is_synced = self._timer is None and self._next_sync is None
            os.close(self._descriptor) if is_synced else self._rotated.append(self._descriptor)
        self._descriptor = descriptor

    def write(self, line: bytes, time: str) -> None:
        del time
        if self._descriptor is not None:
            self._lines.write(self._descriptor, line)

    def sync(self) -> asyncio.Task[bool]:
        """Force all lines to disk; return the work, which is False if it fails."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._next_sync is None:
            self._next_sync = asyncio.get_running_loop().create_task(self._sync())
        return self._next_sync

    def sync_later(self) -> None:
        """Force all lines to disk within `SYNC_SECONDS`."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(SYNC_SECONDS, self.sync)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        own = [self._descriptor] if self._descriptor is not None else []
        descriptors, self._descriptor, self._rotated = [*self._rotated, *own], None, []
        _sync_and_close(descriptors)

    def _begin(self, descriptor: int) -> None:
        """Lock a file, and find the head of its chain at the first time."""
        status = os.fstat(descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UnusableFileError(error.errno, "another gateway writes the file") from error
        tail = tail_of(descriptor)
        if self._id is None:
            self.head = tail.head or head_before(self._path)
        self._lines.is_torn, self._id = tail.is_torn, (status.st_dev, status.st_ino)

    async def _sync(self) -> bool:
        async with self._one_sync:
            self._next_sync = None  # lines that are written from now on need another one
            try:
                own = [os.dup(self._descriptor)] if self._descriptor is not None else []
                descriptors, self._rotated = [*self._rotated, *own], []
                await daemon_threads.begin(partial(_sync_and_close, descriptors), name="audit sync")
            except OSError as error:
                self._report_sync(error)
                return False
        self._report_sync(None)
        return True


def _sync_and_close(descriptors: Sequence[int]) -> None:
    with ExitStack() as stack:
        for descriptor in descriptors:
            stack.callback(os.close, descriptor)
        for descriptor in descriptors:
            os.fsync(descriptor)


class StdoutSink:
    """Stdout, which may be a pipe: a line that its reader leaves no room for is not written."""

    kind = name = "stdout"
    head = BEGIN

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lines = _Lines()
        self._room = select.poll()
        self._room.register(descriptor, select.POLLOUT)

    def open(self) -> None:
        """Stdout is open."""

    def write(self, line: bytes, time: str) -> None:
        del time
        if not self._room.poll(0):
            raise OSError(errno.EAGAIN, "stdout is not read")
        self._lines.write(self._descriptor, line)

    def close(self) -> None:
        """Stdout stays open."""


class SyslogSink:
    """A syslog server as of RFC 5424, at a Unix socket or by UDP. `SysLogHandler` would wait for a full socket."""

    kind = "syslog"
    head = BEGIN

    def __init__(self, address: str) -> None:
        self.name = f"{SYSLOG}{address}"
        self._lookup = _Lookup(address)
        self._socket: socket.socket | None = None
        self._send: Callable[[bytes], object] = lambda _: None
        host = socket.gethostname().encode("ascii", "replace").decode() or "-"
        self._header = f"<{_SYSLOG_PRIORITY}>1 {{}} {host} pallas-gateway {os.getpid()} audit - "

    def open(self) -> None:
        if self._socket is not None:
            return
        family, address = self._lookup.address()
        opened = socket.socket(family, socket.SOCK_DGRAM)
        opened.setblocking(False)
        if family != socket.AF_UNIX:  # not connected: an error would be that of the message before
            self._send = lambda data: opened.sendto(data, address)
        else:
            try:
                opened.connect(address)
            except OSError:
                opened.close()
                raise
            self._send = opened.send
        self._socket = opened

    def write(self, line: bytes, time: str) -> None:
        message = self._header.format(time).encode() + line
        self.open()
        try:
            self._send(message)
        except BlockingIOError:
            raise
        except OSError:  # the server was started again
            self.close()
            self.open()
            self._send(message)

    def close(self) -> None:
        if self._socket is not None:
            with suppress(OSError):
                self._socket.close()
            self._socket = None


class _Lookup:
    """The address of a syslog server, looked up in a thread: a name server that does not answer must hold no call.

    A name that was found is not looked up again.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._found: tuple[int, Any] | None = (socket.AF_UNIX, address) if "/" in address else None
        self._error: OSError | None = None
        self._thread: Thread | None = None
        self._again_at = 0.0

    def address(self) -> tuple[int, Any]:
        """Return the family and the address.

        Raises:
            OSError: the name is not known, or not yet.
        """
        if self._found is None and (self._thread is None or not self._thread.is_alive()):
            self._begin(seconds=FIRST_LOOKUP_SECONDS if self._thread is None else 0.0)
        if self._found is None:
            error = self._error
            raise (
                type(error)(*error.args) if error is not None else OSError(errno.EAGAIN, "the name is being looked up")
            )
        return self._found

    def _begin(self, *, seconds: float) -> None:
        if monotonic() < self._again_at:
            return
        self._again_at = monotonic() + LOOKUP_AGAIN_SECONDS
        self._thread = Thread(target=self._look_up, name="audit syslog name", daemon=True)
        self._thread.start()
        self._thread.join(seconds)

    def _look_up(self) -> None:
        host, _, port = self._address.rpartition(":")
        try:
            family, *_, found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_DGRAM)[0]
        except UnicodeError:  # a part of the name is too long
            self._error = OSError(errno.EADDRNOTAVAIL, "the name of the server is invalid")
        except OSError as error:
            self._error = error.with_traceback(None)
        else:
            self._found = family, found
