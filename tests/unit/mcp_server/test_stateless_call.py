"""Calls of the initialize era: what is sent is what the SDK's own transport sends; a client may leave at any time."""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import pytest
from mcp_types import JSONRPCRequest
from starlette.requests import Request

from pallas_gateway.health.verdict import Verdict
from pallas_gateway.hosting.hosted_agent import HostedAgent
from pallas_gateway.hosting.parts import ProcessParts
from pallas_gateway.identity.caller import ANONYMOUS, CALLER_KEY
from pallas_gateway.mcp_server import endpoint, stateless_call
from pallas_gateway.mcp_server.agent_server import AgentServer, ServerInfo
from pallas_gateway.mcp_server.envelope import McpRequest
from pallas_gateway.tasks import TaskOwner
from tests.support.hosted import ready
from tests.support.memory_runtime import MemoryAgent, tell_a_turn
from tests.support.waiting import Gate, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

CALL: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
HELLO = {"name": "send_message", "arguments": {"message": "h\u00e9llo \u2028 \n you"}, "_meta": {"progressToken": "p"}}
HEADERS = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
REQUESTS: dict[str, tuple[Any, Mapping[str, str]]] = {
    "a call": ({**CALL, "params": HELLO}, {}),
    "an id of letters": ({**CALL, "id": "seven", "params": HELLO}, {"mcp-protocol-version": "2025-06-18"}),
    "the newest of the era": ({**CALL, "params": HELLO}, {"mcp-protocol-version": "2025-11-25"}),
    "a refused call": ({**CALL, "params": {"name": "echo", "arguments": {"massage": "hello"}}}, {}),
    "another tool": ({**CALL, "params": {"name": "get_health"}}, {}),
    "no such tool": ({**CALL, "params": {"name": "dance"}}, {}),
    "malformed parameters": ({**CALL, "params": {"name": 3}}, {}),
    "no parameters": (CALL, {}),
    "no id": ({"jsonrpc": "2.0", "method": "tools/call", "params": HELLO}, {}),
    "an id that is none": ({**CALL, "id": 1.5, "params": HELLO}, {}),
    "a batch": ([{**CALL, "params": HELLO}], {}),
    "no JSON": (b'{"method": "tools/call"', {}),
    "another method that names it": ({**CALL, "method": "ping", "params": {"_meta": {"x": "tools/call"}}}, {}),
    "accepts JSON only": ({**CALL, "params": HELLO}, {"accept": "application/json"}),
    "of another type": ({**CALL, "params": HELLO}, {"content-type": "text/plain"}),
    "with a charset": ({**CALL, "params": HELLO}, {"content-type": "application/json; charset=utf-8"}),
    "of an unknown version": ({**CALL, "params": HELLO}, {"mcp-protocol-version": "1999-01-01"}),
}


