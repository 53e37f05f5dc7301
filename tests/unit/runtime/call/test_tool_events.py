"""Events of tool calls: which of several a program's question belongs to."""

import asyncio
from typing import Any

import pytest

from pallas_gateway.calls.events.events import Event
from pallas_gateway.calls.events.progress import ProgressCounter
from pallas_gateway.runtime.call.tool_events import ToolEvents
from tests.support.waiting import Changes, tick


class _Nowhere:
    """A sink and spans that ignore all."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


_NOWHERE: Any = _Nowhere()


class _Told(_Nowhere):
    """A sink that remembers its progress, each message with whether it ends a sub-task."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, bool]] = []
        self.changes = Changes()

    def put(self, event: Event) -> None:
        counted = ProgressCounter().of(event)
        assert counted is not None
        self.messages.append((counted.message, counted.total is not None))
        self.changes.announce()


def events(sink: Any = _NOWHERE) -> ToolEvents:
    return ToolEvents(sink, {}, _NOWHERE)


async def test_progress_of_a_server_is_passed_on_and_never_ends_its_tool_call() -> None:
    sink = _Told()
    tools = events(sink)
    one, other = [await tools.on_tool_start("copy", server, None, server) for server in ("files", "disks")]
    await tools.on_tool_progress(one, 1, 2, "half")
    await tools.on_tool_progress(other, 2, 2, None)
    await tools.on_tool_progress(other, 3, 3, "far step 1 (llm)")
    await tools.on_tool_complete(one, True, None, None)
    await tools.on_tool_progress(one, 2, 2, "too late")
    assert sink.messages[2:] == [
        ("files/copy: half", False),
        ("disks/copy: 2/2", False),
        ("disks/copy: far step 1 (llm)", True),  # of a gateway elsewhere
        ("files/copy: completed", True),
    ]


@pytest.mark.parametrize("end", ["complete", "abandon"])
async def test_of_progress_in_quick_succession_the_first_and_the_last_are_sent(end: str) -> None:
    sink = _Told()
    tools = events(sink)
    id_ = await tools.on_tool_start("copy", "files", None, "copies")
    for number in range(100):
        await tools.on_tool_progress(id_, number, 100, None)
    await (tools.on_tool_complete(id_, False, None, None) if end == "complete" else _abandoned(tools))
    assert [message for message, _ in sink.messages] == [
        "files/copy: started",
        "files/copy: 0/100",
        "files/copy: 99/100",
        "files/copy: failed",
    ]


async def _abandoned(tools: ToolEvents) -> None:
    tools.abandon()


async def test_progress_that_is_held_back_is_sent_before_the_tool_call_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pallas_gateway.runtime.call.tool_events.PROGRESS_SECONDS", 0.01)
    sink = _Told()
    tools = events(sink)
    id_ = await tools.on_tool_start("copy", "files", None, "copies")
    await tools.on_tool_progress(id_, 1, None, "first")
    await tools.on_tool_progress(id_, 2, None, "second")
    await sink.changes.until(lambda: len(sink.messages) == 3, 20, what="the second message")
    assert sink.messages[-1] == ("files/copy: second", False)


async def test_a_tool_call_that_ends_while_a_question_is_open_did_not_ask_it() -> None:
    tools = events()
    await tools.on_tool_start("name", "files", None, "asks")
    other = await tools.on_tool_start("wipe", "files", None, "asks nothing")
    await tools.on_tool_start("name", "notes", None, "of another server")
    asking = asyncio.create_task(tools.asking_on("files"))
    await tick()
    assert not asking.done()
    await tools.on_tool_complete(other, True, None, None)
    assert await asking == ("asks",)


async def test_as_many_questions_as_tool_calls_wait_for_no_end_of_others() -> None:
    tools = events()
    first, _ = [await tools.on_tool_start("name", "files", None, name) for name in ("one", "two")]
    asking = asyncio.create_task(tools.asking_on("files"))
    await tick()
    assert await tools.asking_on("files") == ("one", "two")
    await tools.on_tool_complete(first, True, None, None)  # it has the answer to the second question
    assert await asking == ("two",)


async def test_a_question_waits_for_other_tool_calls_for_a_limited_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pallas_gateway.runtime.call.tool_events.OTHERS_SECONDS", 0.01)
    tools = events()
    for name in ("one", "two"):
        await tools.on_tool_start("name", "files", None, name)
    assert await tools.asking_on("files") == ("one", "two")
