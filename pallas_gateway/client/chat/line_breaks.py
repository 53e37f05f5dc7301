"""Breaks lines of a terminal between words while a text arrives in pieces."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rich.cells import cell_len

if TYPE_CHECKING:
    from collections.abc import Callable

_PARTS = re.compile(r"\n|[^\S\n]+|\S+")
_TO_END = "\x1b[K"


class LineBreaks:
    """The place in the present line; `width` returns the cells of a line, without the last one of the terminal."""

    def __init__(self, width: Callable[[], int]) -> None:
        self._width = width
        self.begin()

    def begin(self) -> None:
        """Continue at the beginning of a line."""
        self._column, self._word = 0, ""

    def take(self, text: str) -> str:
        """Return what to write for a piece of text; a word that has grown beyond the line moves to the next one."""
        return "".join(map(self._placed, _PARTS.findall(text)))

    def _placed(self, part: str) -> str:
        if part == "\n":
            self.begin()
            return part
        width, cells = max(self._width(), 1), cell_len(part)
        fits = self._column + cells <= width
        if part.isspace():
            self._column, self._word = (self._column + cells if fits else width), ""
            return part if fits else ""
        before, whole = cell_len(self._word), self._word + part
        if fits or self._column == before or cell_len(whole) > width:  # a longer word is the terminal's to break
            self._column = self._column + cells if fits else (self._column + cells) % width
            self._word = whole if fits else ""
            return part
        self._column, self._word = before + cells, whole
        return f"{'\b' * before}{_TO_END if before else ''}\n{whole}"
