"""Events of tool calls: which of several a program's question belongs to."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

from pallas_gateway.calls.channel import Channel
from pallas_gateway.runtime.call.tool_events import ToolEvents
from tests.support.waiting import tick

if TYPE_CHECKING:
    import pytest


class _Nowhere:
    """A channel and spans that ignore all."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


def events() -> ToolEvents:
    return ToolEvents(cast("Channel", _Nowhere()), {}, cast("Any", _Nowhere()))


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
