"""Traces as an operator gets them: `serve` in a process of its own, a collector beside it, OpenTelemetry's variables.

In processes of their own also because nothing of OpenTelemetry's SDK may stay behind in this one.
"""

import asyncio
import signal
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.support.calling import EACH_VERSION, ask
from tests.support.commands import READY_SECONDS, Program, Ran, started
from tests.support.downstreams import StatelessDownstream, stateless_downstream
from tests.support.gateway import Agent, Project, module_source, write_project
from tests.support.listener import reserved_port
from tests.support.scripted_llm import CallTools, LlmRequest, Say, Turn, Usage, call_tools, say, scripted_llm
from tests.support.trace_collector import TraceCollector, trace_collector

CALLER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
TRACE_ID, CALLERS_SPAN = CALLER.split("-")[1:3]
SECRET_WORDS = ("first secret", "second secret", "third secret", "the bearer", "not-a-key")
ONLY_AT_THE_END = {"OTEL_BSP_SCHEDULE_DELAY": "600000"}
COST = Usage(prompt=30, completion=9, cached=20, reasoning=4)


def relay(request: LlmRequest) -> Say | CallTools:
    """`parent` asks `peer`, `peer` asks its downstream `tools`, and each says what it heard."""
    if request.tool_results:
        return say("third secret", usage=COST)
    if "You are parent" in str(request.messages):
        return call_tools([("peer__send_message", {"message": "second secret"})], usage=COST)
    return call_tools([("tools__echo", {"text": "second secret"})], usage=COST)


def family(path: Path, llm_url: str, tools: StatelessDownstream, port: int, **more: Any) -> Project:
    """`parent` → `peer` → `tools`."""
    agents = {
        "parent": Agent(servers=["peer"], settings={"depends_on": ["peer"]}),
        "peer": Agent(servers=["tools"], settings={"port": port}),
    }
    servers = {
        "peer": {"transport": "http", "url": f"http://localhost:{port}/mcp"},
        "tools": {"transport": "http", "url": tools.url},
    }
    return write_project(path, agents, llm_url=llm_url, servers=servers, **more)


def own_tracing(collector: TraceCollector) -> dict[str, Any]:
    """fast-agent's own, as an operator may have it on."""
    return {"otel": {"enabled": True, "otlp_endpoint": f"{collector.base_url}/v1/traces"}}


@asynccontextmanager
async def serving(project: Project, environ: Mapping[str, str]) -> AsyncGenerator[Program]:
    """`serve`, ready."""
    silent = {"OTEL_EXPORTER_OTLP_ENDPOINT": "", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": ""}
    with started(["serve"], project.path, environ={**silent, **environ}) as program:
        await asyncio.to_thread(program.wait_for, "Try:")
        yield program


async def stopped(program: Program) -> Ran:
    program.signal(signal.SIGTERM)
    return await asyncio.to_thread(program.end, READY_SECONDS)


def address(program: Program, agent: str) -> str:
    return f"{program.url.replace('localhost', '127.0.0.1')}/agents/{agent}/mcp"


async def test_a_call_is_one_trace_from_the_caller_through_its_peer_to_the_downstream(tmp_path: Path) -> None:
    async with scripted_llm(relay) as llm, stateless_downstream() as tools, trace_collector() as collector:
        with reserved_port() as port:
            project = family(tmp_path / "project", llm.base_url, tools, port, fastagent=own_tracing(collector))
            environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.base_url, **ONLY_AT_THE_END}
            async with serving(project, environ) as program:
                for version in EACH_VERSION:
                    answer = await ask(
                        address(program, "parent"),
                        "first secret",
                        version=version,
                        bearer="the bearer",
                        headers={"traceparent": CALLER, "tracestate": "vendor=1"},
                        conversation_id=f"c-{version}",
                    )
                    assert answer.text == "third secret"
                assert collector.spans == []
                ran = await stopped(program)  # which sends what is left

    assert ran.code == 0
    assert "fast-agent tracing off" in ran.err
    roots = [span for span in collector.named("invoke_agent parent") if span.parent_id == CALLERS_SPAN]
    assert {span.trace_id for span in collector.spans} == {TRACE_ID}
    assert {span.scope for span in collector.spans} == {"pallas_gateway"}
    assert {span.resource["service.name"] for span in collector.spans} == {"pallas-gateway"}
    tree = [
        "invoke_agent parent",
        "  chat test-model",
        "  chat test-model",
        "  tools/call send_message",
        "    invoke_agent peer",
        "      chat test-model",
        "      chat test-model",
        "      tools/call echo",
    ]
    # A call that comes before what downstreams offer is known connects to ask; which do, the clock decides.
    assert [line for line in collector.tree(roots) if not line.strip().startswith("connect ")] == [*tree, *tree]
    assert [span for span in collector.spans if span.is_error] == []
    assert not any("traceparent" in request.headers for request in llm.requests)
    assert not any(collector.holds(words) for words in SECRET_WORDS)
    assert_downstream_was_handed_on(tools, collector)
    assert_attributes(roots, collector)


