"""No request makes the log grow by more than a few kilobytes, and no text of a client stops the process."""

from __future__ import annotations

import io
import json
import logging
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from pallas_gateway.telemetry.logs import CallFields, HumanFormatter, JsonFormatter
from tests.support.clients import CLIENT_INFO, MODERN_VERSION, tool_params
from tests.support.gateway import Agent, running, write_project
from tests.support.patterns import LARGEST
from tests.support.scripted_llm import say, scripted_llm

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator
    from pathlib import Path

MOST_BYTES = 16_384
JSON = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
GATEWAY = {"openai_api": True, "database": "sqlite:///threads.db"}
SETTINGS = {"caller_params": ["temperature", "response_format", "extra", "stop"]}
FILLINGS = {
    "letters": "x",
    "headers": "x-",
    "emoji": "\U0001f600",
    "controls": "\x01",
    "a secret": "secret_token x-",
    "lines": "one\n",
}

BRIEF = "a secret"
"""The filling of `make test`, a tenth as long: it grows most in a log, as do controls."""


class Logs:
    """What the two forms of the log hold."""

    def __init__(self) -> None:
        self.people, self.machines = io.StringIO(), io.StringIO()

    def sizes(self) -> dict[str, int]:
        streams = {"people": self.people, "machines": self.machines}
        return {name: len(stream.getvalue().encode()) for name, stream in streams.items()}


@contextmanager
def logs() -> Iterator[Logs]:
    """Write both forms, as `serve` does."""
    kept = Logs()
    root = logging.getLogger()
    handlers = [logging.StreamHandler(kept.people), logging.StreamHandler(kept.machines)]
    for handler, formatter in zip(handlers, (HumanFormatter(), JsonFormatter()), strict=True):
        handler.setFormatter(formatter)
        handler.addFilter(CallFields())
        root.addHandler(handler)
    before = root.level, logging.getLogger("pallas").level
    root.setLevel(logging.INFO)
    logging.getLogger("pallas").setLevel(logging.INFO)
    try:
        yield kept
    finally:
        for handler in handlers:
            root.removeHandler(handler)
        root.setLevel(before[0])
        logging.getLogger("pallas").setLevel(before[1])


@asynccontextmanager
async def gateway(path: Path) -> AsyncGenerator[tuple[httpx.AsyncClient, Logs]]:
    async with scripted_llm(lambda _: say("done")) as llm:
        project = write_project(path, {"solo": Agent(settings=SETTINGS)}, llm_url=llm.base_url, gateway=GATEWAY)
        with logs() as kept:
            async with (
                running(project) as served,
                httpx.AsyncClient(base_url=served.base_url, trust_env=False, timeout=60) as http,
            ):
                yield http, kept


def rpc(method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params or {}}


def call(arguments: dict[str, Any], tool: str = "send_message") -> dict[str, Any]:
    return rpc("tools/call", tool_params(tool, arguments))


def hostile_calls(text: str) -> dict[str, dict[str, Any]]:
    """Calls of the agent's endpoint with `text` in each place."""
    said = {"message": "hello"}
    image = {"data": "aGVsbG8=", "mime_type": f"image/{text}"}
    return {
        "argument name": call({**said, text: 1}),
        "many argument names": call({**said, **{f"{text[:5]}{number}": 1 for number in range(20_000)}}),
        "role": call({**said, "history": [{"role": text, "content": "hello"}]}),
        "many roles": call({**said, "history": [{"role": text[:1_000], "content": "hello"}] * 2_000}),
        "history": call({**said, "history": text}),
        "mime type": call({**said, "images": [{"data": "aGVsbG8=", "mime_type": text}]}),
        "image type": call({**said, "images": [image]}),
        "image types in history": call({**said, "history": [{"role": "user", "content": "", "images": [image]}] * 3}),
        "conversation id": call({**said, "conversation_id": text}),
        "long conversation id": call({**said, "conversation_id": text[:1_000], "history": [{}] * 200}),
        "tool": call(said, tool=text),
        "tool of all": call(said, tool=f"agent-{text}"),
        "params name": call({**said, "params": {text: 1}}),
        "key of a parameter": call({**said, "params": {"response_format": {"type": "text", text: 1}}}),
        "key of extra": call({**said, "params": {"extra": {text: 1}}}),
        "value of a parameter": call({**said, "params": {"temperature": text}}),
        "method": rpc(text),
        "prompt": rpc("prompts/get", {"name": text}),
        "cancelled": rpc("notifications/cancelled", {"requestId": text, "reason": text}),
        "level": rpc("logging/setLevel", {"level": text}),
        "version": rpc("initialize", {"protocolVersion": text, "capabilities": {}, "clientInfo": {"name": text}}),
        "no JSON-RPC": {text: text},
    }


