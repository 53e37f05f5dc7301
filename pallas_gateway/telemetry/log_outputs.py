"""Where records are written, made so that trouble with writing them is never trouble for the gateway.

A full disk is said once, through the outputs that still work, and the next record is tried again. A record that cannot
be formatted is replaced by one that says so. A stream that nobody reads any more is left alone.
"""

from __future__ import annotations

import logging
import logging.handlers
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from io import TextIOWrapper

_log = logging.getLogger("pallas.logs")


class _Formatting(logging.Handler):
    def format(self, record: logging.LogRecord) -> str:
        try:
            return super().format(record)
        except Exception:  # noqa: BLE001  whatever a library's `extra` or `args` do, others' records are written
            return super().format(_in_place_of(record))


class StderrOutput(_Formatting, logging.StreamHandler[TextIO]):
    """The stream for people and journals."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  logging's name
        """Nothing: it went to where errors are said, and the next record is tried again."""


class FileOutput(_Formatting, logging.handlers.RotatingFileHandler):
    """The rotating file; while it cannot be written the gateway serves on without, and every record tries anew."""

    def __init__(self, path: Path, *, max_bytes: int, backups: int) -> None:
        super().__init__(path, maxBytes=max_bytes, backupCount=backups, encoding="utf-8")
        self._lost = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record."""
        lost_before = self._lost
        super().emit(record)
        if lost_before and self._lost == lost_before:
            self._lost = 0
            _log.warning("log file is written again", extra={"file": self.baseFilename, "lost_records": lost_before})

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  logging's name
        """Say, the first time, that the file cannot be written; the next record begins with a fresh handle."""
        del record
        error = sys.exception()
        self._lost += 1
        self._drop_stream()
        if self._lost == 1:
            why = getattr(error, "strerror", None) or str(error)
            extra = {"file": self.baseFilename, "error": why}
            _log.error("log file cannot be written, serving on without it until it can", extra=extra)

    def _open(self) -> TextIOWrapper:
        torn = _ends_torn(Path(self.baseFilename))
        stream = super()._open()
        if torn:
            stream.write("\n")
        return stream

    def _drop_stream(self) -> None:
        """Close without writing what could not be written: it would fail again, or come late and in part."""
        stream, self.stream = self.stream, None  # as logging itself marks a closed one
        if stream is None:
            return
        with suppress(OSError, ValueError), open(os.devnull, "wb") as nowhere:  # noqa: PTH123  no path, a device
            os.dup2(nowhere.fileno(), stream.fileno())
        with suppress(OSError, ValueError):
            stream.close()


def _ends_torn(path: Path) -> bool:
    """Whether the last line of a file is not whole, as a full disk leaves it."""
    if not path.is_file() or path.stat().st_size == 0:
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


def _in_place_of(record: logging.LogRecord) -> logging.LogRecord:
    """What is written for a record that cannot be; without its arguments."""
    where = {"source": record.name, "line": f"{record.filename}:{record.lineno}"}
    said = {"name": _log.name, "levelno": logging.ERROR, "levelname": "ERROR"}
    return logging.makeLogRecord({**said, "msg": "a log record could not be formatted", **where})
