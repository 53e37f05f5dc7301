"""What the log file says of calls, end to end: one line each, the ids on everything, tracebacks of what failed."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from pallas_gateway.telemetry.logs import CallFields, HumanFormatter, JsonFormatter
from tests.support.calling import EACH_VERSION, ask
from tests.support.clients import CLIENT_INFO, MODERN_VERSION, raw_client, tool_params
from tests.support.gateway import Agent, gateway_and_model, running, until_idle, write_project
from tests.support.listener import reserved_port
from tests.support.log_file import logged
from tests.support.patterns import LARGEST
from tests.support.scripted_llm import LlmRequest, Turn, call_tools, fail, hang, say, scripted_llm
from tests.support.waiting import Gate, eventually
from tests.support.watching import stage

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
TRACED = {"traceparent": f"00-{TRACE_ID}-b7ad6b7169203331-01"}
USE_ECHO = call_tools([("tools__echo", {"text": "one"}), ("tools__echo", {"text": "two"})])


@pytest.mark.parametrize("version", EACH_VERSION)
async def test_a_call_is_one_line_with_what_it_did(version: str, tmp_path: Path) -> None:
    def script(request: LlmRequest) -> Turn:
        return say("done") if request.tool_results else USE_ECHO

    with logged(tmp_path / "log") as log:
        async with stage(tmp_path / "project", script) as staged:
            answer = await ask(staged.url("solo"), version=version, headers=TRACED, conversation_id="talk")
            await until_idle(staged.served)
        [line] = log.records("pallas.calls")

    assert line.pop("time")
    assert 0 < line.pop("duration_seconds") <= answer.meta["duration_seconds"]
    assert line == {
        "level": "INFO",
        "logger": "pallas.calls",
        "message": "call ended",
        "agent": "solo",
        "call_id": answer.meta["call_id"],
        "conversation_id": "talk",
        "trace_id": TRACE_ID,
        "caller": "anonymous",
        "outcome": "ok",
        "stop_reason": "endTurn",
        "iterations": 2,
        "tokens": answer.meta["usage"],
        "tools": {"tools/echo": 2},
    }
    assert log.records("pallas.forward") == log.records("pallas.fast_agent") == []


async def test_a_nested_call_names_its_parent_and_every_record_its_own_call(tmp_path: Path) -> None:
    def script(request: LlmRequest) -> Turn:
        if "You are parent" not in str(request.messages[0]):
            return say("from the peer")
        return say("done") if request.tool_results else call_tools([("peer__send_message", {"message": "you"})])

    with logged(tmp_path / "log", logging.DEBUG) as log, reserved_port() as port:
        agents = {
            "parent": Agent(servers=["peer"], settings={"depends_on": ["peer"]}),
            "peer": Agent(settings={"port": port}),
        }
        servers = {"peer": {"transport": "http", "url": f"http://localhost:{port}/mcp"}}
        async with gateway_and_model(tmp_path / "project", agents, script, servers=servers) as (served, _):
            answer = await ask(served.url("parent"), conversation_id="talk")
            await until_idle(served)
        peer, parent = log.records("pallas.calls")

    assert (parent["agent"], parent["call_id"], "nesting" in parent) == ("parent", answer.meta["call_id"], False)
    assert (peer["agent"], peer["nesting"], peer["parent_call_id"]) == ("peer", 1, parent["call_id"])
    # fast-agent's own records are told apart, too; at DEBUG there are many of both calls.
    inner = {(one["call_id"], one["agent"]) for one in log.records("pallas.fast_agent") if "call_id" in one}
    assert inner == {(parent["call_id"], "parent"), (peer["call_id"], "peer")}
    assert {one["conversation_id"] for one in log.records() if one.get("call_id") == parent["call_id"]} == {"talk"}


async def test_what_a_downstream_refuses_is_a_traceback_with_the_calls_ids(tmp_path: Path) -> None:
    def script(request: LlmRequest) -> Turn:
        return say("so be it") if request.tool_results else call_tools([("tools__slow", {"label": "x"})])

    with logged(tmp_path / "log") as log:
        async with stage(tmp_path / "project", script) as staged:
            asking = asyncio.create_task(ask(staged.url("solo")))
            await staged.tools.gate.wait_for_entered()
            await staged.tools.stop()
            answer = await asking
        [record] = log.records("pallas.forward.trace")
        [line] = log.records("pallas.calls")

    assert (record["level"], record["message"]) == ("WARNING", "downstream operation failed")
    assert (record["server"], record["operation"], record["subject"]) == ("tools", "tools/call", "slow")
    assert record["exception"].startswith("Traceback (most recent call last)")
    assert (record["agent"], record["call_id"]) == ("solo", answer.meta["call_id"])
    assert (line["outcome"], line["tools"]) == ("ok", {"tools/slow": 1})


async def test_what_a_model_refuses_is_a_traceback_with_the_calls_ids_and_a_line_that_says_why(tmp_path: Path) -> None:
    with logged(tmp_path / "log") as log:
        async with gateway_and_model(tmp_path / "project", {"solo": Agent()}, lambda _: fail(500)) as (served, _):
            answer = await ask(served.url("solo"))
        [line] = log.records("pallas.calls")
        traced = [record for record in log.records("pallas.fast_agent") if "exception" in record]

    assert answer.is_error
    assert (line["outcome"], line["reason"], line["error"]) == ("error", "llm_error", answer.text)
    assert traced
    for record in traced:
        assert "scripted failure 500" in record["exception"]
        assert (record["agent"], record["call_id"]) == ("solo", answer.meta["call_id"])


async def test_a_refused_call_is_one_line_with_the_trace_it_came_with(tmp_path: Path) -> None:
    with logged(tmp_path / "log") as log:
        project = write_project(tmp_path / "project", {"solo": Agent()})
        async with running(project) as served, raw_client(served.url("solo"), headers=TRACED) as client:
            await client.call_tool("send_message", {"message": 3})
        [line] = log.records("pallas.calls")
    assert (line["message"], line["reason"], line["trace_id"]) == ("call refused", "bad_input", TRACE_ID)
    assert line["error"] == "Argument 'message' is required and must be a string."


async def test_a_cancelled_call_and_one_the_gateway_ends_are_a_line_each_and_the_drain_says_how_many_it_waits_for(
    tmp_path: Path,
) -> None:
    with logged(tmp_path / "log") as log:
        async with scripted_llm(lambda _: hang(Gate())) as llm:
            gateway = {"drain_seconds": 0.1}
            project = write_project(tmp_path / "project", {"solo": Agent()}, llm_url=llm.base_url, gateway=gateway)
            async with running(project) as served:
                leaving = asyncio.create_task(ask(served.url("solo")))
                await llm.wait_for_requests(1)
                leaving.cancel()
                await eventually(lambda: log.records("pallas.calls"), what="the line of the call that was left")
                staying = [asyncio.create_task(ask(served.url("solo"))) for _ in range(2)]
                await llm.wait_for_requests(3)
                served.stop.set()
                await asyncio.gather(*staying)
        assert [line["reason"] for line in log.records("pallas.calls")] == ["cancelled", "stopped", "stopped"]
        [stopping] = [record for record in log.records("pallas.server") if record["message"] == "stopping"]
    assert (stopping["calls"], stopping["drain_seconds"]) == (2, 0.1)


async def test_a_cancelled_call_is_a_line_with_what_it_has_used(tmp_path: Path) -> None:
    def script(request: LlmRequest) -> Turn:
        return hang(Gate()) if request.tool_results else USE_ECHO

    with logged(tmp_path / "log") as log:
        async with stage(tmp_path / "project", script) as staged:
            asking = asyncio.create_task(ask(staged.url("solo")))
            await staged.llm.wait_for_requests(2)
            asking.cancel()
            await eventually(lambda: log.records("pallas.calls"), what="the line of the call that was left")
            spent = staged.served.metric("pallas_llm_tokens_total", agent="solo", model="test-model", kind="input")
        [line] = log.records("pallas.calls")
    assert (line["reason"], line["iterations"], line["tools"]) == ("cancelled", 2, {"tools/echo": 2})
    assert line["tokens"]["input"] == spent == 10  # of the first turn


# --- No request makes the log grow by more than a few kilobytes, and no text of a client stops the process


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
