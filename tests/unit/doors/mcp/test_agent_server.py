"""The two ends of a client's request: what it is told and in which form, and what becomes of the call when it goes."""

import asyncio
import io
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest
from mcp_types import CallToolRequestParams, CallToolResult

from pallas_gateway.calls.events.queue import StreamOptions
from pallas_gateway.core.parts import LogLevels, ProcessParts
from pallas_gateway.doors.mcp.agent_server import AgentServer, ServerInfo
from pallas_gateway.doors.mcp.envelope import cancel_request
from pallas_gateway.doors.mcp.notifications import stream_options_of
from pallas_gateway.doors.mcp.tools import clamped_to_bytes
from pallas_gateway.identity.caller import ANONYMOUS, CALLER_KEY, Caller
from pallas_gateway.identity.grants import Grants
from pallas_gateway.telemetry.logs import CallFields, JsonFormatter
from tests.support.clients import MODERN_VERSION
from tests.support.hosted import pending
from tests.support.memory_runtime import MemoryAgent
from tests.support.waiting import Gate

OLDER, MODERN = "2025-11-25", MODERN_VERSION
LEVEL = "io.modelcontextprotocol/logLevel"


class Session:
    """A client's response stream."""

    can_send_request = False

    def __init__(self) -> None:
        self.sent: list[tuple[Any, object]] = []

    async def send_notification(self, notification: Any, related_request_id: object) -> None:
        self.sent.append((notification.model_dump(mode="json", by_alias=True, exclude_none=True), related_request_id))


def request(version: str, meta: Mapping[str, Any] | None = None, **headers: str) -> Any:
    """What the SDK tells of one request."""
    http = SimpleNamespace(
        headers={name.replace("_", "-"): value for name, value in headers.items()}, scope={CALLER_KEY: ANONYMOUS}
    )
    return SimpleNamespace(session=Session(), request_id=7, meta=meta, protocol_version=version, request=http)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", ""),
        ("Finds out.", "Finds out."),
        ("On two\n  lines.", "On two lines."),
        ("x" * 20, "x" * 20),
        ("x" * 21, "x" * 14 + "…"),
        ("one two three four five", "one two three…"),
        ("日本語の説明", "日本…"),
        ('"quoted" \\ and more', '"quoted" \\…'),
    ],
)
def test_a_text_is_clamped_to_whole_words_and_the_bytes_of_its_json(text: str, shown: str) -> None:
    assert clamped_to_bytes(text, 20) == shown
    assert len(json.dumps(shown)) <= 20 + len('""')


@pytest.mark.parametrize(
    ("version", "meta", "wishes"),
    [
        (OLDER, None, StreamOptions()),
        (OLDER, {"progress_token": "t"}, StreamOptions(progress=True)),
        (OLDER, {"progress_token": 0}, StreamOptions(progress=True)),
        (OLDER, {"pallas/stream": "delta"}, StreamOptions(deltas=True)),
        (OLDER, {"pallas/stream": "everything"}, StreamOptions()),
        (MODERN, {"progress_token": "t"}, StreamOptions(progress=True, messages=False)),
        (MODERN, {"pallas/stream": "delta"}, StreamOptions(messages=False)),
        (MODERN, {"pallas/stream": "delta", LEVEL: "warning"}, StreamOptions(messages=False)),
        (
            MODERN,
            {"pallas/stream": "delta", LEVEL: "info", "progress_token": 1},
            StreamOptions(progress=True, deltas=True),
        ),
    ],
)
def test_a_client_is_told_what_its_request_asks_for(
    version: str, meta: Mapping[str, Any] | None, wishes: StreamOptions
) -> None:
    assert stream_options_of(request(version, meta), LogLevels()) == wishes


class Serving:
    """An agent's MCP server whose calls are held at a gate and take some awaits to clean up."""

    def __init__(self) -> None:
        self.gate = Gate()
        self.memory = MemoryAgent(answering=self.gate)
        one = pending("echo", self.memory)
        self.agent, self.tasks, self.calls, self.sessions = one.agent, one.tasks, one.calls, ProcessParts().sessions
        self.server = AgentServer(
            self.agent,
            server_info=ServerInfo("1.0.0", (), ("send_message",)),
            sessions=self.sessions,
            check_health=cast("Any", None),
            only_reads=lambda _: False,
        )

    async def call(self, context: Any, **arguments: Any) -> CallToolResult:
        sent = {"message": "wait", **arguments}
        params = CallToolRequestParams(name="send_message", arguments=sent)
        result = await self.server._call_tool(context, params)
        assert isinstance(result, CallToolResult)
        return result

    def cancel(self, context: Any, request_id: str | int | None) -> None:
        cancel_request(context, "echo", request_id, self.sessions.cancellations)


