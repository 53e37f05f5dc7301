"""Calls over HTTP: what is sent is what the SDK's own transports send; a client may leave at any time."""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from mcp import MCPError
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import NoBackChannelError
from mcp.shared.message import ServerMessageMetadata
from mcp_types import (
    INVALID_PARAMS,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    CallToolRequestParams,
    CallToolResult,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    InputRequiredResult,
    JSONRPCResponse,
    ProgressNotification,
    ProgressNotificationParams,
    TextContent,
)
from starlette.requests import Request

from pallas_gateway.core.health.verdict import Verdict
from pallas_gateway.core.hosted_agent import HostedAgent
from pallas_gateway.core.parts import ProcessParts
from pallas_gateway.doors.mcp import endpoint, exchange
from pallas_gateway.doors.mcp.agent_server import AgentServer, ServerInfo
from pallas_gateway.doors.mcp.endpoint import McpEndpoint
from pallas_gateway.doors.mcp.envelope import McpRequest
from pallas_gateway.doors.mcp.rounds import Round, sealing
from pallas_gateway.identity.caller import ANONYMOUS, CALLER_KEY
from pallas_gateway.tasks import TaskOwner
from tests.support.clients import MODERN_VERSION
from tests.support.hosted import ready
from tests.support.memory_runtime import MemoryAgent, tell_a_turn
from tests.support.waiting import Gate, eventually

type Sent = tuple[Any, Mapping[str, str]]
"""A body, and headers."""
CALL: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
HELLO = {"name": "send_message", "arguments": {"message": "h\u00e9llo \u2028 \n you"}, "_meta": {"progressToken": "p"}}
HEADERS = {"accept": "application/json, text/event-stream", "content-type": "application/json"}


def nested(depth: int) -> Any:
    value: Any = "deep"
    for _ in range(depth):
        value = [value]
    return value


REQUESTS: dict[str, Sent] = {
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
    "a state of no meaning": ({**CALL, "params": {**HELLO, "requestState": "other.state"}}, {}),
}
PLAIN = {"name": "send_message", "arguments": HELLO["arguments"]}
VERSION, CAPABILITIES, INFO, LEVEL = (
    f"io.modelcontextprotocol/{name}" for name in ("protocolVersion", "clientCapabilities", "clientInfo", "logLevel")
)
PAIR: dict[str, Any] = {VERSION: MODERN_VERSION, CAPABILITIES: {}}
ROUTING = {"mcp-protocol-version": MODERN_VERSION, "mcp-method": "tools/call", "mcp-name": "send_message"}


def modern(params: Mapping[str, Any] = PLAIN, meta: Mapping[str, Any] = PAIR, **changes: Any) -> dict[str, Any]:
    """A call of 2026-07-28."""
    return {**CALL, "params": {**params, "_meta": meta}, **changes}


