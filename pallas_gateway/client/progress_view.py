"""Shows a running call on a terminal (stderr), or as events for a script (stdout)."""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

from rich.console import Console
from rich.text import Text

from pallas_gateway.calls.assistant_stream import CHUNK, DELTA, LOGGER, RESULTS
from pallas_gateway.client.output import one_line, without_controls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from mcp_types import CallToolResult, LoggingMessageNotificationParams

_SHOWN = 100
"""Characters that a line shows of a text, of arguments or of a result."""


class View(Protocol):
    """Shows one call."""

    def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """One `notifications/progress`."""

    def payload(self, payload: dict[str, Any]) -> None:
        """One payload of the assistant stream."""

    @property
    def paused(self) -> Callable[[], AbstractContextManager[object]]:
        """Returns a block in which a person is asked at the terminal."""


class EventView:
    """Prints each event as one line of JSON; `type` is `progress`, `assistant`, or at the end `result`."""

    paused = nullcontext  # events go to stdout, questions to stderr

    def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Print a `progress` event."""
        self._write({"type": "progress", "progress": progress, "total": total, "message": message})

    def payload(self, payload: dict[str, Any]) -> None:
        """Print an `assistant` event."""
        self._write({"type": "assistant", **payload})

    def result(self, answer: CallToolResult) -> None:
        """Print the `result` event."""
        self._write({"type": "result", **answer.model_dump(mode="json", by_alias=True, exclude_none=True)})

    def _write(self, event: dict[str, Any]) -> None:
        sys.stdout.write(f"{json.dumps(event)}\n")
        sys.stdout.flush()


class TerminalView:
    """Shows a status line; with `verbose` also turns and tools, with `stream` the text while it is written."""

    def __init__(self, console: Console, status: Callable[[str], None], *, verbose: bool, stream: bool) -> None:
        self._console = console
        self._status = status
        self._verbose = verbose
        self._stream = stream
        self._in_live_text = False
        self.last_live_text = ""
        self.paused: Callable[[], AbstractContextManager[object]] = nullcontext

    def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Replace the status line."""
        del progress, total
        if message:
            self._status(self._fit(message))

    def payload(self, payload: dict[str, Any]) -> None:
        """Print live text, or a turn as lines of a tree."""
        if payload.get("kind") == DELTA:
            if self._stream:
                self._show_live(str(payload.get("text", "")))
            return
        self.end_live_text()
        if self._verbose:
            for line in tree_lines(payload):
                self._console.print(Text(self._fit(line), style="dim"))

    def _show_live(self, text: str) -> None:
        self.last_live_text = self.last_live_text + text if self._in_live_text else text
        self._in_live_text = True
        self._console.out(self._fit(text), end="", style="dim")

    def _fit(self, text: str) -> str:
        return without_controls(text) if self._console.is_terminal else text

    def end_live_text(self) -> None:
        """End the line of live text."""
        if self._in_live_text:
            self._in_live_text = False
            self._console.out("")


@contextmanager
def terminal_view(first: str, *, verbose: bool, stream: bool) -> Iterator[TerminalView]:
    """Yield a view on stderr; if that is no terminal, each status is a line."""
    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    if not console.is_terminal or stream:

        def status_line(text: str) -> None:
            if not stream:  # it would overwrite the live text
                console.print(Text(text))

        view = TerminalView(console, status_line, verbose=verbose, stream=stream)
        yield view
        view.end_live_text()
        return
    with console.status(first) as status:

        @contextmanager
        def paused() -> Iterator[None]:
            status.stop()  # it would redraw over what is typed
            try:
                yield
            finally:
                status.start()

        view = TerminalView(console, lambda text: status.update(Text(text)), verbose=verbose, stream=stream)
        view.paused = paused
        yield view


def tree_lines(payload: dict[str, Any]) -> list[str]:
    """Format a payload as lines of a tree, indented by the number of agents that relayed it."""
    indent = "  " * len(payload.get("via_agent") or [])
    agent = payload.get("agent", "?")
    lines = []
    if payload.get("kind") == CHUNK:
        if text := payload.get("text"):
            lines.append(f"{indent}{agent}: {one_line(text, _SHOWN)}")
        lines += [
            f"{indent}{agent} → {tool_name(call)} {one_line(json.dumps(call.get('arguments')), _SHOWN)}"
            for call in payload.get("tool_calls", [])
        ]
    elif payload.get("kind") == RESULTS:
        for one in payload.get("results", []):
            mark = "✗" if one.get("is_error") else "←"
            seconds = one.get("duration_seconds", 0.0)
            lines.append(
                f"{indent}{agent} {mark} {tool_name(one)} {seconds:.1f}s {one_line(str(one.get('text', '')), _SHOWN)}"
            )
    return lines


def stream_payload(params: LoggingMessageNotificationParams) -> dict[str, Any] | None:
    """Return the payload of the assistant stream in a log message, None for other messages."""
    return params.data if params.logger == LOGGER and isinstance(params.data, dict) else None


def tool_name(call: dict[str, Any]) -> str:
    """`server/tool`, or the name of a tool without a server."""
    return f"{call['server']}/{call['name']}" if call.get("server") else str(call.get("name"))
