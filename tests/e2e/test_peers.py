"""Agents that call agents, of the same gateway and of others: how they are found, counted, limited and kept apart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pallas_gateway.doors.mcp.endpoint import McpEndpoint
from pallas_gateway.doors.mcp.envelope import McpRequest
from tests.support.asgi import Send
from tests.support.calling import EACH_VERSION, answer_of, ask
from tests.support.certificates import TLS_FILES, write_certificate
from tests.support.clients import raw_client
from tests.support.gateway import (
    Agent,
    Running,
    gateway_and_model,
    record_calls,
    running,
    until_idle,
    write_project,
)
from tests.support.listener import reserved_port
from tests.support.pairs import pairs
from tests.support.scripted_llm import LlmRequest, Script, Turn, call_tools, hang, say
from tests.support.slow_proxy import slow_proxy
from tests.support.waiting import Gate
from tests.support.watching import relay, speaker, stage

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


@asynccontextmanager
async def family(
    path: Path,
    script: Script = relay,
    *,
    peer: Agent = Agent(),  # noqa: B008  it is frozen
    server: Mapping[str, object] | None = None,
    gateway: Mapping[str, object] | None = None,
) -> AsyncIterator[Running]:
    """Serve `parent` with `peer` as its downstream; `server` is more of that entry."""
    with reserved_port() as port, reserved_port() as dead:
        agents = {
            "parent": Agent(servers=["peer"], settings={"depends_on": ["peer"]}),
            "peer": replace(peer, settings={"port": port, **peer.settings}),
        }
        servers: dict[str, Mapping[str, object]] = {
            "peer": {"url": f"http://localhost:{port}/mcp", **(server or {})},
            "dead": {"url": f"http://127.0.0.1:{dead}/mcp"},
        }
        async with gateway_and_model(path, agents, script, servers=servers, gateway=gateway) as (served, _):
            yield served


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
        more: dict[str, Any] = {"servers": servers, "gateway": {"port": own}, "deployment": {"host": HOST}}
        async with gateway_and_model(tmp_path, agents, relay_to_all(servers), **more) as (served, _):
            answers = [await ask(served.url("parent"), text) for text in ("tea?", "more?")]

    heard = [" | ".join([f"peer heard {text}"] * len(urls)) for text in ("tea?", "more?")]
    assert [answer.text for answer in answers] == heard
    notes = [vars(record) for record in caplog.records if getattr(record, "peer", None)]
    assert {(note["agent"], note["server"], note["peer"]) for note in notes} == {
        ("parent", server, "peer") for server in servers
    }
    assert len(notes) == len(servers)


async def test_nested_calls_take_no_place_of_the_gateway(tmp_path: Path) -> None:
    async with family(tmp_path, gateway={"max_in_flight": 1, "queue_seconds": 0.05}) as served:
        answer = await ask(served.url("parent"), "alone?")

    assert (answer.text, answer.is_error) == ("told: peer heard alone?", False)


async def test_nested_calls_do_take_a_place_of_their_agent(tmp_path: Path) -> None:
    gate = Gate()

    def script(request: LlmRequest) -> Turn:
        return hang(gate) if request.last_user_text == "stay" else relay(request)

    limited = Agent(settings={"max_in_flight": 1})
    async with (
        family(tmp_path, script, peer=limited, gateway={"queue_seconds": 0.05}) as served,
        asyncio.TaskGroup() as group,
    ):
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
    async with family(tmp_path, server={"forward_inbound_auth": forwards}) as served:
        calls = record_calls(served, "peer", monkeypatch)
        await ask(served.url("parent"), bearer="alice-token")

    assert [call.is_nested for call in calls] == [True]
    bearer = calls[0].caller.bearer
    assert (bearer.reveal() if bearer else None) == ("alice-token" if forwards else None)


DOCUMENTED, HERE = "http://localhost:{documented}/mcp", "https://localhost:{own}/agents/peer/mcp"


@pytest.mark.parametrize(
    ("mode", "written"),
    [("single port", DOCUMENTED), ("per port", DOCUMENTED), ("tls", HERE), ("per port, tls", DOCUMENTED)],
)
async def test_peer_is_called_without_a_request(
    mode: str, written: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = []
    handle = McpEndpoint.handle

    async def noting(self: McpEndpoint, request: McpRequest, send: Send) -> None:
        requests.append((request.http.scope["scheme"], request.http.scope["server"][1]))
        await handle(self, request, send)

    monkeypatch.setattr(McpEndpoint, "handle", noting)
    per_port, tls = "per port" in mode, write_certificate(tmp_path) if "tls" in mode else None
    with reserved_port() as documented, reserved_port() as own, reserved_port() as parents:
        server = {"url": written.format(documented=documented, own=own)}
        agents = {
            "parent": Agent(servers=["peer"], settings={"port": parents}),
            "peer": Agent(settings={"port": documented}),
        }
        gateway = {"host": "127.0.0.1", "port": own, "per_port": per_port, **({"tls": TLS_FILES} if tls else {})}
        more: dict[str, Any] = {"servers": {"peer": server}, "gateway": gateway, "deployment": {"registry_port": own}}
        async with gateway_and_model(tmp_path, agents, relay, **more):
            scheme, port = "https" if tls else "http", parents if per_port else own
            url = f"{scheme}://localhost:{port}{'' if per_port else '/agents/parent'}/mcp"
            texts = [f"text {n}" for n in range(6)]
            answers = await asyncio.gather(*(ask(url, text, tls=tls) for text in texts))

    assert [answer.text for answer in answers] == [f"told: peer heard {text}" for text in texts]
    assert set(requests) == {(scheme, port)}


@pytest.mark.parametrize(
    ("peer", "told"),
    [
        (Agent(source="raise RuntimeError('no luck')"), "told: Agent 'peer' cannot take calls: "),
        (Agent(servers=["dead"]), "told: peer heard how are you?"),
    ],
    ids=["failed", "degraded"],
)
async def test_peer_in_any_state_answers_what_its_state_allows(peer: Agent, told: str, tmp_path: Path) -> None:
    async with family(tmp_path, peer=peer) as served:
        answer = await ask(served.url("parent"), "how are you?")

    assert answer.text.startswith(told)
    assert not answer.is_error


async def test_peer_is_waited_for_as_long_as_its_entry_allows(tmp_path: Path) -> None:
    gate = Gate()

    def script(request: LlmRequest) -> Turn:
        return relay(request) if speaker(request) == "parent" else hang(gate)

    async with family(tmp_path, script, server={"read_timeout_seconds": 3}) as served:
        answer = await ask(served.url("parent"), "hello?")
        await until_idle(served)
        cancelled = served.metric("pallas_send_message_total", agent="peer", outcome="error")

    assert answer.text == "told: Failed to call_tool 'send_message' on server 'peer': no answer within 3 s"
    assert cancelled == 1


# --- depths over other gateways ---------------------------------------------------------------------------------------

META = "pallas/nesting"
DOORS = [("/agents/echo/mcp", "send_message"), ("/mcp", "agent-echo")]


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_circle_over_other_gateways_ends_at_the_limit(mode: str, tmp_path: Path) -> None:
    def ask_again(request: LlmRequest) -> Turn:
        if request.tool_results:
            return say(" | ".join(request.tool_results.values()))
        return call_tools([("other__send_message", {"message": "you do it"})])

    # By way of the proxy, the gateway is another one to itself.
    with reserved_port() as port:
        async with slow_proxy(port) as url:
            servers = {"other": {"url": f"{url}/agents/echo/mcp", "protocol_mode": mode}}
            agents, gateway = {"echo": Agent(servers=["other"])}, {"port": port, "max_nesting": 3}
            async with gateway_and_model(tmp_path, agents, ask_again, servers=servers, gateway=gateway) as (
                served,
                llm,
            ):
                answer = await ask(served.url("echo"), "go")
                await until_idle(served)

    assert "was called 4 calls deep; the limit is 3" in answer.text
    assert len(llm.requests) == 2 * 4


@pairs({"stated, sent": [(4, 5), (None, 1), (-7, 1)], "era": ["initialize", "modern"]})
async def test_downstreams_of_each_era_read_the_depth(era: Any, stated: int | None, sent: int, tmp_path: Path) -> None:
    def script(request: LlmRequest) -> Turn:
        return say("done") if request.tool_results else call_tools([("tools__add", {"a": 1, "b": 2})])

    async with stage(tmp_path, script, era=era) as staged, raw_client(staged.url("solo")) as client:
        meta = {} if stated is None else {META: stated}
        await client.call_tool("send_message", {"message": "add"}, meta=meta)

    [call] = staged.tools.recorder.calls("add")
    assert call.rpc["params"]["_meta"][META] == sent


@pytest.mark.parametrize("version", EACH_VERSION)
async def test_a_stated_depth_counts_only_towards_the_limit(version: str, tmp_path: Path) -> None:
    refused: list[Any] = [9, 9.0, 10**30]
    ignored: list[Any] = [0, 8, -1, -(10**30), True, "9", None, [9], {"a": 9}, 8.5]
    async with running(write_project(tmp_path, {"echo": Agent()}, gateway={"max_in_flight": 1})) as served:
        for path, tool in DOORS:
            async with raw_client(f"{served.base_url}{path}", protocol_version=version) as client:
                for stated in refused:
                    answer = answer_of(await client.call_tool(tool, {"message": "hi"}, meta={META: stated}))
                    assert (answer.is_error, answer.meta["stop_reason"]) == (True, "nesting_too_deep"), stated
                for stated in ignored:
                    answer = answer_of(await client.call_tool(tool, {"message": "hi"}, meta={META: stated}))
                    assert (answer.text, answer.is_error) == ("hi", False), stated