OLDER: Sent = ({**CALL, "params": HELLO}, {})
ERAS = pytest.mark.parametrize("call", [OLDER, (modern(), ROUTING)], ids=["initialize", MODERN_VERSION])
BY_US: dict[str, Sent] = {
    "plain": (modern(), {}),
    "with the client's name": (modern(meta={**PAIR, INFO: {"name": "c", "version": "1"}}), {}),
    "of a malformed client": (modern(meta={**PAIR, INFO: 3, CAPABILITIES: [1]}), {}),
    "of a client without capabilities": (modern(meta={**PAIR, CAPABILITIES: None}), {}),
    "with progress": (modern(meta={**PAIR, "progressToken": "p"}), {}),
    "with a token that is none": (modern(meta={**PAIR, "progressToken": True}), {}),
    "with messages": (modern(meta={**PAIR, LEVEL: "info", "progressToken": 7}), {}),
    "with a level that is none": (modern(meta={**PAIR, LEVEL: "loud"}), {}),
    "with half a surrogate pair": (modern(id="\ud83d"), {}),
    "in UTF-16": (json.dumps(modern(id="\u20ac")).encode("utf-16"), {}),
    "with a byte order mark": (b"\xef\xbb\xbf" + json.dumps(modern()).encode(), {}),
    "an escaped method": (json.dumps(modern()).replace("tools/call", "tools\\/call").encode(), {}),
    "an id of letters": (modern(id="seven"), {}),
    "a huge id": (modern(id=-(10**40)), {}),
    "a repeated key": (json.dumps(modern())[:-1].encode() + b', "id": 2}', {}),
    "nested deeply": (modern({**PLAIN, "arguments": {"message": nested(150)}}), {}),
    "nested more deeply": (modern({**PLAIN, "arguments": {"message": nested(900)}}), {}),
    "no such tool": (modern({"name": "dance"}), {"mcp-name": "dance"}),
    "another tool": (modern({"name": "get_health", "arguments": None}), {"mcp-name": "get_health"}),
    "a refused call": (modern({**PLAIN, "arguments": {"massage": "hello"}}), {}),
    "arguments of another type": (modern({**PLAIN, "arguments": "hello"}), {}),
    "no name": (modern({}), {}),
    "a name of another type": (modern({**PLAIN, "name": None}), {}),
    "a state that is none": (modern({**PLAIN, "requestState": 3}), {}),
    "null for a state": (modern({**PLAIN, "requestState": None, "inputResponses": None}), {}),
    "a state of no process": (modern({**PLAIN, "requestState": "forged"}), {}),
    "a state of another process": (modern({**PLAIN, "requestState": "other.forged"}), {}),
    "answers without a state": (modern({**PLAIN, "inputResponses": {"q": {"action": "accept"}}}), {}),
    "malformed answers": (modern({**PLAIN, "inputResponses": {"q": 3}}), {}),
    "an encoded name": (modern(), {"mcp-name": "=?base64?c2VuZF9tZXNzYWdl?="}),
    "headers of arguments": (modern(), {"mcp-param-message": "other", "mcp-param-x": "y"}),
    "of a longer type": (modern(), {"content-type": "Application/JSON-seq"}),
    "accepts anything": (modern(), {"accept": "*/*"}),
}
BY_THE_SDK: dict[str, Sent] = {
    "accepts events only": (modern(), {"accept": "text/event-stream"}),
    "accepts nothing": (modern(), {"accept": "image/png"}),
    "text": (modern(), {"content-type": "text/plain"}),
    "no id": ({name: value for name, value in modern().items() if name != "id"}, {}),
    "a fraction": (modern(id=1.5), {}),
    "null for an id": (modern(id=None), {}),
    "true for an id": (modern(id=True), {}),
    "null for parameters": (modern() | {"params": None}, {}),
    "a list of parameters": (modern() | {"params": []}, {}),
    "an id with too many digits": (json.dumps(modern()).replace('"id": 1', f'"id": {"1" * 5000}').encode(), {}),
    "a batch": ([modern()], {}),
    "another JSON-RPC": (modern(jsonrpc="1.0"), {}),
    "not JSON": (b"tools/call", {}),
    "not UTF-8": (json.dumps(modern(id="seven")).replace("seven", "\xff").encode("latin-1"), {}),
    "too deep": (b'{"method": "tools/call", "params": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", {}),
    "no _meta": ({**CALL, "params": PLAIN}, {}),
    "no version": (modern(meta={CAPABILITIES: {}}), {}),
    "no capabilities": (modern(meta={VERSION: MODERN_VERSION}), {}),
    "another version": (modern(meta={**PAIR, VERSION: "2025-11-25"}), {}),
    "an unknown version": (modern(meta={**PAIR, VERSION: "2099-01-01"}), {"mcp-protocol-version": "2099-01-01"}),
    "another method in the header": (modern(), {"mcp-method": "tools/list"}),
    "another name in the header": (modern(), {"mcp-name": "get_health"}),
    "a malformed name in the header": (modern(), {"mcp-name": "=?base64?c2?="}),
    "a name twice": (modern(), {"Mcp-Name": "send_message"}),
    "a version twice": (modern(), {"MCP-Protocol-Version": MODERN_VERSION}),
    "another method": (modern() | {"method": "tools/list"}, {"mcp-method": "tools/list"}),
    "an unknown method": (modern() | {"method": "tools/dance"}, {"mcp-method": "tools/dance"}),
}


@pytest.mark.parametrize("what", REQUESTS)
async def test_everything_is_answered_as_the_sdk_does(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    content, headers = REQUESTS[what]
    async with serving(MemoryAgent(tells=tell_a_turn)) as server:
        ours = await Http(content, headers).answered_by(server.endpoint)
        monkeypatch.setattr(exchange, "tool_call", lambda _: None)
        theirs = await Http(content, headers).answered_by(server.endpoint)

    assert ours == theirs


@pytest.mark.parametrize("what", [*BY_US, *BY_THE_SDK])
async def test_everything_of_2026_07_28_is_answered_as_the_sdk_does(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    content, headers = {**BY_US, **BY_THE_SDK}[what]
    async with serving(MemoryAgent(tells=tell_a_turn)) as server:
        http = Http(content, {**ROUTING, **headers})
        ours, is_ours = await http.answered_by(server.endpoint), exchange.tool_call(http.request) is not None
        monkeypatch.setattr(exchange, "tool_call", lambda _: None)
        theirs = await Http(content, {**ROUTING, **headers}).answered_by(server.endpoint)

    assert ours == theirs
    assert is_ours == (what in BY_US)


@ERAS
async def test_client_that_leaves_cancels_its_call_and_hears_no_more(call: Sent) -> None:
    agent = MemoryAgent(answering=(gate := Gate()))
    async with serving(agent) as server:
        http = Http(*call)
        answering = asyncio.create_task(http.answered_by(server.endpoint))
        await gate.wait_for_entered()
        http.gone.set()
        await answering
        await eventually(lambda: agent.disposed == 1, what="the instance gone")

    assert not answering.cancelling()
    assert [message["type"] for message in http.sent] == (["http.response.start"] if call is OLDER else [])
    assert gate.cancelled == [HELLO["arguments"]["message"]]  # type: ignore[index]


@ERAS
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
    call: Sent, trouble: Exception, said: list[str], way: str, caplog: pytest.LogCaptureFixture
) -> None:
    agent = MemoryAgent(answering=(gate := Gate()))
    async with serving(agent) as server:
        server.endpoint.ping_seconds = 0.01 if way == "send" else 3600
        http = Http(*call)
        answering = asyncio.create_task(http.answered_by(server.endpoint))
        await gate.wait_for_entered()
        http.troubles[way] = trouble
        if way == "receive":
            http.gone.set()
        await answering
        await eventually(lambda: agent.disposed == 1, what="the instance gone")

    assert all(message["more_body"] for message in http.sent[1:])
    assert gate.cancelled == [HELLO["arguments"]["message"]]  # type: ignore[index]
    failures = [record for record in caplog.records if record.exc_info]
    assert [(record.name, record.message) for record in failures] == [("pallas.responses", text) for text in said]
    assert [record.exc_info[1] for record in failures if record.exc_info] == [trouble for _ in said]


@ERAS
async def test_silent_stream_is_kept_alive_with_comments(call: Sent) -> None:
    agent = MemoryAgent(answering=(gate := Gate()))
    async with serving(agent) as server:
        server.endpoint.ping_seconds = 0.01
        http = Http(*call)
        answering = asyncio.create_task(http.answered_by(server.endpoint))
        await eventually(lambda: len(http.sent) > 2, what="two comments")
        gate.open()
        await answering

    comment = rb": ping - \d{4}-\d\d-\d\d [\d:.]+\+00:00\r\n\r\n" if call is OLDER else rb": ping\r\n\r\n"
    assert re.fullmatch(comment, http.sent[1]["body"])
    assert http.sent[-1]["body"].startswith(b"event: message\r\n")
    assert [message["more_body"] for message in http.sent[1:]] == [True] * (len(http.sent) - 2) + [False]


async def test_a_silence_before_the_answer_of_2026_07_28_is_ended_as_the_sdk_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mcp.server._streamable_http_modern._SSE_PING_INTERVAL", 0.01)
    sent = []
    for by_sdk in (False, True):
        agent = MemoryAgent(answering=(gate := Gate()))
        async with serving(agent) as server:
            server.endpoint.ping_seconds = 0.01
            if by_sdk:
                monkeypatch.setattr(exchange, "tool_call", lambda _: None)
            http = Http(modern(), ROUTING)
            answering = asyncio.create_task(http.answered_by(server.endpoint))
            await eventually(lambda: len(http.sent) > 1, what="a comment")  # noqa: B023
            gate.open()
            status, headers, body = await answering
            sent.append((status, headers, re.sub(rb"(: ping\r\n\r\n)+", b"comments", body)))

    assert sent[0] == sent[1]
    assert sent[0][2].startswith(b"comments")


@pytest.mark.parametrize("waits_in", ["start", "body"])
async def test_answer_comes_after_the_comment_that_is_being_sent(waits_in: str) -> None:
    agent = MemoryAgent(answering=(gate := Gate()))
    async with serving(agent) as server:
        server.endpoint.ping_seconds = 0.01
        http = Http(modern(), ROUTING)
        http.slow = f"http.response.{waits_in}", Gate()
        answering = asyncio.create_task(http.answered_by(server.endpoint))
        await http.slow[1].wait_for_entered()
        gate.open()
        await eventually(lambda: agent.disposed == 1, what="an answered call")
        http.slow[1].open()
        await answering

    begin, *comments, last = http.sent
    assert begin["type"] == "http.response.start"
    assert {message["body"] for message in comments} == {b": ping\r\n\r\n"}
    assert last["body"].startswith(b"event: ")


@pytest.mark.parametrize("has_begun", [False, True])
async def test_no_comment_comes_into_the_last_message_or_after_it(*, has_begun: bool) -> None:
    http = Http(modern(), ROUTING)
    client = exchange._Client(http._receive, http._send, 0, is_modern=True)
    if has_begun:
        await client.begin()
    http.slow = f"http.response.{'body' if has_begun else 'start'}", Gate()

    async def end() -> None:
        async with client.watched():
            await client.end_with(JSONRPCResponse(jsonrpc="2.0", id=1, result={}))

    ending = asyncio.create_task(end())
    await http.slow[1].wait_for_entered()
    client.keep_alive()
    for _ in range(20):
        await asyncio.sleep(0)
    http.slow[1].open()
    await ending

    assert [message["type"] for message in http.sent] == ["http.response.start", "http.response.body"]
    assert http.sent[1]["body"].endswith(b"}\r\n\r\n" if has_begun else b"}")


@pytest.mark.parametrize(
    ("state", "is_modern", "process"),
    [("a.b.c", True, "a"), (".b", True, ""), ("forged", True, None), (3, True, None), ("a.b", False, None)],
)
def test_a_call_names_the_process_of_the_call_that_it_continues(
    state: object, process: str | None, *, is_modern: bool
) -> None:
    params = {**PLAIN, "requestState": state}
    http = Http(modern(params), ROUTING) if is_modern else Http({**CALL, "params": params}, {})
    call = exchange.tool_call(http.request)
    assert call is not None
    assert call.process == process


@pytest.mark.parametrize(
    "call",
    [
        ({**CALL, "params": {**PLAIN, "arguments": {"message": "reply"}}}, {"mcp-session-id": "session.f"}),
        (modern({**PLAIN, "arguments": {"message": "reply"}}), ROUTING),
    ],
    ids=["initialize", MODERN_VERSION],
)
async def test_nothing_is_sent_after_the_answer(call: Sent) -> None:
    http = Http(*call)
    async with serving_script() as endpoint:
        await http.answered_by(endpoint)
    sent = len(http.sent)
    context = CONTEXTS.pop()
    await context.session.send_notification(PROGRESS, context.request_id)
    with pytest.raises(NoBackChannelError):
        await context.session.send_request(
            QUESTION, ElicitResult, metadata=ServerMessageMetadata(related_request_id=context.request_id)
        )
    assert len(http.sent) == sent


@ERAS
async def test_server_that_closes_cuts_off_what_it_answers(call: Sent) -> None:
    agent = MemoryAgent(answering=(gate := Gate()))
    async with serving(agent) as server:
        answering = asyncio.create_task(Http(*call).answered_by(server.endpoint))
        await gate.wait_for_entered()
        server.endpoint.close()
        await asyncio.wait({answering})
        await server.endpoint.wait_until_idle()

    assert answering.cancelled()


async def test_server_that_closes_cuts_off_a_request_that_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = Gate()
    monkeypatch.setattr(endpoint, "give_way", lambda _: parsed.enter())
    async with serving(MemoryAgent()) as server:
        answering = asyncio.create_task(Http({**CALL, "params": HELLO}, {}).answered_by(server.endpoint))
        await parsed.wait_for_entered()
        server.endpoint.close()
        await eventually(lambda: server.endpoint._manager._task_group is None, what="a closed server")
        parsed.open()
        await asyncio.wait({answering})

    assert answering.cancelled()


@pytest.mark.parametrize(
    ("call", "logged"),
    [
        (({**CALL, "params": {"name": "get_health"}}, {}), ["a request failed"]),
        ((modern({"name": "get_health"}), {**ROUTING, "mcp-name": "get_health"}), ["modern request handler raised"]),
    ],
    ids=["initialize", MODERN_VERSION],
)
async def test_failure_of_a_handler_is_said_and_logged(
    call: Sent, logged: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(MemoryAgent(), health_fails=True) as server:
        ours = await Http(*call).answered_by(server.endpoint)
        assert [record.message for record in caplog.records if record.exc_info] == logged
        monkeypatch.setattr(exchange, "tool_call", lambda _: None)
        theirs = await Http(*call).answered_by(server.endpoint)

    assert ours == theirs


QUESTION = ElicitRequest(
    params=ElicitRequestFormParams(message="Who?", requested_schema={"type": "object", "properties": {}})
)
PROGRESS = ProgressNotification(params=ProgressNotificationParams(progress_token="p", progress=1))
CONTEXTS: list[Any] = []
"""Of the calls of the scripted tool."""
ADA = {"action": "accept", "content": {"name": "Ada"}}


ENDS: dict[str, Any] = {
    "reply": CallToolResult(content=[TextContent(type="text", text="h\u00e9llo \u2028 \n you")], meta={"a": None}),
    "notify": CallToolResult(content=[], is_error=True),
    "notify and refuse": MCPError(-32010, "No \u20ac", {"why": None}),
    "refuse": MCPError(-32010, "No \u20ac", {"why": None}),
    "invalid": MCPError(INVALID_PARAMS, "No such thing"),
    "capability": MCPError(MISSING_REQUIRED_CLIENT_CAPABILITY, "Cannot be asked"),
    "fail": LookupError("nobody foresaw this"),
    "ask back": None,
    "tell the client": None,
    "malformed": {"content": 3},
    "of another type": {"resultType": "io.other/claimed", "more": None, "text": "\ud83d"},
    "ask": InputRequiredResult(input_requests={"who": QUESTION}, request_state="place \u20ac"),
    "ask without a state": InputRequiredResult(input_requests={"who": QUESTION}),
}


async def scripted(context: Any, params: CallToolRequestParams) -> Any:
    """A tool whose message says how it ends; a call with a state returns the state and its answers."""
    CONTEXTS.append(context)
    if params.request_state is not None:
        given = Round.of(context, params)
        return CallToolResult(content=[TextContent(type="text", text=f"{given.state} {given.answers}")])
    deed = str((params.arguments or {})["message"])
    if deed.startswith("notify"):
        await context.session.send_notification(PROGRESS, context.request_id)
    if deed == "tell the client":
        told = f"{context.session.client_params} {context.session.client_capabilities} {context.meta}"
        return CallToolResult(content=[TextContent(type="text", text=told)])
    if deed == "ask back":
        metadata = ServerMessageMetadata(related_request_id=context.request_id)
        await context.session.send_request(QUESTION, ElicitResult, metadata=metadata)
    if isinstance(end := ENDS[deed], Exception):
        raise end
    return end


@asynccontextmanager
async def serving_script() -> AsyncIterator[McpEndpoint]:
    sessions = ProcessParts().sessions
    server: Server[Any] = Server("scripted", on_call_tool=scripted)
    server.middleware.append(sealing(sessions.waiting_calls, "scripted"))
    served = McpEndpoint(server, "scripted", sessions)
    async with TaskOwner() as serving:
        serving.spawn(served.run(), name="server")
        yield served
        served.close()


def deed(message: str, **more: Any) -> dict[str, Any]:
    """A call of the scripted tool by a client that can be asked."""
    params = {**PLAIN, "arguments": {"message": message}, **more}
    return modern(params, {**PAIR, INFO: {"name": "c", "version": "1"}, CAPABILITIES: {"elicitation": {"form": {}}}})


SEALED = re.compile(rb'"requestState":"[^"]+"')


@pytest.mark.parametrize("what", ENDS)
async def test_each_end_of_a_tool_is_said_as_the_sdk_does(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving_script() as endpoint:
        call = deed(what), {**ROUTING, "mcp-session-id": "session.f"}
        status, headers, body = await Http(*call).answered_by(endpoint)
        monkeypatch.setattr(exchange, "tool_call", lambda _: None)
        theirs = await Http(*call).answered_by(endpoint)

    assert (status, headers, SEALED.sub(b"", body)) == (*theirs[:2], SEALED.sub(b"", theirs[2]))
    assert len(SEALED.findall(body)) == (what == "ask")


@pytest.mark.parametrize("asked_by_sdk", [False, True])
@pytest.mark.parametrize(
    ("changes", "later", "said"),
    [
        ({"inputResponses": {"who": ADA}}, 0, b"place \\u20ac {'who': Answer("),
        ({}, 0, b"place \\u20ac {}"),
        ({"inputResponses": {"who": {"action": "dance"}}}, 0, b"Invalid request parameters"),
        (
            {"inputResponses": {"who": {"content": [], "role": "user", "model": "m"}}},
            0,
            b"is no answer to an elicitation",
        ),
        ({"inputResponses": {"who": ADA | {"content": {"name": "a" * 70_000}}}}, 0, b"Send a shorter answer"),
        ({"inputResponses": {f"q{number}": ADA for number in range(100)}}, 0, b"open questions"),
        ({"arguments": {"message": "another"}}, 0, b"Invalid or expired requestState"),
        ({}, 100_000, b"Invalid or expired requestState"),
    ],
    ids=lambda value: repr(value)[:30],
)
async def test_a_sealed_state_is_continued_as_the_sdk_does(
    changes: dict[str, Any], later: int, said: bytes, monkeypatch: pytest.MonkeyPatch, *, asked_by_sdk: bool
) -> None:
    async with serving_script() as endpoint:
        with monkeypatch.context() as patched:
            if asked_by_sdk:
                patched.setattr(exchange, "tool_call", lambda _: None)
            _, _, asked = await Http(deed("ask"), ROUTING).answered_by(endpoint)
        again = deed("ask", requestState=json.loads(asked)["result"]["requestState"], **changes)
        now = time.time()
        monkeypatch.setattr("mcp.server.request_state.time", SimpleNamespace(time=lambda: now + later))
        ours = await Http(again, ROUTING).answered_by(endpoint)
        monkeypatch.setattr(exchange, "tool_call", lambda _: None)
        theirs = await Http(again, ROUTING).answered_by(endpoint)

    assert ours == theirs
    assert said in ours[2]


class Http:
    """One request over ASGI, and what it was sent."""

    def __init__(self, content: Any, headers: Mapping[str, str]) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.gone = asyncio.Event()
        self.troubles: dict[str, Exception] = {}
        self.slow: tuple[str, Gate] | None = None  # the type of messages that a slow client holds up
        self.sent: list[Any] = []
        raw = [(name.lower().encode(), value.encode()) for name, value in {**HEADERS, **headers}.items()]
        scope = {"type": "http", "method": "POST", "path": "/", "headers": raw, CALLER_KEY: ANONYMOUS}
        self.request = McpRequest(Request(scope, self._receive), body)

    async def answered_by(self, endpoint: McpEndpoint) -> tuple[int, dict[bytes, bytes], bytes]:
        """Status, headers and body, without what differs from call to call."""
        async with asyncio.timeout(20):
            await endpoint.handle(self.request, self._send)
        start: Any = self.sent[0] if self.sent else {"status": 0, "headers": []}
        body, headers = b"".join(message["body"] for message in self.sent[1:]), dict(start["headers"])
        assert headers.pop(b"content-length", b"%d" % len(body)) == b"%d" % len(body)  # durations differ in length
        body = re.sub(rb'"(call_id|timestamp)[\\\\]?": ?[\\\\]?"[^"]+"', b"", body)
        return start["status"], headers, re.sub(rb'"duration_seconds":[\d.e-]+', b"", body)

    async def _receive(self) -> Any:
        await self.gone.wait()
        if "receive" in self.troubles:
            raise self.troubles["receive"]
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if "send" in self.troubles:
            raise self.troubles["send"]
        if self.slow is not None and self.slow[0] == message["type"]:
            await self.slow[1].enter()
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
