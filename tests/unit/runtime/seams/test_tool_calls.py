"""What an agent asks of its downstreams is told by server, kind and outcome, and by no name that a model makes up."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from fast_agent.mcp.mcp_aggregator import MCPAggregator

from pallas_gateway.runtime.scope import CallScope, Operations, entered
from pallas_gateway.runtime.seams.tool_calls import contradicts_listing, execute_on_server, handle_change
from tests.support.waiting import Gate, cancelled


@dataclass
class Heard:
    """An `OnOperation` that keeps what it is told."""

    operations: list[tuple[str, str, bool]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def __call__(self, server: str, operation: str, *, ok: bool, seconds: float) -> None:
        self.operations.append((server, operation, ok))
        self.seconds.append(seconds)


@pytest.mark.parametrize(
    ("server", "operation_type", "kind"),
    [
        ("tools", "tools/call", "tool"),
        ("tools", "prompts/get", "prompt"),
        ("tools", "resources/read", "resource"),
        ("tools", "resources/directory/read", "resource"),
        ("attached by a model", "tools/call", "tool"),
        *(("tools", one, None) for one in ("tools/list", "prompts/list", "resources/list", "completion/complete")),
    ],
)
async def test_an_operation_is_told_by_its_kind_unless_it_lists_or_completes(
    server: str, operation_type: str, kind: str | None
) -> None:
    heard = Heard()
    with entered(CallScope(operations=Operations(heard, {"tools", "notes"}))):
        await execute_on_server(fine, MCPAggregator)(object(), server, operation_type, "add")
    assert heard.operations == ([] if kind is None else [("tools" if server == "tools" else "other", kind, True)])


async def fine(*_: object, **options: Any) -> str:
    return f"fine {sorted(options)}"


async def an_error_result(*_: object, **options: Any) -> object:
    return SimpleNamespace(is_error=True, content=[])


async def made_a_result_of_an_error(*_: object, **options: Any) -> object:
    return options["error_factory"]("no such prompt")


async def raising(*_: object, **options: Any) -> object:
    raise ConnectionError("gone")


REPORTS = [
    "Unknown tool: echo",
    "Unknown tool: 'echo'",
    "MCP error -32602: Tool echo not found",
    "tool 'echo' not found: tool not found",
    "No such tool: echo",
    "MCP error -32602: Input validation error: Invalid arguments for tool echo: [{}]",
    "Input validation error: 'text' is a required property",
    "1 validation error for call[echo]\ntext\n  Missing required argument",
    "Invalid params",
]


def a_result(text: str, *, is_error: bool = True) -> SimpleNamespace:
    return SimpleNamespace(is_error=is_error, content=[SimpleNamespace(text=text)])


@pytest.mark.parametrize("text", REPORTS)
def test_results_of_the_common_servers_that_contradict_the_listing_are_recognised(text: str) -> None:
    assert contradicts_listing(a_result(text))
    assert not contradicts_listing(a_result(text, is_error=False))


@pytest.mark.parametrize(
    "text", ["", "no city of that name", "file not found", f"{'x' * 300} Unknown tool: echo", f"tool{'l' * 10**6}"]
)
def test_other_failures_of_a_tool_do_not_contradict_the_listing(text: str) -> None:
    assert not contradicts_listing(a_result(text))


@pytest.mark.parametrize("content", [[], [SimpleNamespace()]])
def test_a_result_without_text_does_not_contradict_the_listing(content: list[object]) -> None:
    assert not contradicts_listing(SimpleNamespace(is_error=True, content=content))


type Execute = Callable[..., Awaitable[Any]]


async def run(execute: Execute, heard: Heard, **options: Any) -> Any:
    with entered(CallScope(operations=Operations(heard, {"tools"}))):
        return await execute_on_server(execute, MCPAggregator)(object(), "tools", "tools/call", "add", **options)


@pytest.mark.parametrize(
    ("execute", "ok"), [(fine, True), (an_error_result, False), (made_a_result_of_an_error, False)]
)
async def test_the_outcome_is_what_came_of_it(execute: Execute, ok: bool) -> None:
    heard = Heard()
    await run(execute, heard, error_factory=lambda message: SimpleNamespace(description=message))
    assert heard.operations == [("tools", "tool", ok)]
    assert heard.seconds[0] >= 0


async def test_an_exception_goes_on_and_is_an_error() -> None:
    heard = Heard()
    with pytest.raises(ConnectionError):
        await run(raising, heard)
    assert heard.operations == [("tools", "tool", False)]


@dataclass
class Trouble:
    """An `on_trouble` that keeps what it is told."""

    reported: list[tuple[str, bool]] = field(default_factory=list)

    def __call__(self, server: str, *, is_outdated: bool) -> None:
        self.reported.append((server, is_outdated))


async def contradicting(*_: object, **options: Any) -> object:
    return a_result("Unknown tool: add")


@pytest.mark.parametrize(
    ("execute", "reported"),
    [
        (fine, []),
        (an_error_result, [("tools", False)]),
        (contradicting, [("tools", True)]),
        (made_a_result_of_an_error, [("tools", True)]),
    ],
)
async def test_error_is_reported_with_its_possible_reason(execute: Execute, reported: list[tuple[str, bool]]) -> None:
    trouble = Trouble()
    with entered(CallScope(operations=Operations(Heard(), {"tools"}, trouble))):
        await execute_on_server(execute, MCPAggregator)(object(), "tools", "tools/call", "add", error_factory=str)
    assert trouble.reported == reported


async def test_notified_change_is_reported_before_it_is_handled() -> None:
    trouble, handled = Trouble(), []

    async def handle(_: object, server: str, event: str) -> None:
        handled.append((server, event, len(trouble.reported)))

    with entered(CallScope(operations=Operations(Heard(), {"tools"}, trouble))):
        await handle_change(handle, MCPAggregator)(SimpleNamespace(), "tools", "changed")
    await handle_change(handle, MCPAggregator)(SimpleNamespace(), "tools", "outside a call")
    assert trouble.reported == [("tools", True)]
    assert handled == [("tools", "changed", 1), ("tools", "outside a call", 1)]


async def test_changes_during_a_refresh_cause_one_more_and_end_with_a_refresh_that_takes_too_long() -> None:
    trouble, gate, refreshed, aggregator = Trouble(), Gate(), [], SimpleNamespace()

    async def handle(_: object, server: str) -> None:
        refreshed.append(server)
        await (gate.enter() if len(refreshed) < 3 else asyncio.Event().wait())

    changed = handle_change(handle, MCPAggregator)
    with entered(CallScope(operations=Operations(Heard(), {"tools"}, trouble, refresh_seconds=0.05))):
        first = asyncio.create_task(changed(aggregator, "tools"))
        await gate.wait_for_entered()
        for _ in range(1000):
            await changed(aggregator, "tools")
        gate.open()
        await first
        assert refreshed == ["tools"] * 2
        await changed(aggregator, "tools")
    assert refreshed == ["tools"] * 3
    assert len(trouble.reported) == 3


async def test_a_cancelled_operation_is_an_error() -> None:
    heard, gate = Heard(), Gate()

    async def held(*_: object, **options: Any) -> None:
        await gate.enter()

    running = asyncio.create_task(run(held, heard))
    await gate.wait_for_entered()
    await cancelled(running)
    assert heard.operations == [("tools", "tool", False)]


async def test_fast_agent_is_called_and_answers_as_ever() -> None:
    heard = Heard()
    assert await run(fine, heard) == "fine []"
    execute = execute_on_server(fine, MCPAggregator)
    assert await execute(object(), "tools", "tools/call", "add", error_factory=str) == "fine ['error_factory']"
    assert len(heard.operations) == 1  # outside the block there is nobody to tell
