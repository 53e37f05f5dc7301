"""For the search for secrets: a server that quotes what it got, a gateway that is asked, and all that it said."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import httpx

from tests.support.asgi import AsgiApp, Receive, Scope, Send, read_body, respond, respond_json
from tests.support.clients import MODERN_VERSION, raw_client, tool_params
from tests.support.commands import Program
from tests.support.scripted_llm import ScriptedLlm
from tests.support.watching import watching_meta

SAID = "canarysaidinathread"
"""What is said to an agent in a thread: it belongs into the database, and into no log."""
TOOLS = ("echo", "add", "fail")  # each refuses in its own way: with a JSON-RPC error, a status, an error result


def forms(secret: str) -> set[str]:
    """How a secret may be written: as it is, percent-encoded, and in base64 wherever it begins in what is encoded."""
    found = {secret, quote(secret), quote(secret, safe=""), json.dumps(secret)[1:-1]}
    for offset in range(3):
        encoded = base64.b64encode(b"x" * offset + secret.encode()).decode().rstrip("=")
        found.add(encoded[(0, 2, 3)[offset] : -1])  # without the characters that its neighbours share
    return found


def leaks(outputs: Mapping[str, str], canaries: Iterable[str]) -> set[tuple[str, str]]:
    """Which canary stands in which output."""
    looked_for = {canary: forms(canary) for canary in canaries}
    return {
        (name, canary)
        for name, text in outputs.items()
        for canary, written in looked_for.items()
        if any(form in text for form in written)
    }


def rude(app: AsgiApp) -> AsgiApp:
    """A downstream whose every refusal quotes the headers it got."""

    async def quoting(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await app(scope, receive, send)
            return
        body = await read_body(receive)
        message = json.loads(body)
        got = f"I do not like {scope['headers']} of {dict(decoded_headers(scope))}"
        tool = (message.get("params") or {}).get("name")
        if tool == "echo":
            error = {"code": -32000, "message": got, "data": {"headers": dict(decoded_headers(scope))}}
            await respond_json(send, 200, {"jsonrpc": "2.0", "id": message["id"], "error": error})
        elif tool == "add":
            await respond(send, 500, got, content_type="text/plain")
        elif tool == "fail":
            content = [{"type": "text", "text": got}]
            result = {"content": content, "isError": True, "resultType": "complete"}
            await respond_json(send, 200, {"jsonrpc": "2.0", "id": message["id"], "result": result})
        else:
            await app(scope, _replaying(body, receive), send)

    return quoting


def decoded_headers(scope: Scope) -> list[tuple[str, str]]:
    """The headers as text."""
    return [(name.decode(), value.decode()) for name, value in scope["headers"]]


def _replaying(body: bytes, receive: Receive) -> Receive:
    pending: list[dict[str, Any]] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Any:
        return pending.pop() if pending else await receive()

    return replay


@dataclass
class Run:
    """A gateway in a process of its own, and all that it has said; `bearer` is what its callers bring."""

    program: Program
    llm: ScriptedLlm
    bearer: str
    bodies: list[str] = field(default_factory=list)

    async def call(self, agent: str, version: str, message: Any = "go", *, bearer: str | None = None) -> None:
        """Call an agent and watch it."""
        params = tool_params("send_message", {"message": message, "conversation_id": "talk"})
        async with (
            raw_client(self.url(agent), protocol_version=version, bearer=bearer or self.bearer) as client,
            client.in_flight("tools/call", params, meta=watching_meta(version)) as call,
        ):
            reply = await call.reply(timeout_seconds=60)
        self.bodies.append(f"{dict(reply.headers)} {json.dumps(reply.messages)}")

    async def leave(self, agent: str, version: str) -> None:
        """Call an agent and go away."""
        seen = len(self.llm.requests)
        async with (
            raw_client(self.url(agent), protocol_version=version, bearer=self.bearer) as client,
            client.in_flight("tools/call", tool_params("send_message", {"message": "go"})),
        ):
            await self.llm.wait_for_requests(seen + 1)

    async def health(self, agent: str, version: str) -> str:
        """Ask an agent how it is."""
        async with raw_client(self.url(agent), protocol_version=version, bearer=self.bearer) as client:
            reply = json.dumps((await client.call_tool("get_health")).messages)
        self.bodies.append(reply)
        return reply

    async def look_around(self, *, bearer: str | None = None) -> None:
        """Ask everything that is not an agent, and some things that are not there."""
        headers = {"Authorization": f"Bearer {bearer or self.bearer}"}
        async with httpx.AsyncClient(base_url=self.base_url, headers=headers) as http:
            for path in ("/readyz", "/metrics", "/.well-known/mcp/server.json", "/v0.1/servers", "/nothing", "/mcp"):
                self._keep(await http.get(path))
            self._keep(await http.post("/agents/ruder/mcp", content=b"{not json"))
            self._keep(await http.post("/agents/ruder/mcp", headers={"Host": "evil.example"}))

    async def other_doors(self, agent: str) -> None:
        """Call an agent by every door that is not its own."""
        headers = {"Authorization": f"Bearer {self.bearer}"}
        events = {"Accept": "text/event-stream"}
        async with httpx.AsyncClient(base_url=self.base_url, headers=headers, timeout=60) as http:
            for stream in (False, True):
                asked = {"model": agent, "messages": [{"role": "user", "content": "go"}], "stream": stream}
                self._keep(await http.post("/v1/chat/completions", json=asked))
            for accepted in ({}, events):
                chat = f"/api/v1/agents/{agent}/chat"
                self._keep(await http.post(chat, json={"message": SAID}, headers=accepted))
            for path in ("/v1/models", f"/api/v1/agents/{agent}", f"/api/v1/agents/{agent}/threads"):
                self._keep(await http.get(path))
        async with raw_client(f"{self.base_url}/mcp", protocol_version=MODERN_VERSION, bearer=self.bearer) as client:
            for tool, arguments in ((f"agent-{agent}", {"message": "go"}), ("get_health", {})):
                reply = await client.request("tools/call", tool_params(tool, arguments))
                self.bodies.append(f"{dict(reply.headers)} {json.dumps(reply.messages)}")

    @property
    def base_url(self) -> str:
        return self.program.url.replace("localhost", "127.0.0.1")

    def url(self, agent: str) -> str:
        """An agent's MCP endpoint."""
        return f"{self.base_url}/agents/{agent}/mcp"

    def _keep(self, response: httpx.Response) -> None:
        self.bodies.append(f"{dict(response.headers)} {response.text}")
