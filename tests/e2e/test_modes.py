"""One port for everything, a port per agent, one agent alone: the same agents behind three route tables."""

from __future__ import annotations

import json
import socket
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from pallas_gateway.config.loading.loader import Overrides
from pallas_gateway.process.sockets import BindError
from tests.support.calling import EACH_VERSION, Answer, ask, health
from tests.support.certificates import TLS_FILES, write_certificate
from tests.support.clients import raw_client
from tests.support.downstreams import stateless_downstream
from tests.support.gateway import Agent, Running, running, write_project
from tests.support.listener import reserved_port
from tests.support.scripted_llm import LlmRequest, Turn, call_tools, say, scripted_llm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

PER_PORT = Overrides(per_port=True)
REGISTRY = "/.well-known/mcp/server.json"


@dataclass(frozen=True)
class Ports:
    """Ports nobody listens on until the gateway does."""

    registry: int
    one: int
    two: int

    def of(self, agent: str) -> str:
        return f"http://127.0.0.1:{getattr(self, agent)}"


@pytest.fixture
def ports() -> Iterator[Ports]:
    with ExitStack() as reserved:
        yield Ports(*(reserved.enter_context(reserved_port()) for _ in range(3)))


def project_arguments(ports: Ports) -> dict[str, Any]:
    """Agents `one` and `two` with ports of their own; per-port mode would bind every interface without `host`."""
    return {
        "agents": {name: Agent(settings={"port": getattr(ports, name)}) for name in ("one", "two")},
        "gateway": {"host": "127.0.0.1"},
        "deployment": {"registry_port": ports.registry, "host": "127.0.0.1"},
    }


@pytest.mark.parametrize("version", EACH_VERSION)
async def test_per_port_serves_each_agent_at_its_own_port_only(version: str, ports: Ports, tmp_path: Path) -> None:
    project = write_project(tmp_path, **project_arguments(ports))
    async with running(project, overrides=PER_PORT):
        for name in ("one", "two"):
            for path in ("/mcp", "/mcp/"):
                answer = await ask(f"{ports.of(name)}{path}", version=version)
                assert (answer.text, answer.meta["agent"]) == ("hello", name)
            async with raw_client(f"{ports.of(name)}/mcp", protocol_version=version) as client:
                assert [tool["name"] for tool in await client.list_tools()] == ["send_message", name, "get_health"]
            for path in ("/agents/one/mcp", "/agents/two/mcp"):
                await assert_not_found(f"{ports.of(name)}{path}", version)
        for path in ("/mcp", "/agents/one/mcp"):
            await assert_not_found(f"{ports.of('registry')}{path}", version)


async def test_per_port_registry_is_on_its_own_port_with_each_agents_url(ports: Ports, tmp_path: Path) -> None:
    project = write_project(tmp_path, **project_arguments(ports))
    async with running(project, overrides=PER_PORT):
        listed = await get(f"{ports.of('registry')}{REGISTRY}")
        assert (await get(f"{ports.of('registry')}/v0.1/servers")).json()["servers"] == listed.json()["servers"]
        for name in ("one", "two"):
            assert (await get(f"{ports.of(name)}{REGISTRY}")).status_code == 404

        remotes = [entry["server"]["remotes"] for entry in listed.json()["servers"]]
        assert remotes == [[{"type": "streamable-http", "url": f"{ports.of(name)}/mcp"}] for name in ("one", "two")]
        for [remote] in remotes:
            assert (await ask(remote["url"], "as listed")).text == "as listed"


async def test_per_port_answers_probes_and_metrics_on_every_port(ports: Ports, tmp_path: Path) -> None:
    project = write_project(tmp_path, **project_arguments(ports))
    async with running(project, overrides=PER_PORT):
        for listener in ("registry", "one", "two"):
            assert (await get(f"{ports.of(listener)}/livez")).status_code == 200
            assert (await get(f"{ports.of(listener)}/readyz?strict=1")).status_code == 200
            metrics = (await get(f"{ports.of(listener)}/metrics")).text
            for name in ("one", "two"):
                assert f'pallas_agent_info{{agent="{name}",port="{getattr(ports, name)}"}} 1.0' in metrics


async def test_per_port_may_be_asked_for_in_the_file(ports: Ports, tmp_path: Path) -> None:
    arguments = project_arguments(ports)
    arguments["gateway"]["per_port"] = True
    async with running(write_project(tmp_path, **arguments)):
        assert (await ask(f"{ports.of('two')}/mcp")).meta["agent"] == "two"


@pytest.mark.parametrize("version", EACH_VERSION)
async def test_one_agent_alone_is_at_its_own_port_without_a_registry(
    version: str, ports: Ports, tmp_path: Path
) -> None:
    arguments = project_arguments(ports)
    arguments["agents"]["two"].settings["depends_on"] = ["one"]  # which is not started for it
    async with running(write_project(tmp_path, **arguments), overrides=Overrides(agent="two")) as served:
        assert (await ask(f"{ports.of('two')}/mcp", version=version)).meta["agent"] == "two"
        assert (await health(f"{ports.of('two')}/mcp", version=version))["status"] == "ok"
        for path in (REGISTRY, "/v0.1/servers", "/agents/two/mcp"):
            assert (await get(f"{ports.of('two')}{path}")).status_code == 404
        for path in ("/livez", "/readyz", "/metrics"):
            assert (await get(f"{ports.of('two')}{path}")).status_code == 200
        assert list(served.gateway.agents) == ["two"]
        for silent in ("one", "registry"):
            with pytest.raises(httpx.ConnectError):
                await get(f"{ports.of(silent)}/livez")