@pytest.mark.parametrize("what", REQUESTS)
async def test_everything_is_answered_as_the_sdk_does(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    content, headers = REQUESTS[what]
    async with serving(MemoryAgent(tells=tell_a_turn)) as server:
        ours = await Http(content, headers).answered_by(server)
        monkeypatch.setattr(stateless_call, "may_be_call", lambda _: False)
        theirs = await Http(content, headers).answered_by(server)

    assert ours == theirs


async def test_client_that_leaves_cancels_its_call_and_hears_no_more() -> None:
    agent = MemoryAgent(answering=Gate())
    async with serving(agent) as server:
        http = Http({**CALL, "params": HELLO}, {})
        answering = asyncio.create_task(http.answered_by(server))
        assert agent.answering is not None
        await agent.answering.wait_for_entered()
        http.gone.set()
        await answering
        await eventually(lambda: agent.disposed == 1, what="the instance gone")

    assert [message["type"] for message in http.sent] == ["http.response.start"]
    assert agent.answering.cancelled == [HELLO["arguments"]["message"]]  # type: ignore[index]


@pytest.mark.parametrize("way", ["receive", "send"])
@pytest.mark.parametrize(
    ("trouble", "said"),
    [
        (ConnectionResetError("reset by peer"), []),
        (TimeoutError("the peer does not acknowledge"), []),
        (LookupError("nobody foresaw this"), ["client of a call can be watched no longer, the call ends"]),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_client_that_can_be_watched_no_longer_counts_as_one_that_left(
    trouble: Exception, said: list[str], way: str, caplog: pytest.LogCaptureFixture
) -> None:
    agent = MemoryAgent(answering=Gate())
    async with serving(agent) as server:
        server.endpoint.ping_seconds = 0.01 if way == "send" else 3600
        http = Http({**CALL, "params": HELLO}, {})
        answering = asyncio.create_task(http.answered_by(server))
        assert agent.answering is not None
        await agent.answering.wait_for_entered()
        http.troubles[way] = trouble
        if way == "receive":
            http.gone.set()
        await answering
        await eventually(lambda: agent.disposed == 1, what="the instance gone")

    assert all(message["more_body"] for message in http.sent[1:])
    assert agent.answering.cancelled == [HELLO["arguments"]["message"]]  # type: ignore[index]
    failures = [record for record in caplog.records if record.exc_info]
    assert [(record.name, record.message) for record in failures] == [("pallas.agent_server", text) for text in said]
    assert [record.exc_info[1] for record in failures if record.exc_info] == [trouble for _ in said]


async def test_a_notification_without_parameters_is_sent_without_the_member() -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    request = Request({"type": "http", "headers": []})
    context = stateless_call._Context(JSONRPCRequest(**CALL), request, send, expect=lambda _: nullcontext())  # type: ignore[arg-type,return-value]
    await context.notify("notifications/tools/list_changed", None)
    data = sent[0]["body"].decode().partition("data: ")[2]
    assert json.loads(data) == {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}


async def test_silent_stream_is_kept_alive_with_comments() -> None:
    agent = MemoryAgent(answering=Gate())
    async with serving(agent) as server:
        server.endpoint.ping_seconds = 0.01
        http = Http({**CALL, "params": HELLO}, {})
        answering = asyncio.create_task(http.answered_by(server))
        await eventually(lambda: len(http.sent) > 2, what="two comments")
        assert agent.answering is not None
        agent.answering.open()
        await answering

    assert re.fullmatch(rb": ping - \d{4}-\d\d-\d\d [\d:.]+\+00:00\r\n\r\n", http.sent[1]["body"])
    assert http.sent[-1]["body"].startswith(b"event: message\r\n")
    assert [message["more_body"] for message in http.sent[1:]] == [True] * (len(http.sent) - 2) + [False]


async def test_server_that_closes_cuts_off_what_it_answers() -> None:
    agent = MemoryAgent(answering=Gate())
    async with serving(agent) as server:
        answering = asyncio.create_task(Http({**CALL, "params": HELLO}, {}).answered_by(server))
        assert agent.answering is not None
        await agent.answering.wait_for_entered()
        server.endpoint.close()
        await asyncio.wait({answering})
        await server.endpoint.wait_until_idle()

    assert answering.cancelled()


async def test_server_that_closes_cuts_off_a_request_that_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = Gate()
    monkeypatch.setattr(endpoint, "give_way", lambda _: parsed.enter())
    async with serving(MemoryAgent()) as server:
        answering = asyncio.create_task(Http({**CALL, "params": HELLO}, {}).answered_by(server))
        await parsed.wait_for_entered()
        server.endpoint.close()
        await eventually(lambda: server.endpoint._manager._task_group is None, what="a closed server")
        parsed.open()
        await asyncio.wait({answering})

    assert answering.cancelled()


async def test_failure_of_a_handler_is_said_and_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(MemoryAgent(), health_fails=True) as server:
        content = {**CALL, "params": {"name": "get_health"}}
        ours = await Http(content, {}).answered_by(server)
        assert [record.message for record in caplog.records if record.exc_info] == ["a request failed"]
        monkeypatch.setattr(stateless_call, "may_be_call", lambda _: False)
        theirs = await Http(content, {}).answered_by(server)

    assert ours == theirs


class Http:
    """One request over ASGI, and what it was sent."""

    def __init__(self, content: Any, headers: Mapping[str, str]) -> None:
        self._body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.gone = asyncio.Event()
        self.troubles: dict[str, Exception] = {}
        self.sent: list[Any] = []
        raw = [(name.encode(), value.encode()) for name, value in {**HEADERS, **headers}.items()]
        self._scope = {"type": "http", "method": "POST", "path": "/", "headers": raw, CALLER_KEY: ANONYMOUS}

    async def answered_by(self, server: AgentServer) -> tuple[int, dict[bytes, bytes], bytes]:
        """Status, headers and body, without what differs from call to call."""
        async with asyncio.timeout(20):
            await server.endpoint.handle(McpRequest(Request(self._scope, self._receive), self._body), self._send)
        start = self.sent[0]
        body = b"".join(message["body"] for message in self.sent[1:])
        body = re.sub(rb'"(call_id|timestamp)[\\\\]?": ?[\\\\]?"[^"]+"', b"", body)
        return start["status"], dict(start["headers"]), re.sub(rb'"duration_seconds":[\d.e-]+', b"", body)

    async def _receive(self) -> Any:
        await self.gone.wait()
        if "receive" in self.troubles:
            raise self.troubles["receive"]
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if "send" in self.troubles:
            raise self.troubles["send"]
        self.sent.append(message)


@asynccontextmanager
async def serving(agent: MemoryAgent, *, health_fails: bool = False) -> AsyncIterator[AgentServer]:
    async def check(_: HostedAgent) -> Verdict:
        if health_fails:
            raise LookupError("nobody foresaw this")
        return Verdict("ok", None)

    async with ready(agent, heartbeat_seconds=60) as one, TaskOwner() as serving:
        server_info = ServerInfo("1", (), ("send_message", "{agent}"))
        server = AgentServer(
            one.agent,
            server_info=server_info,
            sessions=ProcessParts().sessions,
            check_health=check,
            only_reads=lambda _: True,
        )
        serving.spawn(server.endpoint.run(), name="server")
        yield server
        server.endpoint.close()