def assert_downstream_was_handed_on(tools: StatelessDownstream, collector: TraceCollector) -> None:
    """Each request names the span it was sent in, in its header and in `_meta`."""
    calls, spans = tools.recorder.calls("echo"), collector.named("tools/call echo")
    assert [call.headers["traceparent"] for call in calls] == [f"00-{TRACE_ID}-{span.span_id}-01" for span in spans]
    assert [call.rpc["params"]["_meta"]["traceparent"] for call in calls] == [c.headers["traceparent"] for c in calls]
    assert {call.headers["tracestate"] for call in calls} == {"vendor=1"}
    connects = {span.span_id for span in collector.named("connect tools")}
    listed = [request for request in tools.recorder.requests if request.rpc_method == "tools/list"]
    assert {one.headers["traceparent"].split("-")[2] for one in listed if "traceparent" in one.headers} == connects


def assert_attributes(roots: Any, collector: TraceCollector) -> None:
    root = roots[0]
    assert root.kind == "SERVER"
    call_id = root.attributes.pop("pallas.call_id")
    assert len(call_id) == 16
    twice = {
        "gen_ai.usage.input_tokens": 60,
        "gen_ai.usage.output_tokens": 18,
        "gen_ai.usage.cache_read.input_tokens": 40,
        "gen_ai.usage.cache_creation.input_tokens": 0,
        "gen_ai.usage.reasoning.output_tokens": 8,
    }
    assert root.attributes == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "parent",
        "mcp.method.name": "tools/call",
        "gen_ai.conversation.id": f"c-{EACH_VERSION[0]}",
        "pallas.outcome": "ok",
        "pallas.stop_reason": "endTurn",
        "pallas.iterations": 2,
        **twice,
    }
    asking = next(span for span in collector.below(root) if span.name == "chat test-model")
    assert asking.kind == "CLIENT"
    assert asking.attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.agent.name": "parent",
        "gen_ai.request.model": "test-model",
        "gen_ai.response.finish_reasons": ["toolUse"],
        **{name: tokens // 2 for name, tokens in twice.items()},
    }
    tool = collector.named("tools/call echo")[0]
    assert tool.kind == "CLIENT"
    assert tool.attributes == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "echo",
        "mcp.method.name": "tools/call",
        "pallas.server": "tools",
    }


SAYS_WHAT_IS_IMPORTED = """
import atexit, sys
PARTS = ("opentelemetry.sdk", "opentelemetry.exporter", "opentelemetry.instrumentation")
atexit.register(lambda: print("imported:", [one for one in [*sys.modules] if one.startswith(PARTS)], file=sys.stderr))
"""


async def test_without_a_collector_nothing_is_imported_and_a_callers_trace_is_handed_on_as_it_came(
    tmp_path: Path,
) -> None:
    script: list[Turn] = [call_tools([("tools__echo", {"text": "hi"})]), say("done")]
    async with scripted_llm(script * 4) as llm, stateless_downstream() as tools:
        servers = {"tools": {"transport": "http", "url": tools.url}}
        source = SAYS_WHAT_IS_IMPORTED + module_source("plain", Agent(servers=["tools"]))
        project = write_project(tmp_path / "p", {"plain": Agent(source=source)}, llm_url=llm.base_url, servers=servers)
        async with serving(project, {}) as program:
            for version in EACH_VERSION:
                await ask(address(program, "plain"), version=version)
                await ask(address(program, "plain"), version=version, headers={"traceparent": CALLER})
            ran = await stopped(program)

    calls = tools.recorder.calls("echo")
    assert [call.headers.get("traceparent") for call in calls] == [None, CALLER, None, CALLER]
    metas = [call.rpc["params"].get("_meta", {}).get("traceparent") for call in calls]
    assert metas == [None, CALLER, None, CALLER]
    assert "imported: []" in ran.err