@pytest.mark.parametrize("version", EACH_VERSION)
async def test_same_calls_get_the_same_answers_in_every_mode(version: str, ports: Ports, tmp_path: Path) -> None:
    modes: Mapping[str, tuple[Overrides, Callable[[Running], str]]] = {
        "single": (Overrides(), lambda served: served.url("one")),
        "per-port": (PER_PORT, lambda _: f"{ports.of('one')}/mcp"),
        "alone": (Overrides(agent="one"), lambda _: f"{ports.of('one')}/mcp"),
    }
    transcripts = {}
    async with stateless_downstream() as tools:
        for mode, (overrides, url) in modes.items():
            async with scripted_llm(adds_when_asked) as llm:
                arguments = project_arguments(ports)
                arguments["agents"]["one"] = Agent(servers=["tools"], settings={"port": ports.one})
                project = write_project(
                    tmp_path / mode,
                    **arguments,
                    llm_url=llm.base_url,
                    servers={"tools": {"transport": "http", "url": tools.url}},
                )
                async with running(project, overrides=overrides) as served:
                    transcripts[mode] = await transcript(url(served), version)

    assert transcripts["per-port"] == transcripts["single"]
    assert transcripts["alone"] == transcripts["single"]
    assert [answer["text"] for answer in transcripts["single"][-3:]] == ["hi", "sum: 3", "hi"]


@pytest.mark.parametrize("tls", [None, TLS_FILES], ids=["http", "https"])
async def test_per_port_agents_call_each_other(tls: dict[str, str] | None, ports: Ports, tmp_path: Path) -> None:
    def script(request: LlmRequest) -> Turn:
        if request.tool_results:
            return say(" ".join(request.tool_results.values()))
        if "two__send_message" in request.tools:
            return call_tools([("two__send_message", {"message": "your turn"})])
        return say("two here")

    async with scripted_llm(script) as llm:
        arguments = project_arguments(ports)
        arguments["agents"]["one"] = Agent(servers=["two"], settings={"port": ports.one})
        arguments["gateway"]["tls"] = tls
        servers = {"two": {"transport": "http", "url": f"http://localhost:{ports.two}/mcp"}}
        project = write_project(tmp_path, **arguments, llm_url=llm.base_url, servers=servers)
        trusting = write_certificate(tmp_path)
        async with running(project, overrides=PER_PORT):
            url = f"{ports.of('one')}/mcp"
            answer = await (ask(url.replace("http", "https"), tls=trusting) if tls else ask(url))

    assert answer.text == "two here"


@pytest.mark.parametrize(
    ("overrides", "taken"),
    [(PER_PORT, "two"), (PER_PORT, "registry"), (Overrides(), "registry"), (Overrides(agent="one"), "one")],
)
async def test_port_that_is_taken_is_named(overrides: Overrides, taken: str, ports: Ports, tmp_path: Path) -> None:
    arguments = project_arguments(ports)
    arguments["gateway"]["port"] = ports.registry
    project = write_project(tmp_path, **arguments)
    with listening_on(getattr(ports, taken)), pytest.raises(BindError, match=f"127.0.0.1:{getattr(ports, taken)}: "):
        async with running(project, overrides=overrides):
            pytest.fail("it was served")

    async with running(project, overrides=overrides):  # nothing was left bound, and the port is free again
        pass


def adds_when_asked(request: LlmRequest) -> Turn:
    if request.tool_results:
        return say("sum: 3")
    if "add" in request.last_user_text:
        return call_tools([("tools__add", {"a": 1, "b": 2})])
    return say("hi")


async def transcript(url: str, version: str) -> list[dict[str, Any]]:
    """What a client sees of one agent, without what differs from call to call."""
    seen: list[dict[str, Any]] = []
    async with raw_client(url, protocol_version=version) as client:
        seen.append({"tools": await client.list_tools()})
        seen.append({"prompts": (await client.request("prompts/list")).result})
        seen.append({"unknown tool": (await client.request("tools/call", {"name": "nothing"})).error})
        seen.append({"unknown method": (await client.request("no/such")).error})
        seen.append({"GET": (await client.http.get(url)).status_code})
        seen.append({"status": (await health(url, version=version))["status"]})
    bad_image = [{"data": "?", "mime_type": "image/png"}]
    seen.append(told(await ask(url, version=version, images=bad_image)))
    seen.append(told(await ask(url, "hello", version=version, conversation_id="c")))
    seen.append(told(await ask(url, "add 1 and 2", version=version)))
    seen.append(told(await ask(url, "hello", version=version, history=[{"role": "user", "content": "before"}])))
    return seen


def told(answer: Answer) -> dict[str, Any]:
    meta = {key: value for key, value in answer.meta.items() if key not in {"call_id", "duration_seconds"}}
    return {"text": answer.text, "is_error": answer.is_error, "meta": meta}


async def assert_not_found(url: str, version: str) -> None:
    """404 as JSON, to a POST that would otherwise be a call."""
    async with raw_client(url, protocol_version=version) as client:
        reply = await client.call_tool("send_message", {"message": "hello"})
    assert reply.status == 404
    assert reply.headers["content-type"] == "application/json"
    assert "error" in json.loads(reply.text)


async def get(url: str) -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False) as http:
        return await http.get(url)


@contextmanager
def listening_on(port: int) -> Iterator[None]:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", port))
        taken.listen()
        yield
