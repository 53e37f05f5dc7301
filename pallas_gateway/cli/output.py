"""Printing: results to stdout, everything else to stderr."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from rich.cells import cell_len

from pallas_gateway.telemetry.redaction import cleaned_data

if TYPE_CHECKING:
    from collections.abc import Iterable

_BETWEEN_COLUMNS = "   "


def result(text: str) -> None:
    """One result, ended by a newline."""
    sys.stdout.write(f"{text}\n")


def problem(text: str) -> None:
    """One line of what is wrong."""
    sys.stderr.write(f"{cleaned_data(text)}\n")


def table(*columns: str, rows: Iterable[tuple[str, ...]]) -> None:
    """A short table on stdout; nothing is cut or wrapped, so that a URL can be copied and a line be searched for."""
    lines = [columns, *rows]
    widths = [max(cell_len(line[column]) for line in lines) for column in range(len(columns))]
    for line in lines:
        cells = (text + " " * (width - cell_len(text)) for text, width in zip(line, widths, strict=True))
        result(_BETWEEN_COLUMNS.join(cells).rstrip())
