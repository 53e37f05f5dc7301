"""Every door by which a call comes into a gateway, and what the gateway does for the call, in order."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, override

import httpx
import pytest
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from starlette.types import Message, Receive, Scope, Send

from pallas_gateway.features.audit.audit_log import AuditLog
from pallas_gateway.process.reload import SwappableApp
from pallas_gateway.telemetry import traces
from tests.support.askable_callers import CAN_BE_ASKED
from tests.support.asking_gateways import HUMAN
from tests.support.clients import MODERN_VERSION, RawClient, tool_params
from tests.support.downstreams import StatelessDownstream, stateless_downstream
from tests.support.gateway import Agent, Running, running, write_project
from tests.support.scripted_llm import LlmRequest, Turn, call_tools, fail, hang, say, scripted_llm
from tests.support.waiting import Gate, eventually

type Json = dict[str, Any]

COUNTERS = REFUSED, ENDED, TIMED, RUNNING, LEASED = (
    *("pallas_calls_refused_total", "pallas_send_message_total", "pallas_send_message_duration_seconds_count"),
    *("pallas_calls_in_flight", "pallas_limit_used_ratio"),
)
FULL = "busy", "limited"
"""Agents that answer one call at once, by a setting and by a rule. A test may hold that call, which is not counted."""
HELD = {"left", "ended", "held"}
"""Messages whose calls do not end by themselves."""
MEANWHILE = {
    *("progress", "message", "thread", "text", "chunk", "answer", "tool_call", "tool_result"),
    *("created", "in_progress", "output_item.added", "content_part.added", "output_text.delta"),
}
"""What is sent while a call runs; how it mixes with other steps depends on the machine."""


class Story(logging.Handler, SpanProcessor):
    """The steps of calls since `begin`, in order, as they are seen in the process of the gateway.

    Attributes:
        steps: what is sent (see `kind`), `logged` and `refusal logged`, action and outcome of entries of the audit log,
            `refusal counted`, and `counted`: an end, of a call that is not in flight and has given back its leases.
        told: those steps that are sent.
        lines: of the log, on ends and refusals of calls.
        audited: entries of the audit log.
        spans: the attributes of those of calls, once they have ended.
    """

    def __init__(self) -> None:
        super().__init__()
        self.served: Running | None = None
        self.begin()

    def begin(self) -> None:
        self.steps, self.told = list[str](), list[str]()
        self.lines, self.audited, self.spans = (list[dict[str, Any]]() for _ in range(3))
        self._counted = self._read()

    @property
    def account(self) -> list[str]:
        """The steps without what is sent while a call runs."""
        return [one for one in self.steps if one not in MEANWHILE]

    def look(self) -> bool:
        """Add what was counted since the last step; return True if a call has ended."""
        before, self._counted = self._counted, (now := self._read())
        if now[REFUSED] > before[REFUSED]:
            self.steps.append("refusal counted")
        if now[ENDED] > before[ENDED]:
            is_whole = now[ENDED] == now[TIMED] and now[RUNNING] == now[LEASED] == 0
            self.steps.append("counted" if is_whole else "counted in part")
        return "counted" in self.steps

    def add(self, step: str) -> None:
        self.look()
        self.steps.append(step)

    def _read(self) -> Mapping[str, float]:
        totals = dict.fromkeys(COUNTERS, 0.0)
        if self.served is not None:
            with suppress(StopIteration):  # a gateway of one process waits for nobody
                self.served.gateway._measure().send(None)
            for family in self.served.gateway.metrics.registry.restricted_registry(COUNTERS).collect():
                for one in family.samples:
                    is_held = one.name in {RUNNING, LEASED} and {*FULL} & {*one.labels.values()}
                    if one.name in totals and not is_held:
                        totals[one.name] += one.value
        return totals

    @override
    def emit(self, record: logging.LogRecord) -> None:
        if record.msg in {"call ended", "call refused"}:
            self.add("logged" if record.msg == "call ended" else "refusal logged")
            self.lines.append(vars(record))

    @override
    def on_end(self, span: ReadableSpan) -> None:
        if span.name.startswith("invoke_agent"):
            self.spans.append(dict(span.attributes or {}))

    @contextmanager
    def told_by(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        """See what the gateways of the block do: at the entrance of their ports, and in their logs and traces."""
        serve, note, log = SwappableApp.__call__, AuditLog.record, logging.getLogger("pallas.calls")
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(self)

        async def served(app: SwappableApp, scope: Scope, receive: Receive, send: Send) -> None:
            async def sent(message: Message) -> None:
                if scope.get("method") == "POST":
                    for document in documents(message.get("body", b"")):
                        self.add(kind(document))
                        self.told.append(kind(document))
                await send(message)

            await serve(app, scope, receive, sent)

        def noted(log: AuditLog, entry: Mapping[str, Any]) -> bool:
            self.add(f"{entry['action']} {entry['outcome']}")
            self.audited.append(dict(entry))
            return note(log, entry)

        monkeypatch.setattr(SwappableApp, "__call__", served)
        monkeypatch.setattr(AuditLog, "record", noted)
        monkeypatch.setattr(log, "level", logging.INFO)
        log.addHandler(self)
        try:
            with traces.using(provider.get_tracer("pallas_gateway")):
                yield
        finally:
            log.removeHandler(self)


def documents(body: bytes) -> list[Any]:
    """The JSON documents of a response or of a part of one; `[DONE]` of a stream as it is."""
    text = body.decode()
    whole = [text] if text[:1] == "{" else [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    return [one if one == "[DONE]" else json.loads(one) for one in whole]


def kind(document: Any) -> str:
    if document == "[DONE]":
        return "done"
    if "method" in document:
        return str(document["method"].rpartition("/")[2])
    if "type" in document:
        return str(document["type"]).removeprefix("response.")
    if document.get("object") == "chat.completion.chunk":
        return "finish" if document["choices"][0]["finish_reason"] else "chunk"
    if "result" in document:
        return str(document["result"].get("resultType", "complete"))
    return "error" if document.get("error") else "reply"


class Read:
    """What a client reads at the end: the status, the reason of the error or of the stop, and the id of the call."""

    def __init__(self, response: httpx.Response) -> None:
        self.last = last = next(one for one in reversed(documents(response.content)) if one != "[DONE]")
        facts = last.get("result", {}).get("_meta", {}).get("pallas/call", {})
        error, [choice, *_] = last.get("error"), last.get("choices") or [{}]
        reason = error.get("code") if isinstance(error, dict) else error
        stop = choice.get("finish_reason") or last.get("response", last).get("status")
        reasons = facts.get("stop_reason"), last.get("stopReason"), last.get("reason"), stop
        self.status, self.reason = response.status_code, next(filter(None, reasons), reason)
        self.call_id = facts.get("call_id") or last.get("callId") or response.headers.get("x-request-id")


@dataclass(frozen=True)
class World:
    """A gateway with all doors, whose agents do what the last word of a message says."""

    served: Running
    story: Story
    http: httpx.AsyncClient
    gate: Gate
    tools: StatelessDownstream

    async def calls(self, query: str = "") -> list[Json]:
        """The running calls, or those that `query` names."""
        return list((await self.http.get(f"/api/v1/calls{query}")).json()["calls"])

    async def usage(self) -> tuple[int, int]:
        """Calls and refused calls of the caller so far."""
        rows = (await self.http.get("/api/v1/usage")).json()["own"]["total"]
        return sum(row["calls"] for row in rows), sum(row["refused"] for row in rows)

    async def over(self) -> None:
        """Return once the call has ended, with its span."""
        await eventually(lambda: self.story.look() and self.story.spans, what="the end of the call")


@asynccontextmanager
async def world(
    path: Path, monkeypatch: pytest.MonkeyPatch, *, at_once: Sequence[str], bearer: str | None = None, **gateway: Any
) -> AsyncGenerator[World]:
    """Serve `solo`, the agents that are `FULL`, `gone` (its server is away) and `broken`; `at_once` have a rule."""
    gate, story = Gate(), Story()

    def script(request: LlmRequest) -> Turn:
        *asks, word = request.last_user_text.split()
        if asks and not request.tool_results:
            return call_tools([HUMAN])
        return hang(gate, say("late")) if word in HELD else fail(400) if word == "failed" else say("fine")

    agents = {
        "solo": Agent(["tools"], decorator="human_input=True"),
        "limited": Agent(["tools"]),
        "busy": Agent(["tools"], settings={"max_in_flight": 1}),
        "gone": Agent(["away"]),
        "broken": Agent(source="raise ValueError('no')"),
    }
    rules = [{"name": name, "agent": name, "calls_at_once": 1} for name in at_once]
    settings = {
        **{"audit_log": "audit.log", "console": True, "database": "sqlite:///threads.db", "openai_api": True},
        **{"limits": {"rules": rules}, "queue_seconds": 0, **gateway},
    }
    headers = {"authorization": f"Bearer {bearer}"} if bearer else {}
    with story.told_by(monkeypatch):
        async with (
            scripted_llm(script) as llm,
            stateless_downstream() as tools,
            stateless_downstream(start=False) as away,
        ):
            servers = {"tools": {"url": tools.url}, "away": {"url": away.url}}
            async with (
                running(write_project(path, agents, llm_url=llm.base_url, servers=servers, gateway=settings)) as served,
                httpx.AsyncClient(base_url=served.base_url, trust_env=False, timeout=60, headers=headers) as http,
            ):
                story.served = served
                story.begin()
                try:
                    yield World(served, story, http, gate, tools)
                finally:
                    gate.open()
                    tools.gate.open()


@dataclass(frozen=True)
class Sent:
    """One request."""

    path: str
    body: Json
    headers: Mapping[str, str] = field(default_factory=dict)

    async def post(self, world: World, bearer: str | None = None) -> httpx.Response:
        more = {"authorization": f"Bearer {bearer}"} if bearer else {}
        return await world.http.post(self.path, json=self.body, headers={**self.headers, **more})


ADA = {"action": "accept", "content": {"name": "Ada"}}
PROGRESS = {"progressToken": "one"}


def mcp(world: World, version: str, agent: str, params: Json, **meta: Any) -> Sent:
    client = RawClient(world.http, f"/agents/{agent}/mcp", version)
    body = client.body_of("tools/call", params, meta=meta, request_id=1)
    return Sent(client.url, body, client.headers_of("tools/call", params))


async def by_mcp(world: World, agent: str, message: Any, *, version: str, nesting: int = 0, **more: Any) -> Sent:
    params = tool_params("send_message", {"message": message, **more})
    return mcp(world, version, agent, params, **PROGRESS, **{"pallas/nesting": nesting})


def may_ask(world: World, message: str, **more: Any) -> Sent:
    """A request of a call of 2026-07-28 that asks before it does what the message says."""
    params = {**tool_params("send_message", {"message": f"asks {message}"}), **more}
    return mcp(world, MODERN_VERSION, "solo", params, **CAN_BE_ASKED, **PROGRESS)


async def continuing(world: World, _: str, message: str, *, answer: Json = ADA, **more: Any) -> Sent:
    """The second request of a call that has asked."""
    asked = Read(await may_ask(world, message).post(world)).last["result"]
    answers = dict.fromkeys(asked["inputRequests"], answer)
    return may_ask(world, message, **{"requestState": asked["requestState"], "inputResponses": answers, **more})


async def by_openai(_: World, agent: str, message: Any, **more: Any) -> Sent:
    messages = [{"role": "user", "content": message}]
    return Sent("/v1/chat/completions", {"model": agent, "messages": messages, **more})


async def by_responses(_: World, agent: str, message: Any, **more: Any) -> Sent:
    return Sent("/v1/responses", {"model": agent, "input": [{"role": "user", "content": message}], **more})


async def by_chat(_: World, agent: str, message: Any, *, accept: str = "*/*", **more: Any) -> Sent:
    return Sent(f"/api/v1/agents/{agent}/chat", {"message": message, **more}, {"accept": accept})


async def answering(
    world: World, agent: str, message: str, *, answer: Json = ADA, accept: str = "*/*", **more: Any
) -> Sent:
    """The answer to the question of a turn."""
    asked = (await (await by_chat(world, agent, f"asks {message}")).post(world)).raise_for_status().json()
    answers = {one["id"]: answer for one in asked["questions"]}
    return Sent(f"/api/v1/threads/{asked['threadId']}/answers", {"answers": answers, **more}, {"accept": accept})


async def by_hand(_: World, agent: str, message: str, *, server: str = "tools", **more: Any) -> Sent:
    """A run of the tool that does what the message says."""
    agent, server = ("gone", "away") if message == "failed" else (agent, server)
    tool, arguments = ("slow", {}) if message in HELD else ("echo", {"text": message})
    return Sent(f"/api/agents/{agent}/tools/{server}/{tool}", {"arguments": arguments, **more})


EVENTS = "text/event-stream"
DOORS: dict[str, Callable[..., Awaitable[Sent]]] = {
    "initialize": partial(by_mcp, version="2025-06-18"),
    "2026-07-28": partial(by_mcp, version=MODERN_VERSION),
    "continued": continuing,
    "/v1": by_openai,
    "/v1 streamed": partial(by_openai, stream=True),
    "responses": by_responses,
    "responses streamed": partial(by_responses, stream=True),
    "chat": by_chat,
    "chat streamed": partial(by_chat, accept=EVENTS),
    "answers": answering,
    "answers streamed": partial(answering, accept=EVENTS),
    "by hand": by_hand,
}


async def prepared(world: World, door: str, agent: str, message: Any, **more: Any) -> Sent:
    """Return the last request of a call, after those before it have ended; the story begins with it."""
    world.story.begin()
    sent = await DOORS[door](world, agent, message, **more)
    if door.startswith(("continued", "answers")):
        await eventually(lambda: world.story.spans, what="the end of the request that has asked")
    world.story.begin()
    return sent


async def held(world: World, door: str, sent: Sent) -> asyncio.Task[httpx.Response]:
    """Send a request; return once its call is held at the model or the tool."""
    gate = world.tools.gate if door == "by hand" else world.gate
    entered = len(gate.entered)
    response = asyncio.create_task(sent.post(world))
    await gate.wait_for_entered(entered + 1)
    return response
