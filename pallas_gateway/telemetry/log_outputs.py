"""Log handlers whose errors never reach the gateway.

A full disk is logged once, by the outputs that still work, and every further record is tried again. A record that
cannot be formatted is replaced by an error record. A closed stderr is ignored.
"""

from __future__ import annotations

import logging
import logging.handlers
import math
import os
import sys
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, TextIO, cast, override

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from io import TextIOWrapper

ROTATE_AGAIN_SECONDS = 60.0  # the pause after a failed rotation
_log = logging.getLogger("pallas.logs")


class FinishedLines(logging.LogRecord):
    """Lines that another process has formatted."""

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__("pallas", logging.INFO, "", 0, "", None, None)
        self.text = "\n".join(lines)
        self.count = len(lines)


def formatted(handler: logging.Handler, record: logging.LogRecord) -> str:
    """A record as its handler writes it, or an error record if it cannot be formatted."""
    if isinstance(record, FinishedLines):
        return record.text
    try:
        return logging.Handler.format(handler, record)
    except Exception:  # noqa: BLE001  from a library's `extra` or `args`
        return logging.Handler.format(handler, _replacement_of(record))


class _Formatting(logging.Handler):
    @override
    def format(self, record: logging.LogRecord) -> str:
        return formatted(self, record)


class StderrOutput(_Formatting, logging.StreamHandler[TextIO]):
    """Records on stderr."""

    @override
    def handleError(self, record: logging.LogRecord) -> None:
        """Ignore the error; the next record is tried again."""


class FileOutput(_Formatting, logging.handlers.RotatingFileHandler):
    """The rotating file, opened by the first record and again by every record after an error."""

    def __init__(
        self,
        path: Path,
        *,
        max_bytes: int = 10_000_000,
        backups: int = 5,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._clock = clock
        super().__init__(path, maxBytes=max_bytes, backupCount=backups, encoding="utf-8", delay=True)
        self._lost = 0
        self._is_reporting = False
        self._formatted: tuple[logging.LogRecord, str] | None = None
        self._rotates_from = -math.inf

    @override
    def emit(self, record: logging.LogRecord) -> None:
        """Write one record, except the report of an error of this file."""
        if self._is_reporting:
            return
        lost_before = self._lost
        super().emit(record)
        self._formatted = None
        if lost_before and self._lost == lost_before:
            self._lost = 0
            _log.warning("log file written again", extra={"file": self.baseFilename, "lost_records": lost_before})

    @override
    def format(self, record: logging.LogRecord) -> str:
        """The record's line, cached because `shouldRollover` formats the record too."""
        if self._formatted is None or self._formatted[0] is not record:
            self._formatted = record, super().format(record)
        return self._formatted[1]

    @override
    def handleError(self, record: logging.LogRecord) -> None:
        """Report the first error, and close the file; the next record opens it again."""
        error = sys.exception()
        is_first = not self._lost
        self._lost += record.count if isinstance(record, FinishedLines) else 1
        self._drop_stream()
        if is_first:
            extra = {"file": self.baseFilename, "error": _why(error)}
            self._is_reporting = True
            try:
                # Retried with each record.
                _log.error("log file cannot be written", extra=extra)
            finally:
                self._is_reporting = False

    @override
    def shouldRollover(self, record: logging.LogRecord) -> bool:
        """Return true if the file is full, except in the pause after a failed rotation."""
        return self._clock() >= self._rotates_from and bool(super().shouldRollover(record))

    @override
    def doRollover(self) -> None:
        """Begin a new file; if that fails, the old one grows."""
        was_impossible = self._rotates_from > -math.inf
        try:
            super().doRollover()
        except OSError as error:
            self._rotates_from = self._clock() + ROTATE_AGAIN_SECONDS
            if not was_impossible:
                extra = {"file": self.baseFilename, "error": _why(error)}
                _log.error("log file cannot be rotated", extra=extra)
        else:
            self._rotates_from = -math.inf

    @override
    def _open(self) -> TextIOWrapper:
        path = Path(self.baseFilename)
        _make_private(path.parent)
        is_torn = _ends_torn(path)
        stream = cast("TextIOWrapper", open(path, self.mode, encoding=self.encoding, opener=_private))  # noqa: SIM115
        if is_torn:
            stream.write("\n")
        return stream

    def _drop_stream(self) -> None:
        """Close without a flush, which would fail again or write a part of a line."""
        stream, self.stream = self.stream, None  # as logging itself marks a closed one
        if stream is None:
            return
        with suppress(OSError, ValueError), open(os.devnull, "wb") as nowhere:  # noqa: PTH123  no path, a device
            os.dup2(nowhere.fileno(), stream.fileno())
        with suppress(OSError, ValueError):
            stream.close()


def _make_private(folder: Path) -> None:
    """Create a folder and its parents for this user alone; existing folders keep their modes."""
    if not folder.is_dir():
        _make_private(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _why(error: BaseException | None) -> str:
    return getattr(error, "strerror", None) or str(error)


def _ends_torn(path: Path) -> bool:
    """Return true if the last line of a file is incomplete, as after a full disk."""
    if not path.is_file() or path.stat().st_size == 0:
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


def _replacement_of(record: logging.LogRecord) -> logging.LogRecord:
    """An error record without the record's arguments."""
    where = {"source": record.name, "line": f"{record.filename}:{record.lineno}"}
    head = {"name": _log.name, "levelno": logging.ERROR, "levelname": "ERROR"}
    return logging.makeLogRecord({**head, "msg": "log record not formatted", **where})
