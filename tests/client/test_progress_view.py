"""What a running call looks like: lines of a tree, a status, live text, and events for scripts."""

import io
import json
from typing import Any

import pytest
from mcp_types import CallToolResult, LoggingMessageNotificationParams, TextContent
from rich.console import Console

from pallas_gateway.calls.assistant_stream import LOGGER, PeerCall, payload_of, relayed
from pallas_gateway.calls.events.events import Emitter, TextDelta, ToolCall, ToolResult, ToolsEnded, TurnEnded
from pallas_gateway.client.progress_view import EventView, TerminalView, stream_payload, terminal_view, tree_lines

HARPER, SCOUT = Emitter("harper", None), Emitter("scout", None)
ADD = ToolCall("call_1", "tools", "add", {"a": 1, "b": 2})
OWN = ToolCall("call_2", None, "agent__scout", {})


def through(payload: dict[str, Any], *servers: str) -> dict[str, Any]:
    """The payload as it arrives after it was relayed."""
    for server in servers:
        arrived = relayed(LOGGER, payload, PeerCall(server, "send_message", "call_9"), max_depth=3)
        assert arrived is not None
        payload = arrived
    return payload


def said(text: str, *calls: ToolCall, emitter: Emitter = HARPER) -> dict[str, Any]:
    return payload_of(TurnEnded(emitter, 1, text, calls)) or {}


def live(text: str, iteration: int = 1, emitter: Emitter = HARPER) -> dict[str, Any]:
    return payload_of(TextDelta(emitter, iteration, text)) or {}


def brought(text: str, *, call: ToolCall = ADD, is_error: bool = False, seconds: float = 0.04) -> dict[str, Any]:
    return payload_of(ToolsEnded(HARPER, 1, [ToolResult(call, is_error, text, seconds)])) or {}


@pytest.mark.parametrize(
    ("payload", "lines"),
    [
        (said("It is 3."), ["harper: It is 3."]),
        (said("two\n  lines"), ["harper: two lines"]),
        (said(""), []),
        (
            said("Let me see.", ADD, OWN),
            ["harper: Let me see.", 'harper → tools/add {"a": 1, "b": 2}', "harper → agent__scout {}"],
        ),
        (brought("3"), ["harper ← tools/add 0.0s 3"]),
        (brought("no such thing", is_error=True, seconds=12.34), ["harper ✗ tools/add 12.3s no such thing"]),
        (brought("", call=OWN), ["harper ← agent__scout 0.0s "]),
        (through(said("found", emitter=SCOUT), "search"), ["  scout: found"]),
        (through(said("found", emitter=SCOUT), "search", "research"), ["    scout: found"]),
        (live("It"), []),
        ({"kind": "something_new", "schema_version": 9}, []),
        ({"kind": "assistant_chunk", "text": "from whom?"}, ["?: from whom?"]),
        ({"kind": "assistant_chunk_results", "agent": "old", "results": [{"name": "t"}]}, ["old ← t 0.0s "]),
    ],
)
def test_a_payload_is_lines_of_a_tree(payload: dict[str, Any], lines: list[str]) -> None:
    assert tree_lines(payload) == lines


@pytest.mark.parametrize(("length", "shown"), [(100, "x" * 100), (101, "x" * 99 + "…")])
def test_a_long_text_is_cut(length: int, shown: str) -> None:
    assert tree_lines(said("x" * length)) == [f"harper: {shown}"]
    assert tree_lines(brought("x" * length)) == [f"harper ← tools/add 0.0s {shown}"]


class Shown:
    """A view and what it showed: its statuses, and what it printed (without styles)."""

    def __init__(self, *, verbose: bool = False, stream: bool = False) -> None:
        self.statuses: list[str] = []
        self._console = Console(file=io.StringIO(), highlight=False, markup=False, soft_wrap=True)
        self.view = TerminalView(self._console, self.statuses.append, verbose=verbose, stream=stream)

    @property
    def printed(self) -> str:
        assert isinstance(self._console.file, io.StringIO)
        return self._console.file.getvalue()


