"""Downstreams that answer tool calls as a test says."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf

from tests.support.asgi import Message, Receive, Scope, Send, headers_of, respond
from tests.support.downstreams import Downstream

ITS_ID = "id of the request"


@dataclass(frozen=True)
class CallAnswer:
    """An answer to a tool call. `ITS_ID` in the body is replaced by the id of the request."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


def answering_calls(tools: Downstream, given: CallAnswer, *, at_most: float = inf) -> list[str]:
    """Have a server answer each `tools/call`, or the first ones, like this; return its accepted encodings."""
    app = tools.recorder.app
    accepted: list[str] = []
    assert app is not None

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        first = await receive()
        if b'"tools/call"' in first.get("body", b"") and len(accepted) < at_most:
            accepted.append(headers_of(scope).get("accept-encoding", ""))
            headers = {"content-type": "application/json", **given.headers}
            its_id = json.dumps(json.loads(first["body"])["id"]).encode()
            body = given.body.replace(json.dumps(ITS_ID).encode(), its_id)
            await respond(send, given.status, body, headers=headers)
            return
        await app(scope, _after(first, receive), send)

    tools.recorder.app = answer
    return accepted


def _after(first: Message, receive: Receive) -> Receive:
    pending = [first]

    async def following() -> Message:
        return pending.pop() if pending else await receive()

    return following
