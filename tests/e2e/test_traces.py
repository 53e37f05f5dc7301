"""The spans of calls that do not go well, and of those that are no single agent's."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from pallas_gateway.telemetry import traces
from tests.support.calling import EACH_VERSION, ask
from tests.support.clients import raw_client, tool_params
from tests.support.gateway import Agent, gateway_and_model, running, until_idle, write_project
from tests.support.listener import reserved_port
from tests.support.scripted_llm import LlmRequest, Turn, call_tools, fail, hang, say
from tests.support.waiting import Gate, eventually
from tests.support.watching import DESK, script_of, stage

TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class Spans:
    def __init__(self, exporter: InMemorySpanExporter) -> None:
        self._exporter = exporter

    @property
    def all(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())

    @property
    def errors(self) -> dict[str, object]:
        """Names and `error.type` of those that failed, as they ended."""
        failed = [span for span in self.all if span.status.status_code is StatusCode.ERROR]
        return {span.name: (span.attributes or {})["error.type"] for span in failed}

    def named(self, name: str) -> ReadableSpan:
        (span,) = [span for span in self.all if span.name == name]
        return span


@pytest.fixture
def spans() -> Iterator[Spans]:
    """Traces, kept in this process and by nobody but this test."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with traces.using(provider.get_tracer("pallas_gateway")):
        yield Spans(exporter)


async def test_a_failing_model_fails_the_turn_and_the_call_without_its_words(tmp_path: Path, spans: Spans) -> None:
    async with stage(tmp_path, [fail(400, {"error": {"message": "the secret"}})]) as staged:
        assert "the secret" in (await ask(staged.url("solo"))).text
    assert spans.errors == {"chat test-model": "llm_error", "invoke_agent solo": "llm_error"}
    assert not any("the secret" in span.to_json() for span in spans.all)


async def test_what_goes_wrong_below_a_call_does_not_fail_the_call(tmp_path: Path, spans: Spans) -> None:
    script: list[Turn] = [call_tools([("tools__fail", {"message": "the secret"})]), say("got over it")]
    with reserved_port() as port:
        gone = {"gone": {"url": f"http://127.0.0.1:{port}/mcp"}}
        async with stage(tmp_path, script, {"busy": Agent(["tools", "gone"])}, peers=gone) as staged:
            assert (await ask(staged.url("busy"))).text == "got over it"
    assert spans.errors.pop("tools/call fail") == "tool_error"
    assert spans.errors.keys() == {"connect gone", "tools/call fail"}
    assert (spans.named("invoke_agent busy").attributes or {})["pallas.outcome"] == "ok"
    assert not any("the secret" in span.to_json() for span in spans.all)


async def test_a_client_that_goes_away_ends_every_span_of_its_call(tmp_path: Path, spans: Spans) -> None:
    gate = Gate()
    async with gateway_and_model(tmp_path, {"slow": Agent()}, lambda _: hang(gate)) as (served, _):
        calling = asyncio.create_task(ask(served.url("slow")))
        await gate.wait_for_entered()
        calling.cancel()
        await until_idle(served)
        await eventually(lambda: len(spans.all) == 2, what="both spans ended")
    assert spans.errors == {"chat test-model": "cancelled", "invoke_agent slow": "cancelled"}


async def test_a_deadline_cuts_off_what_runs_and_is_no_failure_of_the_call(
    tmp_path: Path, spans: Spans, deadline: asyncio.Event
) -> None:
    async with stage(tmp_path, [call_tools([("tools__slow", {})])]) as staged:
        calling = asyncio.create_task(ask(staged.url("solo")))
        await staged.tools.gate.wait_for_entered()
        deadline.set()
        assert not (await calling).is_error
    assert spans.errors == {"tools/call slow": "cancelled"}