async def test_a_client_that_vanishes_cancels_its_call_once_though_its_own_task_is_cancelled_at_every_await() -> None:
    serving = Serving()
    async with serving.tasks, anyio.create_task_group() as group:
        group.start_soon(serving.call, request(MODERN))
        await serving.gate.wait_for_entered()
        group.cancel_scope.cancel()
    await serving.tasks.wait_until_idle()

    assert serving.gate.cancelled == ["wait"]
    assert (serving.memory.opened, serving.memory.disposed, serving.calls.started) == (1, 1, 0)


@pytest.mark.parametrize(
    ("draining", "stop_reason", "says"), [(False, "cancelled", "cancelled"), (True, "stopped", "is stopping")]
)
async def test_a_call_that_is_cancelled_by_others_is_a_sentence_that_says_why(
    draining: bool, stop_reason: str, says: str
) -> None:
    serving = Serving()
    async with serving.tasks:
        calling = asyncio.create_task(serving.call(request(OLDER)))
        await serving.gate.wait_for_entered()
        serving.calls.draining = draining
        await serving.tasks.cancel_all()
        result = await asyncio.wait_for(calling, 20)

    wire = result.model_dump(by_alias=True)
    assert result.is_error
    assert says in wire["content"][0]["text"]
    assert wire["_meta"]["pallas/call"]["stop_reason"] == stop_reason


async def test_a_caller_whom_no_gate_should_have_let_through_is_refused_here() -> None:
    serving = Serving()
    context = request(OLDER)
    context.request.scope[CALLER_KEY] = Caller("ann", grants=Grants.of(["view:agents", "run:agents:other"]))
    async with serving.tasks:
        result = await serving.call(context)
    wire = result.model_dump(by_alias=True)
    assert (wire["isError"], wire["_meta"]["pallas/call"]["stop_reason"]) == (True, "insufficient_scope")
    assert wire["content"][0]["text"] == "You may not call agent 'echo'."
    assert serving.memory.opened == 0


CALLERS_OWN = {"authorization": "Bearer canary-of-ann", "mcp_session_id": "s-1"}
TRACE_ID = "0af7651916cd43dd8448eb211c80319c"


type Logged = Callable[[str], list[dict[str, Any]]]


@pytest.fixture
def logged() -> Iterator[Logged]:
    """The records of a message, as the log file would hold them."""
    stream = io.StringIO()
    handler, log = logging.StreamHandler(stream), logging.getLogger("pallas")
    handler.setFormatter(JsonFormatter())
    handler.addFilter(CallFields())
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    yield lambda message: [one for one in map(json.loads, stream.getvalue().splitlines()) if one["message"] == message]
    log.removeHandler(handler)
    log.setLevel(level)


def a_traced_request() -> Any:
    return request(OLDER, None, traceparent=f"00-{TRACE_ID}-b7ad6b7169203331-01", **CALLERS_OWN)


async def test_what_is_said_of_a_calls_arguments_has_all_its_ids_and_not_its_bearer(logged: Logged) -> None:
    serving = Serving()
    serving.gate.open()
    async with serving.tasks:
        history = [{"role": "canary-of-ann", "content": "hi"}]
        await serving.call(a_traced_request(), history=history, conversation_id="talk")
    [ended], [skipped] = logged("call ended"), logged("history entries skipped")
    for name in ("agent", "call_id", "conversation_id", "trace_id"):
        assert skipped[name] == ended[name]
    assert (skipped["conversation_id"], skipped["trace_id"]) == ("talk", TRACE_ID)
    assert "canary" not in json.dumps(skipped)


async def test_a_call_refused_for_its_arguments_is_known_by_the_conversation_it_names(logged: Logged) -> None:
    serving = Serving()
    for conversation_id in ("talk", 7):
        result = await serving.call(a_traced_request(), message=3, conversation_id=conversation_id)
        known = conversation_id if conversation_id == "talk" else None
        assert (result.meta or {})["pallas/call"]["conversation_id"] == known
        assert logged("call refused")[-1]["conversation_id"] == known


async def test_the_log_line_of_a_cancellation_has_all_ids_of_its_call(logged: Logged) -> None:
    serving = Serving()
    async with serving.tasks:
        calling = asyncio.create_task(serving.call(a_traced_request(), conversation_id="talk"))
        await serving.gate.wait_for_entered()
        serving.cancel(request(OLDER, None, **CALLERS_OWN), 7)
        await asyncio.wait_for(calling, 20)
    [ended], [cancelled] = logged("call ended"), logged("client cancelled a call")
    for name in ("agent", "call_id", "conversation_id", "trace_id"):
        assert cancelled[name] == ended[name]