STORY = [
    live("It "),
    live("is 3."),
    said("It is 3.", ADD),
    brought("[bold]3"),
    said("Done."),
]


@pytest.mark.parametrize(
    ("options", "printed"),
    [
        ({}, ""),
        ({"stream": True}, "It is 3.\n"),
        (
            {"verbose": True},
            'harper: It is 3.\nharper → tools/add {"a": 1, "b": 2}\nharper ← tools/add 0.0s [bold]3\nharper: Done.\n',
        ),
        (
            {"verbose": True, "stream": True},
            'It is 3.\nharper: It is 3.\nharper → tools/add {"a": 1, "b": 2}\n'
            "harper ← tools/add 0.0s [bold]3\nharper: Done.\n",
        ),
    ],
)
def test_a_terminal_shows_what_was_asked_for(options: dict[str, bool], printed: str) -> None:
    shown = Shown(**options)
    for payload in STORY:
        shown.view.payload(payload)
    assert shown.printed == printed


def test_progress_is_the_status() -> None:
    shown = Shown()
    for number, message in enumerate(["harper step 1 (llm)", None, "", "[red]tools/add: started"]):
        shown.view.progress(number, None, message)
    assert (shown.statuses, shown.printed) == (["harper step 1 (llm)", "[red]tools/add: started"], "")


def test_the_last_live_text_is_that_of_the_last_turn() -> None:
    shown = Shown(stream=True)
    for payload in (
        live("Let me see."),
        said("Let me see.", ADD),
        live("It is ", 2),
        STORY[0],
    ):
        shown.view.payload(payload)
    assert shown.view.last_live_text == "It is It "
    assert shown.printed == "Let me see.\nIt is It "
    shown.view.end_live_text()
    shown.view.end_live_text()
    assert shown.printed == "Let me see.\nIt is It \n"


def test_live_text_that_nobody_asked_for_is_not_taken_for_shown() -> None:
    shown = Shown(verbose=True)
    shown.view.payload(live("It is 3."))
    assert (shown.view.last_live_text, shown.printed) == ("", "")


@pytest.mark.parametrize(
    ("stream", "err"), [(False, "harper step 1 (llm)\n[red]tools/add: started\n"), (True, "It is\n")]
)
def test_where_stderr_is_no_terminal_each_status_is_a_line_unless_it_would_cut_live_text(
    stream: bool, err: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with terminal_view("harper …", verbose=False, stream=stream) as view:
        view.progress(1, None, "harper step 1 (llm)")
        view.payload(live("It is"))
        view.progress(2, None, "[red]tools/add: started")
    assert capsys.readouterr() == ("", err)


def test_a_script_gets_an_event_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    view = EventView()
    view.progress(1.0, None, "harper step 1 (llm)")
    view.progress(2.0, 2.0, "tools/add: completed")
    view.payload(said("zwei\nZeilen ✓"))
    view.result(CallToolResult(content=[TextContent(type="text", text="3")], is_error=False, meta={"pallas/call": {}}))

    printed = capsys.readouterr()
    assert printed.err == ""
    assert [json.loads(line) for line in printed.out.splitlines()] == [
        {"type": "progress", "progress": 1.0, "total": None, "message": "harper step 1 (llm)"},
        {"type": "progress", "progress": 2.0, "total": 2.0, "message": "tools/add: completed"},
        {"type": "assistant", **said("zwei\nZeilen ✓")},
        {
            "type": "result",
            "_meta": {"pallas/call": {}},
            "content": [{"type": "text", "text": "3"}],
            "isError": False,
            "resultType": "complete",
        },
    ]


@pytest.mark.parametrize(
    ("logger", "data", "taken"),
    [
        (LOGGER, {"kind": "assistant_delta"}, True),
        (LOGGER, "text", False),
        ("another", {"kind": "assistant_delta"}, False),
        (None, {"kind": "assistant_delta"}, False),
    ],
)
def test_only_objects_of_the_assistant_stream_are_its_payloads(logger: str | None, data: object, taken: bool) -> None:
    params = LoggingMessageNotificationParams(level="info", logger=logger, data=data)
    assert stream_payload(params) == (data if taken else None)
