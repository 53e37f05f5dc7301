"""The audit log of a gateway: one process writes a line for each decision, in a chain of hashes.

Only the event loop's thread writes. Lines are forced to disk in a thread, several by one sync.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Literal, Self

from pallas_gateway import __version__, daemon_threads
from pallas_gateway.audit.chain import BEGIN, next_line
from pallas_gateway.audit.hashed_names import HashedNames
from pallas_gateway.audit.sinks import FileInUseError, sink_for
from pallas_gateway.audit.tail import NoAuditLogError
from pallas_gateway.errors import CallRefusedError, GatewayError
from pallas_gateway.telemetry.audit_state import HEAD_DIGITS, AuditState

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from pallas_gateway.audit.chain import Entry
    from pallas_gateway.audit.sinks import Sink
    from pallas_gateway.config.model.deployment import GatewaySettings

SYNC_SECONDS = 1.0
"""Time between syncs, with `audit_sync: second`."""
LONGEST_SYNC_SECONDS = 5.0
"""Seconds that a call waits for the disk at most, with `audit_sync: line`."""
HEAD_SECONDS = 60.0
HEAD_LINES = 1000
"""The head is in the ordinary log after so many seconds or lines."""
type _Work = Literal["write", "sync"]
UNAVAILABLE = "The gateway cannot write its audit log, which each call requires. Try again later."
_log = logging.getLogger("pallas.audit")


class AuditLogError(GatewayError):
    """The gateway cannot start with this audit log; the message has the reason."""

    reason = "audit_log_unusable"


class AuditUnavailableError(CallRefusedError):
    """A line was not written to the audit log."""

    reason = "audit_unavailable"


class AuditLog:
    """The audit log of one gateway, which may be off.

    Args:
        folder: of `agents.yaml`; the path of a file is relative to it.
        stdout: descriptor for the lines of `audit_log: "-"`.
    """

    def __init__(self, folder: Path, stdout: int = 1, clock: Callable[[], float] = monotonic) -> None:
        self._folder = folder
        self._stdout = stdout
        self._clock = clock
        self._settings: GatewaySettings | None = None
        self._sink: Sink | None = None
        self._names: HashedNames | None = None
        self.head = BEGIN
        """The last written line."""
        self._has_begun = False
        self._failing: set[_Work] = set()
        self._lost: _Lost | None = None
        self._written = self._synced = 0
        self._sync: asyncio.Future[None] | None = None
        self._waiting: list[tuple[int, asyncio.Future[BaseException | None]]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._shown, self._show_at = BEGIN, 0.0

    @classmethod
    def open(cls, settings: GatewaySettings, folder: Path, stdout: int = 1) -> Self:
        """Open the audit log of `settings`, and continue its chain. A file that cannot be written stops no start.

        Raises:
            AuditLogError: another gateway writes the file, or it has other content.
        """
        log = cls(folder, stdout)
        error = log._begin(settings)
        if isinstance(error, (FileInUseError, NoAuditLogError)):
            raise AuditLogError(f"gateway.audit_log: {folder / (settings.audit_log or '')}: {error.strerror}")
        log.note(_of_process("start"))
        return log

    def use(self, settings: GatewaySettings) -> None:
        """Use these settings from the next line on."""
        before = self._settings
        if before is not None and _facts(before) == _facts(settings):
            return
        if before is not None and before.audit_log == settings.audit_log:
            self._apply(settings)
            return
        self.close()
        self._begin(settings)
        self.note(_of_process("start"))

    @property
    def is_on(self) -> bool:
        return self._sink is not None

    @property
    def state(self) -> AuditState | None:
        """The state for the metrics; None while the log is off."""
        if self._sink is None:
            return None
        return AuditState(self._sink.kind, self.head.sequence, int(self.head.hash[:HEAD_DIGITS], 16), not self._failing)

    async def admit(self, entry: Entry) -> None:
        """Write the first line of a call, and wait for the disk if each line is forced to it.

        Raises:
            AuditUnavailableError: the line was not written, and `audit_required` is set.
        """
        settings, sink = self._settings, self._sink
        if settings is None or sink is None:
            return
        try:
            self.write(entry)
            if settings.audit_sync == "line":
                await self._until_synced(sink)
        except AuditUnavailableError:
            if settings.audit_required:
                raise

    def note(self, entry: Entry) -> None:
        """Write a line that nothing waits for; a line that cannot be written is counted and reported."""
        try:
            self.write(entry)
        except AuditUnavailableError:
            return  # reported already

    def write(self, entry: Entry) -> None:
        """Write a line.

        Args:
            entry: fields of `chain.FIELDS`; names (`HASHED_FIELDS`) are hashed with `audit_names: hashed`.

        Raises:
            AuditUnavailableError: it was not written. Lost lines are counted in a line once writing works again.
        """
        if (sink := self._sink) is None:
            return
        if self._names is not None:
            entry = self._names.hashed(entry)
        lost = self._lost
        try:
            if lost is not None:
                self._append(sink, lost.entry)
                self._lost = None
            self._append(sink, entry)
        except OSError as error:
            self._lost = (self._lost or _Lost(_now(), error)).one_more()
            self._note_failure("write", sink, error)
            raise AuditUnavailableError(UNAVAILABLE) from error
        self._note_success("write", sink, lost.lines if lost is not None else 0)
        if self.head.sequence - self._shown.sequence >= HEAD_LINES or self._clock() >= self._show_at:
            self._show_head(sink)

    def close(self) -> None:
        """Write the last line, force all to disk, and close the output."""
        if (sink := self._sink) is None:
            return
        self._settings = None  # the last line is synced below, not in a thread
        self.note(_of_process("stop"))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        failed: OSError | None = None
        try:
            _sync_all(sink.unsynced())
        except OSError as error:
            self._note_failure("sync", sink, failed := error)
        self._answer_waiting(self._written, failed)
        sink.close()
        if self._lost is not None:
            _log.error("audit lines lost", extra={"output": sink.name, "lost_lines": self._lost.lines})
        self._show_head(sink)
        self._sink = self._lost = None

    def _begin(self, settings: GatewaySettings) -> OSError | None:
        """Open the output of `settings`; return why it cannot be written."""
        self._apply(settings)
        self._failing, self._has_begun = set(), False
        if settings.audit_log is None:
            return None
        self._sink = sink = sink_for(settings.audit_log, self._folder, self._stdout)
        try:
            self._open(sink)
        except OSError as error:
            self._note_failure("write", sink, error)
            return error
        self._show_head(sink)
        return None

    def _apply(self, settings: GatewaySettings) -> None:
        self._settings = settings
        is_hashed = settings.audit_names == "hashed" and settings.state_keys
        self._names = HashedNames(settings.state_keys[0]) if is_hashed else None

    def _open(self, sink: Sink) -> None:
        sink.open()
        self._has_begun, self.head = True, sink.head

    def _append(self, sink: Sink, entry: Entry) -> None:
        if not self._has_begun:
            self._open(sink)
        time = _now()
        line, head = next_line(self.head, time, entry)
        sink.write(line, time)
        self.head = head
        self._written += 1
        self._sync_later()

    def _sync_later(self) -> None:
        """Begin a sync now or in a second, unless one is under way: the lines written until then share it."""
        mode = self._settings.audit_sync if self._settings is not None else "never"
        if mode == "never" and self._sink is not None:
            self._sink.close_rotated()
        if mode == "never" or self._sync is not None or self._timer is not None or self._synced == self._written:
            return
        if mode == "line":
            self._begin_sync()
        else:
            self._timer = asyncio.get_running_loop().call_later(SYNC_SECONDS, self._begin_sync)

    def _begin_sync(self) -> None:
        self._timer = None
        if (sink := self._sink) is None:
            return
        written = self._written
        try:
            descriptors = sink.unsynced()
        except OSError as error:  # no descriptor is left; calls that require a sync wait for the next try
            self._note_failure("sync", sink, error)
            self._timer = asyncio.get_running_loop().call_later(SYNC_SECONDS, self._begin_sync)
            return
        if not descriptors:  # an output without a sync
            self._synced = written
            self._answer_waiting(written, None)
            return
        self._sync = daemon_threads.begin(partial(_sync_all, descriptors), name="audit sync")
        self._sync.add_done_callback(partial(self._note_sync, sink, written))

    def _note_sync(self, sink: Sink, written: int, sync: asyncio.Future[None]) -> None:
        self._sync = None
        if sync.cancelled():  # the event loop ends
            return
        if (error := sync.exception()) is not None:
            self._note_failure("sync", sink, error)
        else:
            self._note_success("sync", sink)
        self._synced = written  # also after an error: the system does not try the same pages again
        self._answer_waiting(written, error)
        self._sync_later()

    def _answer_waiting(self, written: int, error: BaseException | None) -> None:
        """Let the calls go on whose lines are among the first `written`."""
        answered = [waiter for line, waiter in self._waiting if line <= written]
        self._waiting = [(line, waiter) for line, waiter in self._waiting if line > written]
        for waiter in answered:
            if not waiter.done():
                waiter.set_result(error)

    async def _until_synced(self, sink: Sink) -> None:
        """Wait until the disk has the last line, at most `LONGEST_SYNC_SECONDS`."""
        if self._synced == self._written:
            return
        waiter: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
        self._waiting.append((self._written, waiter))
        try:
            async with asyncio.timeout(LONGEST_SYNC_SECONDS):
                error = await waiter
        except TimeoutError as late:
            error = late
        finally:  # a disk may hang for hours
            self._waiting = [one for one in self._waiting if one[1] is not waiter]
        if error is not None:
            self._note_failure("sync", sink, error)
            raise AuditUnavailableError(UNAVAILABLE) from error

    def _note_failure(self, work: _Work, sink: Sink, error: BaseException) -> None:
        """Log that lines cannot be written or forced to disk, once until they can."""
        if work not in self._failing:
            self._failing.add(work)
            why = getattr(error, "strerror", None) or str(error) or type(error).__name__
            _log.error("audit log cannot be written", extra={"output": sink.name, "step": work, "error": why})

    def _note_success(self, work: _Work, sink: Sink, lost_lines: int = 0) -> None:
        if work in self._failing:
            self._failing.remove(work)
            extra = {"output": sink.name, "lost_lines": lost_lines}
            _log.warning("audit log written again", extra=extra)

    def _show_head(self, sink: Sink) -> None:
        """Put the head into the ordinary log, which others may keep."""
        self._shown, self._show_at = self.head, self._clock() + HEAD_SECONDS
        _log.info("audit log head", extra={"output": sink.name, "head": str(self.head)})


@dataclass(frozen=True, slots=True)
class _Lost:
    """Lines that were not written, since the first of them."""

    since: str
    why: OSError
    lines: int = 0

    def one_more(self) -> _Lost:
        return replace(self, lines=self.lines + 1)

    @property
    def entry(self) -> Entry:
        reason = errno.errorcode.get(self.why.errno or 0, type(self.why).__name__)
        return {"action": "lost", "outcome": "error", "reason": reason, "lines": self.lines, "since": self.since}


def _of_process(action: str) -> Entry:
    return {"action": action, "outcome": "ok", "version": __version__}


def _now() -> str:
    return f"{datetime.now(UTC).isoformat(timespec='milliseconds')[:-6]}Z"


def _sync_all(descriptors: Sequence[int]) -> None:
    with ExitStack() as stack:
        for descriptor in descriptors:
            stack.callback(os.close, descriptor)
        for descriptor in descriptors:
            os.fsync(descriptor)


def _facts(settings: GatewaySettings) -> tuple[object, ...]:
    own = (settings.audit_log, settings.audit_names, settings.audit_sync, settings.audit_required)
    return (*own, settings.state_keys[:1])
