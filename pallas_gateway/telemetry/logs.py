"""Logging set-up: where records go, how they look, and which libraries stay quiet.

A rotating JSON file is always on unless `PALLAS_LOG_FILE` is empty; stderr is for people by default and JSON with
`PALLAS_LOG_STDERR=1`. Nothing ever goes to stdout, which belongs to results.
"""

from __future__ import annotations

import json
import logging
import logging.handlers
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_FILE = Path("~/.local/state/pallas/pallas.log")
FILE_BYTES = 10_000_000
FILE_BACKUPS = 5
QUIET_LOGGERS = (
    "openai", "openai._base_client", "anthropic", "anthropic._base_client", "sse_starlette", "sse_starlette.sse",
    "mcp", "mcp.client", "mcp.server", "httpx", "httpx2", "httpcore", "httpcore2", "hypercorn.access",
)  # fmt: skip

_STANDARD = set(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """The `extra` fields of a record."""
    return {name: value for name, value in vars(record).items() if name not in _STANDARD}


class JsonFormatter(logging.Formatter):
    """One JSON object a line: `time`, `level`, `logger`, `message`, then the record's fields."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line."""
        entry: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **fields_of(record),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


def _on_one_line(value: object) -> str:
    """A value as text; what could pass for another line, or move a terminal's cursor, is escaped."""
    text = str(value)
    return text if text.isprintable() else repr(text)


class HumanFormatter(logging.Formatter):
    """`12:00:01 WARNING message key=value …`, with the exception's last line instead of its traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line."""
        time = datetime.fromtimestamp(record.created).astimezone().strftime("%H:%M:%S")
        level = "" if record.levelno == logging.INFO else f"{record.levelname} "
        extra = "".join(f" {name}={_on_one_line(value)}" for name, value in fields_of(record).items())
        raised = record.exc_info[1] if record.exc_info else None
        error = f" ({type(raised).__name__}: {raised})" if raised else ""
        return f"{time} {level}{record.getMessage()}{extra}{error}"


def set_up(environ: Mapping[str, str], *, configured_level: str | None = None) -> None:
    """Configure the root and `pallas` loggers from the documented variables; replaces what was configured before.

    Args:
        environ: where `PALLAS_LOG_*` are read.
        configured_level: `logger.level` of fastagent.config.yaml, used when `PALLAS_LOG_LEVEL` is not set.
    """
    level = _level(environ.get("PALLAS_LOG_LEVEL") or configured_level, logging.INFO)
    root_level = _level(environ.get("PALLAS_ROOT_LOG_LEVEL"), max(level, logging.INFO))
    root = logging.getLogger()
    for handler in list(root.handlers):
        root.removeHandler(handler)
        handler.close()
    root.setLevel(root_level)
    logging.getLogger("pallas").setLevel(level)
    for name in QUIET_LOGGERS:
        logging.getLogger(name).setLevel(logging.WARNING)
    if (stderr := environ.get("PALLAS_LOG_STDERR", "")) != "0":
        _add(root, logging.StreamHandler(sys.__stderr__), JsonFormatter() if stderr == "1" else HumanFormatter())
    _add_file(root, environ.get("PALLAS_LOG_FILE"))


def _add_file(root: logging.Logger, configured: str | None) -> None:
    if configured == "":
        return
    path = Path(configured or DEFAULT_FILE).expanduser()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handler = logging.handlers.RotatingFileHandler(path, maxBytes=FILE_BYTES, backupCount=FILE_BACKUPS)
    except OSError as error:
        logging.getLogger("pallas").warning(
            "no log file, going on without one", extra={"file": str(path), "error": error.strerror}
        )
        return
    _add(root, handler, JsonFormatter())


def _add(root: logging.Logger, handler: logging.Handler, formatter: logging.Formatter) -> None:
    handler.setFormatter(formatter)
    root.addHandler(handler)


def _level(name: str | None, default: int) -> int:
    found = logging.getLevelNamesMapping().get((name or "").upper())
    return default if found is None else found
