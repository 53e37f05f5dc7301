"""Agents that call agents of the same gateway: how they are found, counted, limited, drained and kept apart."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from pallas_gateway.doors.mcp.endpoint import McpEndpoint
from tests.support.calling import EACH_VERSION, ask
from tests.support.certificates import TLS_FILES, write_certificate
from tests.support.clients import raw_client
from tests.support.gateway import (
    Agent,
    gateway_and_model,
    module_source,
    record_calls,
    running,
    until_idle,
    write_project,
)
from tests.support.listener import reserved_port
from tests.support.scripted_llm import LlmRequest, Turn, call_tools, hang, say, scripted_llm
from tests.support.waiting import Gate, eventually
from tests.support.watching import relay, speaker

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from pallas_gateway.doors.mcp.envelope import McpRequest
    from tests.support.asgi import Send
    from tests.support.gateway import Project
    from tests.support.scripted_llm import Script, ScriptedLlm

HOST = "gateway.example.test"  # the top-level `host`; nothing resolves it, which is the point


def endless(request: LlmRequest) -> Turn:
    """`left` and `right` call each other until one is refused."""
    if request.tool_results:
        return say(" | ".join(request.tool_results.values()))
    other = {"left": "right", "right": "left"}[speaker(request)]
    return call_tools([(f"{other}__send_message", {"message": "you do it"})])


def relay_to_all(servers: Iterable[str]) -> Script:
    """`parent` hands its message to the peer by each of its servers."""

    def script(request: LlmRequest) -> Turn:
        if speaker(request) != "parent":
            return relay(request)
        if request.tool_results:
            return say(" | ".join(request.tool_results.values()))
        return call_tools([(f"{one}__send_message", {"message": request.last_user_text}) for one in servers])

    return script


def family(
    path: Path,
    llm: ScriptedLlm,
    url: str,
    *,
    port: int,
    gateway: Mapping[str, object] | None = None,
    peer: Mapping[str, object] | None = None,
    forwards: bool = False,
    deployment: Mapping[str, object] | None = None,
) -> Project:
    """`parent` with `peer` as its downstream at `url`, whose documented port is `port`."""
    agents = {
        "parent": Agent(servers=["peer"], settings={"depends_on": ["peer"]}),
        "peer": Agent(settings={"port": port, **(peer or {})}),
    }
    servers = {"peer": {"transport": "http", "url": url, "forward_inbound_auth": forwards}}
    return write_project(
        path,
        agents,
        llm_url=llm.base_url,
        servers=servers,
        gateway=gateway,
        deployment={"host": HOST, **(deployment or {})},
    )


async def test_peer_answers_under_every_address_it_may_be_written_as(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    written = [
        "http://localhost:{port}/mcp",
        "http://127.0.0.1:{port}/mcp",
        f"http://{HOST}:{{port}}/mcp",
        "http://localhost:{port}/mcp/",
        "http://localhost:{port}",
        "http://localhost:{gateway}/agents/peer/mcp",
        f"http://{HOST}:{{gateway}}/agents/peer/mcp",
    ]
    caplog.set_level("INFO", logger="pallas")
    with reserved_port() as documented, reserved_port() as own:
        urls = [one.format(port=documented, gateway=own) for one in written]
        servers = {f"peer{n}": {"transport": "http", "url": url} for n, url in enumerate(urls)}
        agents = {
            "parent": Agent(servers=[*servers], settings={"depends_on": ["peer"]}),
            "peer": Agent(settings={"port": documented}),
        }
        gateway, deployment = {"port": own}, {"host": HOST}
        async with scripted_llm(relay_to_all(servers)) as llm:
            project = write_project(
                tmp_path, agents, llm_url=llm.base_url, servers=servers, gateway=gateway, deployment=deployment
            )
            async with running(project) as served:
                answers = [await ask(served.url("parent"), text) for text in ("tea?", "more?")]

    heard = [" | ".join([f"peer heard {text}"] * len(urls)) for text in ("tea?", "more?")]
    assert [answer.text for answer in answers] == heard
    notes = [vars(record) for record in caplog.records if getattr(record, "peer", None)]
    assert {(note["agent"], note["server"], note["peer"]) for note in notes} == {
        ("parent", server, "peer") for server in servers
    }
    assert len(notes) == len(servers)


async def test_nested_calls_take_no_place_of_the_gateway(tmp_path: Path) -> None:
    with reserved_port() as port:
        async with scripted_llm(relay) as llm:
            limits = {"max_in_flight": 1, "queue_seconds": 0.05}
            project = family(tmp_path, llm, f"http://localhost:{port}/mcp", port=port, gateway=limits)
            async with running(project) as served:
                answer = await ask(served.url("parent"), "alone?")

    assert (answer.text, answer.is_error) == ("told: peer heard alone?", False)


async def test_nested_calls_do_take_a_place_of_their_agent(tmp_path: Path) -> None:
    gate = Gate()

    def script(request: LlmRequest) -> Turn:
        return hang(gate) if request.last_user_text == "stay" else relay(request)

    with reserved_port() as port:
        async with scripted_llm(script) as llm:
            project = family(
                tmp_path,
                llm,
                f"http://localhost:{port}/mcp",
                port=port,
                gateway={"queue_seconds": 0.05},
                peer={"max_in_flight": 1},
            )
            async with running(project) as served, asyncio.TaskGroup() as group:
                group.create_task(ask(served.url("peer"), "stay"))
                await gate.wait_for_entered()
                answer = await ask(served.url("parent"), "anybody?")
                gate.open()

    assert "busy" in answer.text
    assert not answer.is_error  # the model was told, and answered


@pytest.mark.parametrize("max_nesting", [0, 3])
async def test_circle_of_peers_ends_with_an_error_the_model_reads(max_nesting: int, tmp_path: Path) -> None:
    with reserved_port() as left, reserved_port() as right:
        agents = {
            "left": Agent(servers=["right"], settings={"port": left}),
            "right": Agent(servers=["left"], settings={"port": right}),
        }
        servers = {
            "left": {"transport": "http", "url": f"http://localhost:{left}/mcp"},
            "right": {"transport": "http", "url": f"http://localhost:{right}/mcp"},
        }
        gateway = {"max_nesting": max_nesting}
        async with gateway_and_model(tmp_path, agents, endless, servers=servers, gateway=gateway) as (served, llm):
            answer = await ask(served.url("left"), "go on")
            await until_idle(served)
            refused = served.metric(
                "pallas_calls_refused_total", agent="left" if max_nesting else "right", reason="nesting_too_deep"
            )

    assert not answer.is_error
    assert f"was called {max_nesting + 1} calls deep; the limit is {max_nesting}" in answer.text
    assert "Answer without calling another agent" in answer.text
    assert len(llm.requests) == 2 * (max_nesting + 1)
    assert refused == 1


@pytest.mark.parametrize("forwards", [False, True])
async def test_peer_gets_the_callers_bearer_only_if_it_opted_in(
    forwards: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with reserved_port() as port:
        async with scripted_llm(relay) as llm:
            project = family(tmp_path, llm, f"http://localhost:{port}/mcp", port=port, forwards=forwards)
            async with running(project) as served:
                calls = record_calls(served, "peer", monkeypatch)
                await ask(served.url("parent"), bearer="alice-token")

    assert [call.is_nested for call in calls] == [True]
    bearer = calls[0].caller.bearer
    assert (bearer.reveal() if bearer else None) == ("alice-token" if forwards else None)


@pytest.mark.parametrize("version", EACH_VERSION)
async def test_draining_gateway_admits_nested_calls_only(version: str, tmp_path: Path) -> None:
    gate = Gate()

    def script(request: LlmRequest) -> Turn:
        return hang(gate, relay(request)) if speaker(request) == "parent" else relay(request)

    with reserved_port() as port:
        async with scripted_llm(script) as llm:
            project = family(tmp_path, llm, f"http://localhost:{port}/mcp", port=port)
            async with running(project) as served, raw_client(served.url("peer"), protocol_version=version) as late:
                running_call = asyncio.create_task(ask(served.url("parent"), "last one", version=version))
                await gate.wait_for_entered()
                served.stop.set()
                await eventually(lambda: served.gateway.calls.draining, what="the drain")
                refused = await late.call_tool("send_message", {"message": "too late"})
                gate.open()
                answer = await running_call

    assert refused.status == 503
    assert int(refused.headers["retry-after"]) > 0
    assert answer.text == "told: peer heard last one"


@pytest.mark.parametrize("written", ["http://localhost:{port}/mcp", "https://localhost:{gateway}/agents/peer/mcp"])
async def test_peers_work_behind_tls(written: str, tmp_path: Path) -> None:
    with reserved_port() as documented, reserved_port() as own:
        async with scripted_llm(relay) as llm:
            url = written.format(port=documented, gateway=own)
            gateway = {"port": own, "tls": TLS_FILES}
            project = family(tmp_path, llm, url, port=documented, gateway=gateway)
            tls = write_certificate(tmp_path)
            async with running(project):
                outside = f"https://localhost:{own}/agents/parent/mcp"
                answer = await ask(outside, "safe?", tls=tls)

    assert answer.text == "told: peer heard safe?"


@pytest.mark.parametrize("mode", ["single port", "per port", "tls"])
async def test_peer_is_called_without_a_request(mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = []
    handle = McpEndpoint.handle

    async def noting(self: McpEndpoint, request: McpRequest, send: Send) -> None:
        requests.append((request.http.scope["scheme"], request.http.scope["server"][1]))
        await handle(self, request, send)

    monkeypatch.setattr(McpEndpoint, "handle", noting)
    with reserved_port() as documented, reserved_port() as own, reserved_port() as parents:
        async with scripted_llm(relay) as llm:
            tls = write_certificate(tmp_path) if mode == "tls" else None
            gateway = {"port": own, "per_port": mode == "per port", **({"tls": TLS_FILES} if tls else {})}
            url, ports = f"http://localhost:{documented}/mcp", {"registry_port": own}
            project = family(tmp_path, llm, url, port=documented, gateway=gateway, deployment=ports)
            project.edit(lambda document: document["agents"]["parent"].update(port=parents))
            async with running(project):
                base = f"http://127.0.0.1:{parents}" if mode == "per port" else f"http://127.0.0.1:{own}/agents/parent"
                url = base.replace("http://127.0.0.1", "https://localhost") if tls else base
                texts = [f"text {n}" for n in range(6)]
                answers = await asyncio.gather(*(ask(f"{url}/mcp", text, tls=tls) for text in texts))

    assert [answer.text for answer in answers] == [f"told: peer heard {text}" for text in texts]
    assert set(requests) == {("https" if tls else "http", parents if mode == "per port" else own)}


async def test_agent_that_calls_itself_ends_at_the_nesting_limit(tmp_path: Path) -> None:
    def script(request: LlmRequest) -> Turn:
        results = request.tool_results
        return say(" | ".join(results.values())) if results else call_tools([("me__send_message", {"message": "on"})])

    with reserved_port() as port:
        servers = {"me": {"transport": "http", "url": f"http://localhost:{port}/mcp"}}
        async with scripted_llm(script) as llm:
            agents = {"solo": Agent(servers=["me"], settings={"port": port})}
            project = write_project(tmp_path, agents, llm_url=llm.base_url, servers=servers, gateway={"max_nesting": 2})
            async with running(project) as served:
                answer = await ask(served.url("solo"), "go")
                await until_idle(served)

    assert "Agent 'solo' was called 3 calls deep; the limit is 2" in answer.text
    assert len(llm.requests) == 6


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("raise RuntimeError('no luck')", "told: Agent 'peer' cannot take calls: "),
        (module_source("peer", Agent(servers=["dead"])), "told: peer heard how are you?"),
    ],
    ids=["failed", "degraded"],
)
async def test_peer_in_any_state_answers_what_its_state_allows(source: str, told: str, tmp_path: Path) -> None:
    with reserved_port() as port, reserved_port() as dead:
        async with scripted_llm(relay) as llm:
            project = family(tmp_path, llm, f"http://localhost:{port}/mcp", port=port)
            add = {"dead": {"transport": "http", "url": f"http://127.0.0.1:{dead}/mcp"}}
            project.edit(lambda settings: settings["mcp"]["servers"].update(add), "fastagent.config.yaml")
            project.write_module("peer", source)
            async with running(project) as served:
                answer = await ask(served.url("parent"), "how are you?")

    assert answer.text.startswith(told)
    assert not answer.is_error


async def test_peer_is_waited_for_as_long_as_its_entry_allows(tmp_path: Path) -> None:
    gate = Gate()

    def script(request: LlmRequest) -> Turn:
        return relay(request) if speaker(request) == "parent" else hang(gate)

    with reserved_port() as port:
        async with scripted_llm(script) as llm:
            project = family(tmp_path, llm, f"http://localhost:{port}/mcp", port=port)
            limit = {"read_timeout_seconds": 3}
            project.edit(lambda settings: settings["mcp"]["servers"]["peer"].update(limit), "fastagent.config.yaml")
            async with running(project) as served:
                answer = await ask(served.url("parent"), "hello?")
                await until_idle(served)
                cancelled = served.metric("pallas_send_message_total", agent="peer", outcome="error")

    assert answer.text == "told: Failed to call_tool 'send_message' on server 'peer': no answer within 3 s"
    assert cancelled == 1
