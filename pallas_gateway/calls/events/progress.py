"""Progress of one call: numbers that always increase, and the exact words of each message. Pure.

MCP asks that `progress` increases with every notification of a token; `total` equals it where a sub-task has ended
and is absent otherwise.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from pallas_gateway.calls.events.events import StepBegan, ToolEnded, ToolReported, ToolStarted

if TYPE_CHECKING:
    from pallas_gateway.calls.assistant_stream import Payload
    from pallas_gateway.calls.events.events import Event

LONGEST_RELAYED = 500
"""Characters of a peer's message that is passed on."""
LONGEST_TEXT = 200
"""Characters of an ordinary server's text that are passed on."""
_LONGEST_READ = 4 * LONGEST_TEXT
_OWN_WORDS = frozenset({"started", "completed", "failed"})
_OUR_FORMS = re.compile(r".*(?:: (?:started|completed|failed)| step \d+ \((?:llm|tool)\)| working \(\d+s\))")


@dataclass(frozen=True, slots=True)
class ProgressEvent:
    """One `notifications/progress`, without its token."""

    progress: float
    total: float | None
    message: str


class NotificationSender(Protocol):
    """Sends notifications to the client of one MCP request."""

    async def send_progress(self, event: ProgressEvent) -> None:
        """Send one `notifications/progress`."""

    async def send_payload(self, payload: Payload) -> None:
        """Send one `notifications/message` of the assistant stream."""


class ProgressCounter:
    """Numbers the progress of one stream of notifications."""

    def __init__(self) -> None:
        self._last = 0

    def event(self, message: str, *, ended: bool = False) -> ProgressEvent:
        """Return the next progress; `ended` if the sub-task of the message has ended."""
        self._last += 1
        return ProgressEvent(float(self._last), float(self._last) if ended else None, message)

    def of(self, event: Event) -> ProgressEvent | None:
        """Return the progress of an event; None for an event that is none."""
        match event:
            case StepBegan(agent, number, kind):
                return self.event(f"{agent} step {number} ({kind})")
            case ToolStarted(server, tool):
                return self.event(f"{server}/{tool}: started")
            case ToolEnded(server, tool, ok):
                return self.event(f"{server}/{tool}: {'completed' if ok else 'failed'}", ended=True)
            case ToolReported(message, has_ended):
                return self.event(message, ended=has_ended)
        return None


def relayed(server: str, tool: str, message: str) -> str:
    """A message that came from the peer behind a tool call."""
    return f"{server}/{tool}: {message}"


def of_server(server: str, tool: str, text: str | None, done: float, total: float | None) -> str:
    """Progress of an ordinary server's tool call: its text on one line, or without a text its numbers."""
    shown = _line(text or "") or (f"{done:.15g}/{total:.15g}" if total else f"{done:.15g}")
    return f'{server}/{tool}: "{shown}"' if shown in _OWN_WORDS else f"{server}/{tool}: {shown}"


def _line(text: str) -> str:
    """A text on one line, without control characters."""
    printable = "".join(one if one.isprintable() else " " for one in text[:_LONGEST_READ])
    line = " ".join(printable.split())
    return line if len(line) <= LONGEST_TEXT else f"{line[: LONGEST_TEXT - 1]}…"


def is_ours(message: str) -> bool:
    """True if a message has one of the forms above or the heartbeat's: only a Pallas peer sends those."""
    return len(message) <= LONGEST_RELAYED and message.isprintable() and _OUR_FORMS.fullmatch(message) is not None


def heartbeat(agent: str, seconds: float) -> str:
    """The heartbeat: no other progress for a while; `seconds` since the call began."""
    return f"{agent} working ({seconds:.0f}s)"
