"""Printing: results to stdout, everything else to stderr. A terminal gets no control sequences of others.

Texts of models, tools and remote gateways may contain sequences that set a terminal's title, clear its screen or write
to its clipboard. A pipe receives the text unchanged.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import TextIO

from rich.cells import cell_len

from pallas_gateway.telemetry.redaction import cleaned_data

CANCELLED = "cancelled"
_BETWEEN_COLUMNS = "   "
_LONGEST_NAME = 60
_log = logging.getLogger("pallas.cli")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_DIRECTIONS = re.compile(r"[\u202a-\u202e\u2066-\u2069]")


def without_controls(text: str) -> str:
    """Remove the control characters that a terminal obeys, and show those that reorder text as U+FFFD."""
    return _DIRECTIONS.sub("\ufffd", _CONTROLS.sub("", text.replace("\r\n", "\n")))


def fit_for(stream: TextIO, text: str) -> str:
    """Return `text` without control characters if `stream` is a terminal."""
    return without_controls(text) if stream.isatty() else text


def result(text: str) -> None:
    """Print one result and a newline."""
    sys.stdout.write(f"{fit_for(sys.stdout, text)}\n")


def print_announcement(text: str, stream: TextIO) -> None:
    """Print what a gateway that is ready announces. It serves on if the stream is closed."""
    try:
        stream.write(text)
        stream.flush()
    except (OSError, ValueError) as error:
        _log.warning("announcement not printed", extra={"error": str(error)})
        with contextlib.suppress(OSError, ValueError):  # what is left in the stream must not fail again at the end
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def problem(text: str) -> None:
    """Print one line about a problem."""
    sys.stderr.write(f"{fit_for(sys.stderr, str(cleaned_data(text)))}\n")


def print_stop_hint() -> None:
    """Answer the first Ctrl-C, if stderr is a terminal."""
    with contextlib.suppress(OSError, ValueError):  # the terminal was closed
        if sys.stderr.isatty():
            problem("Stopping once running calls have ended. Press Ctrl-C again to stop at once.")


@contextlib.contextmanager
def stdout_for_results_only() -> Iterator[TextIO]:
    """Redirect to stderr what agent modules, libraries and child processes print; yields the real stdout."""
    before = sys.stdout
    with contextlib.ExitStack() as stack:
        try:
            number, elsewhere = before.fileno(), sys.stderr.fileno()
        except (OSError, ValueError):  # replaced by an object without a descriptor
            stack.enter_context(contextlib.redirect_stdout(sys.stderr))
            yield before
            return
        # A separate stream: `print` writes in pieces, and log records on the same stream would come in between.
        encoding, errors = sys.stderr.encoding, sys.stderr.errors
        printed = os.fdopen(elsewhere, "w", 1, encoding=encoding, errors=errors, closefd=False)
        stack.enter_context(contextlib.redirect_stdout(printed))
        stack.callback(printed.flush)  # not closed: a thread that hangs in an import may still print
        before.flush()
        kept = os.dup(number)
        stack.callback(os.close, kept)
        stack.callback(os.dup2, kept, number)
        stack.callback(before.flush)  # what was written to `sys.__stdout__`
        os.dup2(elsewhere, number)
        yield stack.enter_context(os.fdopen(kept, "w", encoding=before.encoding, errors=before.errors, closefd=False))


def counted(number: int, noun: str) -> str:
    """Return `1 turn`, `2 turns`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def one_line(text: str, most: int) -> str:
    """Return a text on one line, cut to `most` characters."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def shown(text: object) -> str:
    """Return a name on one line, cut, without control and bidirectional characters: callers and models write names."""
    begin = str(text)[: _LONGEST_NAME + 1]
    printable = "".join(one if one.isprintable() else "�" for one in begin)
    return printable if len(printable) <= _LONGEST_NAME else f"{printable[:_LONGEST_NAME]}…"


def local_time(value: object) -> str:
    """Format an ISO 8601 time in local time, as `2026-11-03 12:00:05`; other text is returned unchanged."""
    text = str(value or "")
    try:
        return datetime.fromisoformat(text).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError):
        return text


def table(*columns: str, rows: Iterable[tuple[str, ...]]) -> None:
    """Print a table."""
    result("\n".join(table_lines(*columns, rows=rows)))


def table_lines(*columns: str, rows: Iterable[tuple[str, ...]]) -> list[str]:
    """Format a table. Nothing is cut or wrapped, so that URLs can be copied and lines found."""
    lines = [columns, *rows]
    widths = [max(cell_len(line[column]) for line in lines) for column in range(len(columns))]
    padded = (
        [text + " " * (width - cell_len(text)) for text, width in zip(line, widths, strict=True)] for line in lines
    )
    return [_BETWEEN_COLUMNS.join(cells).rstrip() for cells in padded]


@contextlib.contextmanager
def redrawn() -> Iterator[Callable[[str], None] | None]:
    """Yield a function that shows a text in place of the one before it; None if stdout is no terminal."""
    from rich.console import Console  # noqa: PLC0415  for `--watch` only
    from rich.live import Live  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        yield None
        return
    with Live(console=console, auto_refresh=False) as live:
        yield lambda text: live.update(Text(without_controls(text)), refresh=True)
