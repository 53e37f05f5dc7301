"""Printing: results to stdout, everything else to stderr."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Iterable


def result(text: str) -> None:
    """One result, ended by a newline."""
    sys.stdout.write(f"{text}\n")


def problem(text: str) -> None:
    """One line of what is wrong."""
    sys.stderr.write(f"{text}\n")


def table(*columns: str, rows: Iterable[tuple[str, ...]]) -> None:
    """A short table on stdout; a URL is never cut, so it can be copied."""
    shown = Table(*columns, box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    for row in rows:
        shown.add_row(*row)
    for column in shown.columns:
        column.no_wrap = True
    # Wide enough for any line: rich would cut them at a terminal's width, and at 80 where there is none.
    Console(file=sys.stdout, highlight=False, markup=False, width=1000).print(shown, crop=False)
