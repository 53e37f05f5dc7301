"""Logging set-up: outputs, formats and levels.

Records go to a rotating JSON file unless `PALLAS_LOG_FILE` is empty, and to stderr, for people by default and as JSON
with `PALLAS_LOG_STDERR=1`. Stdout is for results only. Every record of a call has the call's ids; no record has a
secret, or is longer than `log_sizes` allows.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from time import localtime, strftime
from types import TracebackType
from typing import Any, override

from pallas_gateway.telemetry.current_call import current_call
from pallas_gateway.telemetry.log_outputs import FileOutput, StderrOutput
from pallas_gateway.telemetry.log_relay import FILE, STDERR, LogPipe
from pallas_gateway.telemetry.log_sizes import fitted, fitted_field, fitted_traceback
from pallas_gateway.telemetry.rate_limit import OncePerMinute
from pallas_gateway.telemetry.redaction import cleaned, cleaned_fields, hides_its_value

DEFAULT_FILE = Path("~/.local/state/pallas/pallas.log")
QUIET_LOGGERS = (
    "openai", "openai._base_client", "anthropic", "anthropic._base_client", "sse_starlette", "sse_starlette.sse",
    "mcp", "mcp.client", "mcp.server", "httpx", "httpx2", "httpcore", "httpcore2", "hypercorn.access",
    "hpack", "h2", "watchfiles", "aiosqlite", "alembic", "asyncpg", "sqlalchemy",
)  # fmt: skip
"""Pinned at WARNING, independent of the root's level: at DEBUG they are verbose, and some show headers."""

_STANDARD = set(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "fitted"}
_FOR_MACHINES = {"conversation_id", "trace_id", "exception"}
_YES, _NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name, value in vars(record).items() if name not in _STANDARD}


def _fitted_fields(record: logging.LogRecord) -> dict[str, Any]:
    """Return the record's fields, shortened once for all outputs."""
    if (fields := getattr(record, "fitted", None)) is None:
        fields = record.fitted = {name: fitted_field(name, value) for name, value in fields_of(record).items()}
    return fields


class CallFields(logging.Filter):
    """Adds the ids of the current call to every record, a library's too; the record's own fields take precedence.

    Also holds the quiet loggers at WARNING, because some libraries set their levels when they are imported.
    """

    @override
    def filter(self, record: logging.LogRecord) -> bool:
        quiet = record.levelno < logging.WARNING and record.name.startswith(QUIET_LOGGERS)
        if quiet and any(f"{record.name}.".startswith(f"{name}.") for name in QUIET_LOGGERS):
            return False
        for name, value in current_call.get().ids.items():
            if not hasattr(record, name):
                setattr(record, name, value)
        return True


class JsonFormatter(logging.Formatter):
    """One JSON object a line: `time`, `level`, `logger`, `message`, then the record's fields."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname,
            "logger": record.name,
            "message": fitted(record.getMessage()),
        }
        if record.exc_info:
            entry["exception"] = fitted_traceback(self.formatException(record.exc_info))
        entry = entry | _fitted_fields(record) | entry  # no field replaces one of the record
        line = json.dumps(entry, default=str)
        # Cleaned field by field only if there is something to clean: that takes ten times as long as the check.
        if cleaned(line) != line or any(hides_its_value(name) for name in entry):
            line = json.dumps(cleaned_fields(entry))
        return line


class HumanFormatter(logging.Formatter):
    """`12:00:01 WARNING message key=value …`, with the exception's last line, for a crash with the whole traceback."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        time = strftime("%H:%M:%S", localtime(record.created))
        level = "" if record.levelno == logging.INFO else f"{record.levelname} "
        extra = "".join(f" {name}={text}" for name, text in _for_people(record) if text)
        error = _last_line(record)
        message = _on_one_line(fitted(record.getMessage()))
        line = cleaned(f"{time} {level}{message}{extra}{f' ({error})' if error else ''}")
        if record.levelno >= logging.CRITICAL and record.exc_info:
            return f"{line}\n{cleaned(fitted_traceback(self.formatException(record.exc_info)))}"
        return line


def _for_people(record: logging.LogRecord) -> Iterator[tuple[str, str]]:
    for name, shown in _fitted_fields(record).items():
        if shown is not None and name not in _FOR_MACHINES:
            yield name, _on_one_line(cleaned_fields(shown, name) if hides_its_value(name) else shown)


def _on_one_line(value: object) -> str:
    """A value as text on one line; control characters are escaped."""
    if isinstance(value, Mapping):  # counts by name; zeros are left out
        value = ",".join(f"{key}:{one}" for key, one in value.items() if one)
    elif isinstance(value, (list, tuple)):
        value = ",".join(map(str, value))
    text = str(value)
    return text if text.isprintable() else repr(text)


