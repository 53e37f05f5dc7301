"""The audit log of a gateway: one process writes a line for each decision, in a chain of hashes.

Only the event loop's thread writes.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from time import monotonic
from typing import TYPE_CHECKING, Literal, NamedTuple, Self

from pallas_gateway import __version__
from pallas_gateway.calls.trail import hashed_name
from pallas_gateway.errors import CallRefusedError, GatewayError
from pallas_gateway.features.audit.chain import BEGIN, UnusableFileError, next_line
from pallas_gateway.features.audit.sinks import FileSink, sink_for
from pallas_gateway.identity.caller import ANONYMOUS_NAME

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pallas_gateway.config.model.deployment import GatewaySettings
    from pallas_gateway.features.audit.chain import Entry, Head
    from pallas_gateway.features.audit.sinks import Sink

LONGEST_SYNC_SECONDS = 5.0
"""Seconds that a call waits for the disk at most, with `audit_sync: line`."""
HEAD_SECONDS = 60.0
HEAD_LINES = 1000
"""The head is in the ordinary log after so many seconds or lines."""
HASHED_FIELDS = ("caller", "address", "owner", "new_owner")
HEAD_DIGITS = 13
"""Of a hash: a sample of a metric holds 53 bits."""
type _Work = Literal["write", "sync"]
_log = logging.getLogger("pallas.audit")


class AuditState(NamedTuple):
    """The state of an audit log that is on.

    Attributes:
        output: `file`, `stdout` or `syslog`.
        sequence: the number of the last line.
        head: the first `HEAD_DIGITS` digits of its SHA-256, as a number.
        is_up: lines can be written.
    """

    output: str
    sequence: int
    head: int
    is_up: bool


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
        self._name_key: str | None = None
        self._failing: set[_Work] = set()
        self._shown, self._show_at = BEGIN, 0.0

    @classmethod
    def open(cls, settings: GatewaySettings, folder: Path, stdout: int = 1) -> Self:
        """Open the audit log of `settings`, and continue its chain. A file that cannot be written stops no start.

        Raises:
            AuditLogError: another gateway writes the file, or it has other content.
        """
        log = cls(folder, stdout)
        error = log._begin(settings)
        if isinstance(error, UnusableFileError):
            raise AuditLogError(f"gateway.audit_log: {folder / (settings.audit_log or '')}: {error.strerror}")
        return log

    def use(self, settings: GatewaySettings) -> None:
        """Use these settings from the next line on."""
        if self._settings is not None and self._settings.audit_log == settings.audit_log:
            self._apply(settings)
        else:
            self.close()
            self._begin(settings)

    @property
    def is_on(self) -> bool:
        return self._sink is not None

    @property
    def head(self) -> Head:
        """The last written line."""
        return self._sink.head if self._sink is not None else BEGIN

    @property
    def state(self) -> AuditState | None:
        """The state for the metrics; None while the log is off."""
        if self._sink is None:
            return None
        return AuditState(self._sink.kind, self.head.sequence, int(self.head.hash[:HEAD_DIGITS], 16), not self._failing)

    async def admit(self, entry: Entry) -> None:
        """Write the first line of a call, and wait for the disk with `audit_sync: line`.

        Raises:
            AuditUnavailableError: the line was not written, and `audit_required` is set.
        """
        settings, sink = self._settings, self._sink
        if settings is None or sink is None:
            return
        is_written = self.record(entry)
        if is_written and settings.audit_sync == "line" and isinstance(sink, FileSink):
            sync = sink.sync()
            await asyncio.wait({sync}, timeout=LONGEST_SYNC_SECONDS)  # a disk may hang for hours
            if not sync.done():
                self._report("sync", sink, TimeoutError("the disk does not answer"))
            is_written = sync.done() and sync.result()
        if settings.audit_required and not is_written:
            raise AuditUnavailableError(
                "The gateway cannot write its audit log, which each call requires. Try again later."
            )

    def record(self, entry: Entry) -> bool:
        """Write a line; return False if it was not written, which the ordinary log has.

        Args:
            entry: fields of `chain.FIELDS`; names (`HASHED_FIELDS`) are hashed with `audit_names: hashed`.
        """
        settings, sink = self._settings, self._sink
        if settings is None or sink is None or not self._write(sink, entry):
            return False
        if settings.audit_sync != "never" and isinstance(sink, FileSink):
            sink.sync_later()
        if self.head.sequence - self._shown.sequence >= HEAD_LINES or self._clock() >= self._show_at:
            self._show_head(sink)
        return True

    def close(self) -> None:
        """Write the last line, force all to disk, and close the output."""
        if (sink := self._sink) is None:
            return
        self._write(sink, _of_process("stop"))
        try:
            sink.close()
        except OSError as error:
            self._report("sync", sink, error)
        self._show_head(sink)
        self._sink = None

    def _apply(self, settings: GatewaySettings) -> None:
        self._settings = settings
        is_hashed = settings.audit_names == "hashed" and settings.state_keys
        self._name_key = settings.state_keys[0] if is_hashed else None

    def _begin(self, settings: GatewaySettings) -> OSError | None:
        """Open the output and write the first line; return why the output cannot be opened."""
        self._apply(settings)
        self._failing = set()
        if settings.audit_log is None:
            return None
        output = settings.audit_log
        sink = sink_for(output, self._folder, self._stdout, lambda error: self._report("sync", sink, error))
        self._sink = sink
        try:
            sink.open()
        except OSError as error:
            self._report("write", sink, error)
            return error
        self._show_head(sink)
        self.record(_of_process("start"))
        return None

    def _write(self, sink: Sink, entry: Entry) -> bool:
        if self._name_key is not None:
            entry = with_hashed_names(entry, self._name_key)
        time = f"{datetime.now(UTC).isoformat(timespec='milliseconds')[:-6]}Z"
        try:
            sink.open()
            line, head = next_line(sink.head, time, entry)
            sink.write(line, time)
        except OSError as error:
            self._report("write", sink, error)
            return False
        sink.head = head
        self._report("write", sink, None)
        return True

    def _report(self, work: _Work, sink: Sink, error: OSError | None) -> None:
        """Log that lines cannot be written or forced to disk, once until they can."""
        if error is not None and work not in self._failing:
            self._failing.add(work)
            why = error.strerror or str(error)
            _log.error("audit log cannot be written", extra={"output": sink.name, "step": work, "error": why})
        elif error is None and work in self._failing:
            self._failing.remove(work)
            _log.warning("audit log written again", extra={"output": sink.name, "step": work})

    def _show_head(self, sink: Sink) -> None:
        """Put the head into the ordinary log, which others may keep."""
        self._shown, self._show_at = sink.head, self._clock() + HEAD_SECONDS
        # `SEQ:HASH`: see [heads](audit.md#heads).
        _log.info("audit log head", extra={"output": sink.name, "head": str(sink.head)})


def with_hashed_names(entry: Entry, secret: str) -> Entry:
    """Return an entry with HMACs in place of names, equal for equal names; `anonymous` is no name."""
    names = {name: str(entry[name]) for name in HASHED_FIELDS if entry.get(name) not in {None, ANONYMOUS_NAME}}
    return {**entry, **{name: f"hmac:{hashed_name(value, secret)}" for name, value in names.items()}}


def _of_process(action: str) -> Entry:
    return {"action": action, "outcome": "ok", "version": __version__}
