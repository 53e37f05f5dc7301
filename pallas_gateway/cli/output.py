"""Printing: results to stdout, everything else to stderr."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING, TextIO

from rich.cells import cell_len

from pallas_gateway.telemetry.redaction import cleaned_data

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_BETWEEN_COLUMNS = "   "


def result(text: str) -> None:
    """One result, ended by a newline."""
    sys.stdout.write(f"{text}\n")


def problem(text: str) -> None:
    """One line of what is wrong."""
    sys.stderr.write(f"{cleaned_data(text)}\n")


def say_how_to_stop_at_once() -> None:
    """The answer to the first Ctrl-C at a terminal; a file or a collector that takes stderr gets the log alone."""
    with contextlib.suppress(OSError, ValueError):  # a terminal that has gone is no reason not to stop
        if sys.stderr.isatty():
            problem("Stopping once running calls have ended. Press Ctrl-C again to stop at once.")


@contextlib.contextmanager
def stdout_for_results_only() -> Iterator[TextIO]:
    """What agent modules, their libraries and the programs they start print goes to stderr; yields the real stdout."""
    before = sys.stdout
    with contextlib.ExitStack() as stack:
        try:
            number, elsewhere = before.fileno(), sys.stderr.fileno()
        except (OSError, ValueError):  # replaced by something that is no file
            stack.enter_context(contextlib.redirect_stdout(sys.stderr))
            yield before
            return
        # A stream of its own: `print` writes piece by piece, and on the log's stream a record would come between.
        encoding, errors = sys.stderr.encoding, sys.stderr.errors
        printed = os.fdopen(elsewhere, "w", 1, encoding=encoding, errors=errors, closefd=False)
        stack.enter_context(contextlib.redirect_stdout(printed))
        stack.callback(printed.flush)  # and not closed: threads that hang in an import may print for ever
        before.flush()
        kept = os.dup(number)
        stack.callback(os.close, kept)
        stack.callback(os.dup2, kept, number)
        stack.callback(before.flush)  # what was written past the redirection, such as to `sys.__stdout__`
        os.dup2(elsewhere, number)
        yield stack.enter_context(os.fdopen(kept, "w", encoding=before.encoding, errors=before.errors, closefd=False))


def table(*columns: str, rows: Iterable[tuple[str, ...]]) -> None:
    """A short table on stdout; nothing is cut or wrapped, so that a URL can be copied and a line be searched for."""
    lines = [columns, *rows]
    widths = [max(cell_len(line[column]) for line in lines) for column in range(len(columns))]
    for line in lines:
        cells = (text + " " * (width - cell_len(text)) for text, width in zip(line, widths, strict=True))
        result(_BETWEEN_COLUMNS.join(cells).rstrip())