def hostile_bodies(text: str) -> dict[str, tuple[str, dict[str, Any]]]:
    """Bodies for the other APIs."""
    turn = {"role": "user", "content": "hello"}
    return {
        "model": ("/v1/chat/completions", {"model": text, "messages": [turn]}),
        "role of a message": ("/v1/chat/completions", {"model": "solo", "messages": [{**turn, "role": text}]}),
        "part": ("/v1/chat/completions", {"model": "solo", "messages": [{**turn, "content": [{"type": text}]}]}),
        "image": (
            "/v1/chat/completions",
            {"model": "solo", "messages": [{**turn, "content": [{"type": "image_url", "image_url": {"url": text}}]}]},
        ),
        "metadata": (
            "/v1/chat/completions",
            {"model": "solo", "messages": [turn], "metadata": {"conversation_id": text[:1_000]}},
        ),
        "key": ("/api/v1/agents/solo/chat", {"message": "hello", text: 1}),
        "thread": ("/api/v1/agents/solo/chat", {"message": "hello", "threadId": text}),
        "title": ("/api/v1/agents/solo/threads", {"title": text}),
    }


def in_the_newer_era(body: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """The same request as clients of 2026-07-28 send it; the name in its headers is as long as a header may be."""
    prefix = "io.modelcontextprotocol/"
    meta = {
        f"{prefix}protocolVersion": MODERN_VERSION,
        f"{prefix}clientInfo": CLIENT_INFO,
        f"{prefix}clientCapabilities": {},
    }
    params = body.get("params", {})
    fits = {"mcp-method": str(body.get("method"))[:1_000], "mcp-name": str(params.get("name"))[:1_000]}
    named = {
        name: "".join(filter(str.isalnum, value.encode("ascii", "ignore").decode())) for name, value in fits.items()
    }
    if str(body.get("method")) in {"tools/call", "prompts/get"}:
        named |= {"mcp-method": body["method"]}
    if params.get("name") == "send_message":
        named |= {"mcp-name": "send_message"}
    newer = {**body, "params": {**params, "_meta": meta}}
    return newer, {**JSON, "mcp-protocol-version": MODERN_VERSION, **named}


def as_json(body: dict[str, Any]) -> bytes:
    return json.dumps(body).encode()


PLAIN = as_json(call({"message": "hello"}))


def hostile_headers(text: str) -> dict[str, str]:
    """Headers with as much of `text` as fits into one."""
    value = bytes(byte for byte in text[:8_000].encode() if byte >= 0x20).decode("latin-1")
    return dict.fromkeys(HEADERS, value)


HEADERS = (
    "host", "origin", "traceparent", "tracestate", "baggage", "mcp-session-id", "mcp-protocol-version", "accept",
    "user-agent", "x-forwarded-for", "forwarded", "authorization", "x-own",
)  # fmt: skip


async def grown(http: httpx.AsyncClient, kept: Logs, request: httpx.Request) -> dict[str, int]:
    """By how much a request makes the logs longer; whatever its answer, the gateway answers the next one."""
    before = kept.sizes()
    await http.send(request)
    assert (await http.get("/livez")).status_code == 200
    return {name: size - before[name] for name, size in kept.sizes().items()}


@pytest.mark.parametrize(
    "filling", [name if name == BRIEF else pytest.param(name, marks=pytest.mark.whole) for name in FILLINGS]
)
async def test_no_request_adds_much_to_the_log(filling: str, tmp_path: Path) -> None:
    part = FILLINGS[filling]
    text = part * (LARGEST // (10 if filling == BRIEF else 1) // len(part.encode()))
    async with gateway(tmp_path) as (http, kept):
        requests: dict[str, httpx.Request] = {}
        for what, body in hostile_calls(text).items():
            path = "/mcp" if "of all" in what else "/agents/solo/mcp"
            requests[what] = http.build_request("POST", path, content=as_json(body), headers=JSON)
            newer, headers = in_the_newer_era(body)
            requests[f"{what}, newer"] = http.build_request("POST", path, content=as_json(newer), headers=headers)
        for what, (path, body) in hostile_bodies(text).items():
            requests[what] = http.build_request("POST", path, content=as_json(body), headers=JSON)
        for name, value in hostile_headers(text).items():
            requests[name] = http.build_request("POST", "/agents/solo/mcp", content=PLAIN, headers=JSON)
            requests[name].headers[name] = value
        for path in ("/agents/{}/mcp", "/v1/models/{}", "/api/v1/agents/{}", "/api/v1/agents/solo/threads?{}=1"):
            requests[path] = http.build_request("POST" if "mcp" in path else "GET", path.format("x-" * 5_000))
        sizes = {what: await grown(http, kept, request) for what, request in requests.items()}
    assert {what: size for what, size in sizes.items() if max(size.values()) > MOST_BYTES} == {}
    assert max(max(size.values()) for size in sizes.values()) > 100
