"""A session that its server has forgotten is an error of each further request."""

import json
from pathlib import Path
from typing import Any

from tests.support.answering_calls import ITS_ID, CallAnswer, answering_calls
from tests.support.calling import ask
from tests.support.downstreams import stateful_downstream
from tests.support.one_user import use, world

COUNT: tuple[str, dict[str, Any]] = ("counter__count", {})
PLAIN = {"content-type": "text/plain"}


def rpc_error(message: str, code: int = -32600) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": ITS_ID, "error": {"code": code, "message": message}}).encode()


FORGOTTEN = {
    "404 of Python's SDK": CallAnswer(404, rpc_error("Session not found")),
    "404 without words": CallAnswer(404, b"<html></html>", {"content-type": "text/html"}),
    "404 of another error": CallAnswer(404, rpc_error("Not Found")),
    "400 of TypeScript's SDK": CallAnswer(400, rpc_error("Bad Request: No valid session ID provided", -32000)),
    "400 of a new server of that SDK": CallAnswer(400, rpc_error("Bad Request: Server not initialized", -32000)),
    "400 in plain text": CallAnswer(400, b"invalid or expired session", PLAIN),
    "401 of Rust's SDK": CallAnswer(401, b"Unauthorized: Session not found", PLAIN),
    "404 of Python's SDK of 2025": CallAnswer(404, rpc_error("Not Found: Session has been terminated", -32600)),
    "400 of Java's SDK": CallAnswer(400, rpc_error("Session ID required in mcp-session-id header", -32603)),
    "200 of Java's SDK": CallAnswer(200, rpc_error("Session not found: 5d1e-07", -32603)),
    "400 with a period": CallAnswer(400, rpc_error("Session not found or has expired.")),
    "410": CallAnswer(410, b'{"error": "session expired"}'),
    "500 as an error of JSON-RPC": CallAnswer(500, rpc_error("Unknown session", -32603)),
    "200": CallAnswer(200, rpc_error("Session not found", -32603)),
    "200 by a stream": CallAnswer(
        200, b"data: " + rpc_error("Session has been terminated") + b"\n\n", {"content-type": "text/event-stream"}
    ),
}


async def test_a_session_that_its_server_has_forgotten_is_made_again_within_the_call(tmp_path: Path) -> None:
    results = {}
    async with stateful_downstream() as counter, world(tmp_path, use(COUNT), counter=counter.url) as it:
        for name, answer in FORGOTTEN.items():
            counter.recorder.clear()
            answering_calls(counter, answer, at_most=1)
            await ask(it.url)
            sessions = [one.headers["mcp-session-id"] for one in counter.recorder.calls()]
            results[name] = (it.tool_results(), len(sessions), len({*sessions}))

    assert results == dict.fromkeys(FORGOTTEN, (['{"result":1}'], 2, 2))


NOT_FORGOTTEN = {
    "500": CallAnswer(500, b"DetachedInstanceError at /mcp", PLAIN),
    "500 with a page": CallAnswer(500, b"<html>session not found</html>", {"content-type": "text/html"}),
    "400": CallAnswer(400, rpc_error("the session of Parliament has no such member")),
    "200": CallAnswer(200, rpc_error("no such tool", -32602)),
    "500 in plain text": CallAnswer(500, b"no database session left", PLAIN),
    "500 in the words of an SDK": CallAnswer(500, b"Session not found", PLAIN),
    "502 in plain text": CallAnswer(502, b"upstream session closed", PLAIN),
    "200 after progress": CallAnswer(
        200,
        b'data: {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "paid"}}\n\n'
        b"data: " + rpc_error("Session not found") + b"\n\n",
        {"content-type": "text/event-stream"},
    ),
    **{
        message: CallAnswer(200, rpc_error(message, -32603))
        for message in (
            "Protocol error (Page.navigate): Session closed.",
            "Payment sent, but the session expired",
            "Terminal session 7 not found",
            "invalid arguments: session is required",
            "HTTP 500 Internal Server Error: no database session left",
            "HTTP 502 Bad Gateway: upstream session closed",
            "HTTP 500 Internal Server Error: Session not found",
            "Session is closed",
        )
    },
}


async def test_a_tool_that_may_have_run_is_not_called_again(tmp_path: Path) -> None:
    async with stateful_downstream() as counter, world(tmp_path, use(COUNT), counter=counter.url) as it:
        requests = {}
        for name, answer in NOT_FORGOTTEN.items():
            counter.recorder.clear()
            answering_calls(counter, answer, at_most=1)
            await ask(it.url)
            requests[name] = ("Failed to call_tool" in it.tool_results()[0], len(counter.recorder.calls()))

    assert requests == dict.fromkeys(NOT_FORGOTTEN, (True, 1))


async def test_a_session_that_stays_forgotten_is_made_again_once(tmp_path: Path) -> None:
    async with stateful_downstream() as counter, world(tmp_path, use(COUNT), counter=counter.url) as it:
        answering_calls(counter, FORGOTTEN["404 of Python's SDK"])
        await ask(it.url)

    assert len(counter.recorder.calls()) == 2


async def test_tool_calls_at_once_share_the_session_that_is_made_again(tmp_path: Path) -> None:
    async with stateful_downstream() as counter, world(tmp_path, use(*[COUNT] * 3), counter=counter.url) as it:
        answering_calls(counter, FORGOTTEN["404 of Python's SDK"], at_most=3)
        await ask(it.url)
        results = [json.loads(one)["result"] for one in it.tool_results()]

    assert sorted(results) == [1, 2, 3]
    assert list(counter.counts.values()) == [3]