async def test_a_halted_loop_shows_no_turn_that_was_not_asked(tmp_path: Path, spans: Spans) -> None:
    def again(_: LlmRequest) -> Turn:
        return call_tools([("tools__echo", {"text": "same"})])

    async with stage(tmp_path, again) as staged:
        await ask(staged.url("solo"))
    assert len([span for span in spans.all if span.name == "chat test-model"]) == len(staged.llm.requests) == 3
    assert spans.errors == {}


async def test_parallel_tool_calls_each_carry_their_own_span(tmp_path: Path, spans: Spans) -> None:
    calls = [("tools__echo", {"text": text}) for text in ("one", "two", "three")]
    async with stage(tmp_path, [call_tools(calls), say("done")]) as staged:
        await ask(staged.url("solo"))
        sent = [call.headers["traceparent"].split("-")[2] for call in staged.tools.recorder.calls("echo")]
    made = [f"{span.context.span_id:016x}" for span in spans.all if span.name == "tools/call echo"]
    assert len(set(sent)) == 3
    assert sorted(sent) == sorted(made)


async def test_agents_as_tools_are_one_trace(tmp_path: Path, spans: Spans) -> None:
    script = script_of(
        desk=[call_tools([("agent__scout", {"message": "help"})]), say("done")],
        scout=[call_tools([("tools__echo", {"text": "hi"})]), say("done")],
    )
    async with stage(tmp_path, script, {"crew": Agent(source=DESK)}) as staged:
        assert (await ask(staged.url("crew"))).text == "done"
        (sent,) = staged.tools.recorder.calls("echo")

    asked = [str((span.attributes or {})["gen_ai.agent.name"]) for span in spans.all if span.name == "chat test-model"]
    assert sorted(asked) == ["crew", "crew", "scout", "scout"]
    tool = spans.named("tools/call echo")
    assert sent.headers["traceparent"].split("-")[2] == f"{tool.context.span_id:016x}"
    assert len({span.context.trace_id for span in spans.all}) == 1


async def test_the_trace_of_a_requests_meta_is_joined(tmp_path: Path, spans: Spans) -> None:
    """As MCP clients with OpenTelemetry send it (SEP-414), of stdio origin for instance."""
    params = {**tool_params("send_message", {"message": "hi"}), "_meta": {"traceparent": TRACEPARENT}}
    agents = {"echo": Agent(), "broken": Agent(source="raise ValueError('no')")}
    async with running(write_project(tmp_path, agents)) as served, raw_client(served.url("echo")) as client:
        client.http.headers["traceparent"] = f"00-{'a' * 32}-{'b' * 16}-01"
        await client.request("tools/call", params)
        await ask(served.url("broken"), headers={"traceparent": TRACEPARENT})
    span, refused = spans.named("invoke_agent echo"), spans.named("invoke_agent broken")
    assert span.context.trace_id == refused.context.trace_id == int(TRACEPARENT.split("-")[1], 16)
    assert [link.context.trace_id for link in span.links] == [int("a" * 32, 16)]


@pytest.mark.parametrize("version", EACH_VERSION)
async def test_a_traced_call_has_the_page_of_its_trace_and_another_has_none(version: str, tmp_path: Path) -> None:
    gateway = {"trace_url": "https://traces.example/{trace_id}/x", "database": "sqlite:///threads.db"}
    project = write_project(tmp_path, {"echo": Agent()}, gateway=gateway)
    params = tool_params("send_message", {"message": "hi"})
    async with running(project) as served, raw_client(served.url("echo"), protocol_version=version) as client:
        plain = await client.request("tools/call", params)
        client.http.headers["traceparent"] = TRACEPARENT
        traced = await client.request("tools/call", params)
        chat = f"{served.base_url}/api/v1/agents/echo/chat"
        in_thread = await client.http.post(chat, json={"message": "hi"}, headers={"Accept": "application/json"})
    assert "pallas/trace_url" not in plain.result["_meta"]
    trace_id = TRACEPARENT.split("-")[1]
    page = f"https://traces.example/{trace_id}/x"
    assert traced.result["_meta"]["pallas/trace_url"] == in_thread.json()["traceUrl"] == page
