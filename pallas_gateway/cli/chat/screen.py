"""What a conversation looks like: the answer on stdout, everything else dimmed on stderr.

On a terminal the answer appears while it is written; into a pipe goes the finished answer alone.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from pallas_gateway.calls.assistant_stream import CHUNK, DELTA
from pallas_gateway.cli.live import tree_lines
from pallas_gateway.telemetry.redaction import cleaned_data

if TYPE_CHECKING:
    from typing import TextIO

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""What a terminal would obey instead of show: a model or a tool must not move its cursor or set its title."""


def harmless(text: str) -> str:
    """A text for a terminal: without control characters but newline and tab."""
    return _CONTROLS.sub("", text.replace("\r\n", "\n"))


class Screen:
    """Where a chat is shown; `is_live` if stdout is a terminal."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self._console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
        self.is_live = self._out.isatty()
        self._can_replace = self._console.is_terminal and not self._console.is_dumb_terminal
        self._has_status = False
        self.begin()

    def begin(self) -> None:
        """Another answer begins."""
        self._speaker: object = None
        self._shown = ""
        self._in_line = False
        self.tools: list[str] = []

    @property
    def seen(self) -> str:
        """What has been shown of the turn that was being written."""
        return self._shown

    def progress(self, message: str) -> None:
        """One line that is replaced, on a terminal, while no text stands there."""
        if self._can_replace and not self._in_line:
            self._clear_status()
            line = Text(harmless(message), style="dim", no_wrap=True, overflow="ellipsis")
            line.truncate(max(self._console.width - 1, 1))
            self._console.print(line, end="")
            self._console.file.flush()
            self._has_status = True

    def payload(self, payload: dict[str, Any]) -> None:
        """Live text, the tools an agent calls and what they bring, and what its sub-agents do."""
        speaker = payload.get("agent"), payload.get("iteration")
        if payload.get("kind") == DELTA:
            if self.is_live:
                self._speak(speaker, str(payload.get("text", "")))
            return
        if not payload.get("via_agent"):
            payload = self._own(payload, speaker)
        for line in tree_lines(payload):
            self.note(line)

    def finish(self, text: str) -> None:
        """The whole answer is known: show what has not been shown of it."""
        self._clear_status()
        if self.is_live:
            self._settle(text, self._speaker)
        else:
            self.say(text)

    def say(self, text: str) -> None:
        """A result: an answer, or what a command was asked for."""
        self._end_line()
        self._out.write(f"{harmless(text) if self.is_live else text}\n")
        self._out.flush()

    def note(self, text: str) -> None:
        """Something beside the answer, dimmed."""
        self._end_line()
        self._console.print(Text(harmless(text), style="dim"))

    def problem(self, text: str) -> None:
        """What is wrong, in one line."""
        self._end_line()
        self._console.print(Text(harmless(str(cleaned_data(text))), style="red"))

    def stop(self) -> None:
        """Nothing more comes of this answer."""
        self._end_line()

    def _own(self, payload: dict[str, Any], speaker: object) -> dict[str, Any]:
        """The rest of a payload of the agent itself, once its text is shown, or is left to `finish` as the last one."""
        calls = payload.get("tool_calls") or []
        self.tools += [
            f"{call['server']}/{call['name']}" if call.get("server") else str(call["name"]) for call in calls
        ]
        if payload.get("kind") != CHUNK:
            return payload
        if self.is_live:
            self._settle(str(payload.get("text") or ""), speaker)
        return {**payload, "text": ""} if self.is_live or not calls else payload

    def _speak(self, speaker: object, text: str) -> None:
        if speaker != self._speaker:
            self._end_line()
            self._speaker, self._shown = speaker, ""
        self._clear_status()
        self._shown += text
        self._write(text)

    def _settle(self, text: str, speaker: object) -> None:
        """Show the rest of a turn's text, all of it if something else stands there (live text may have been cut)."""
        self._clear_status()
        if speaker != self._speaker or not text.startswith(self._shown):
            self._end_line()
            self._speaker, self._shown = speaker, ""
        self._write(text.removeprefix(self._shown))
        self._shown = text
        self._end_line()

    def _write(self, text: str) -> None:
        if text := harmless(text):
            self._out.write(text)
            self._out.flush()
            self._in_line = not text.endswith("\n")

    def _end_line(self) -> None:
        self._clear_status()
        if self._in_line:
            self._in_line = False
            self._out.write("\n")
            self._out.flush()

    def _clear_status(self) -> None:
        if self._has_status:
            self._has_status = False
            self._console.file.write("\r\x1b[2K")
            self._console.file.flush()