def _last_line(record: logging.LogRecord) -> str:
    """The last line of the record's exception, or of a traceback in its `exception` field."""
    raised = record.exc_info[1] if record.exc_info else None
    if raised is not None:
        return _on_one_line(fitted(f"{type(raised).__name__}: {raised}"))
    lines = fitted_traceback(str(getattr(record, "exception", None) or "").strip()).splitlines()
    return _on_one_line(fitted(lines[-1])) if lines else ""


def set_up(
    environ: Mapping[str, str],
    *,
    configured_level: str | None = None,
    parent: LogPipe | None = None,
    make_file: Callable[[Path], logging.Handler] = FileOutput,
) -> None:
    """Configure the root and `pallas` loggers from the documented variables, in place of an earlier configuration.

    Args:
        environ: holds `PALLAS_LOG_*`.
        configured_level: `logger.level` of fastagent.config.yaml, used when `PALLAS_LOG_LEVEL` is not set.
        parent: in a worker, the pipe to the process that writes its lines.
        make_file: makes the handler of the log file.
    """
    root = logging.getLogger()
    for handler in list(root.handlers):
        root.removeHandler(handler)
        handler.close()
    set_levels(environ, configured_level=configured_level)
    for name in QUIET_LOGGERS:
        logging.getLogger(name).setLevel(logging.WARNING)
    refused_states = logging.getLogger("mcp.server.request_state")
    if not refused_states.filters:
        refused_states.addFilter(OncePerMinute())  # the SDK warns of each: strangers can send as many as they like
    root.addHandler(logging.NullHandler())  # without a handler, logging prints warnings to stderr
    if (stderr := environ.get("PALLAS_LOG_STDERR", "").lower()) not in _NO:
        output = parent.output(STDERR) if parent else StderrOutput(sys.__stderr__)
        _add(root, output, JsonFormatter() if stderr in _YES else HumanFormatter())
    if (file := environ.get("PALLAS_LOG_FILE")) != "":
        _add_file(root, Path(file or DEFAULT_FILE), parent, make_file)
    if parent is None:  # which has logged these
        _warn_of_unknown_levels(environ)


def set_levels(environ: Mapping[str, str], *, configured_level: str | None = None) -> None:
    level = _level(environ.get("PALLAS_LOG_LEVEL") or configured_level, logging.INFO)
    logging.getLogger().setLevel(_level(environ.get("PALLAS_ROOT_LOG_LEVEL"), max(level, logging.INFO)))
    logging.getLogger("pallas").setLevel(level)


def report_crashes() -> None:
    """Log uncaught exceptions and Python's warnings, which would otherwise be printed."""

    def on_crash(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        if issubclass(kind, KeyboardInterrupt):
            sys.__excepthook__(kind, error, traceback)
            return
        logging.getLogger("pallas").critical("crashed", exc_info=(kind, error, traceback))

    def on_thread_crash(crash: threading.ExceptHookArgs) -> None:
        if crash.exc_value is None or issubclass(crash.exc_type, SystemExit):
            return
        extra = {"name_of_thread": crash.thread.name if crash.thread else None}
        raised = (crash.exc_type, crash.exc_value, crash.exc_traceback)
        logging.getLogger("pallas").error("thread crashed", extra=extra, exc_info=raised)

    sys.excepthook = on_crash
    threading.excepthook = on_thread_crash
    logging.captureWarnings(capture=True)


def _add_file(
    root: logging.Logger, file: Path, parent: LogPipe | None, make_file: Callable[[Path], logging.Handler]
) -> None:
    if parent is not None:
        _add(root, parent.output(FILE), JsonFormatter())
        return
    try:
        path = file.expanduser()
    except RuntimeError as error:  # a user without a home directory
        extra = {"file": str(file), "error": str(error)}
        logging.getLogger("pallas").warning("log file path invalid", extra=extra)
        return
    _add(root, make_file(path), JsonFormatter())


def _add(root: logging.Logger, handler: logging.Handler, formatter: logging.Formatter) -> None:
    handler.setFormatter(formatter)
    handler.addFilter(CallFields())
    root.addHandler(handler)


def _level(name: str | None, default: int) -> int:
    found = logging.getLevelNamesMapping().get((name or "").upper())
    return default if found is None else found


def _warn_of_unknown_levels(environ: Mapping[str, str]) -> None:
    for variable in ("PALLAS_LOG_LEVEL", "PALLAS_ROOT_LOG_LEVEL"):
        value = environ.get(variable)
        if value and value.upper() not in logging.getLevelNamesMapping():
            extra = {"variable": variable, "value": value, "levels": "DEBUG, INFO, WARNING or ERROR"}
            logging.getLogger("pallas").warning("unknown log level", extra=extra)
