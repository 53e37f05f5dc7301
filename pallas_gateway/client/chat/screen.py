"""The display of a conversation: the answer on stdout, everything else dimmed on stderr.

On a terminal the answer appears while it is written; a pipe receives the finished answer only.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from shutil import get_terminal_size
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from pallas_gateway.calls.assistant_stream import CHUNK, DELTA
from pallas_gateway.client.output import fit_for, without_controls
from pallas_gateway.client.progress_view import tool_name, tree_lines
from pallas_gateway.telemetry.redaction import cleaned_data

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


class Screen:
    """Output of a chat. `shown` is the text of the current turn so far, `tools` are those that the agent used."""

    def __init__(self) -> None:
        self._out = sys.stdout
        self._console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
        self.is_live = self._out.isatty()
        self._breaks = LineBreaks(lambda: get_terminal_size().columns - 1)
        self._has_status = False
        self._held: list[dict[str, Any]] | None = None
        self.begin()

    def begin(self) -> None:
        """Reset for another answer."""
        self._speaker: object = None
        self._in_line = False
        self.shown = ""
        self.tools: list[str] = []

    def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Replace the status line; only on a terminal, and not inside a line of text."""
        del progress, total
        if self._held is not None:
            return
        if message and self._console.is_terminal and not self._console.is_dumb_terminal and not self._in_line:
            self._clear_status()
            line = Text(without_controls(message), style="dim", no_wrap=True, overflow="ellipsis")
            line.truncate(max(self._console.width - 1, 1))
            self._console.print(line, end="")
            self._console.file.flush()
            self._has_status = True

    def payload(self, payload: dict[str, Any]) -> None:
        """Show live text, tool calls with their results, and the activity of sub-agents."""
        if self._held is not None:
            self._held.append(payload)
        else:
            self._show_payload(payload)

    def _show_payload(self, payload: dict[str, Any]) -> None:
        speaker = payload.get("agent"), payload.get("iteration")
        text = str(payload.get("text") or "")
        if payload.get("kind") == DELTA:
            if self.is_live:
                self._show(speaker, (self.shown if speaker == self._speaker else "") + text)
            return
        if not payload.get("via_agent"):
            calls = payload.get("tool_calls") or []
            self.tools += map(tool_name, calls)
            if payload.get("kind") == CHUNK:
                if self.is_live:
                    self._show(speaker, text)
                    self.end_line()
                if self.is_live or not calls:  # `finish` shows the text of a turn without tool calls: the last one
                    payload = {**payload, "text": ""}
        for line in tree_lines(payload):
            self.note(line)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Show nothing during the block, in which a person is asked; the payloads are shown at its end."""
        self.end_line()
        self._held = []
        try:
            yield
        finally:
            held, self._held = self._held, None
            for payload in held:
                self.payload(payload)

    def finish(self, text: str) -> None:
        """Show the part of the final answer that is not yet shown."""
        if self.is_live:
            self._show(self._speaker, text)
            self.end_line()
        else:
            self.print(text)

    def print(self, text: str) -> None:
        """A result on stdout."""
        self.end_line()
        self._out.write(f"{fit_for(self._out, text)}\n")
        self._out.flush()

    def note(self, text: str) -> None:
        """A dimmed line on stderr."""
        self.end_line()
        self._console.print(Text(without_controls(text), style="dim"))

    def problem(self, text: str) -> None:
        """An error in one line."""
        self.end_line()
        self._console.print(Text(without_controls(str(cleaned_data(text))), style="red"))

    def end_line(self) -> None:
        """End the line of text, or clear the status line."""
        self._clear_status()
        if self._in_line:
            self._in_line = False
            self._breaks.begin()
            self._out.write("\n")
            self._out.flush()

    def _show(self, speaker: object, text: str) -> None:
        """Show a turn's text so far; all of it unless it continues the text shown (live text may have been cut)."""
        self._clear_status()
        if speaker != self._speaker or not text.startswith(self.shown):
            self.end_line()
            self._speaker, self.shown = speaker, ""
        if more := without_controls(text.removeprefix(self.shown)):
            self._out.write(self._breaks.take(more))
            self._out.flush()
            self._in_line = not more.endswith("\n")
        self.shown = text

    def _clear_status(self) -> None:
        if self._has_status:
            self._has_status = False
            self._console.file.write("\r\x1b[2K")
            self._console.file.flush()
