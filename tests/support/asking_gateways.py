"""Gateways whose model calls the tools that a message names, and whose downstream asks."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mcp import Client
from starlette.types import Receive, Scope, Send

from pallas_gateway.process.workers.forwarding import WorkerForwarding
from tests.support.askable_callers import Person, client_of
from tests.support.asking import FORM, Asking, asking_downstream
from tests.support.downstreams import Era
from tests.support.gateway import Agent, Project, Running, running, until_idle, write_project
from tests.support.scripted_llm import LlmRequest, Script, ScriptedLlm, Turn, call_tools, say, scripted_llm

HUMAN = ("__human_input", {"message": FORM, "fields": [{"name": "name", "type": "text", "required": True}]})


def calls_the_tool_it_is_told(request: LlmRequest) -> Turn:
    """Call the tools that the message names (after `PEER: `, let that agent do it), then repeat what they brought."""
    if request.tool_results:
        return say(" | ".join(text for _, text in sorted(request.tool_results.items())))
    peer, _, message = request.last_user_text.partition(": ")
    if message:
        return call_tools([(f"{peer}__send_message", {"message": message})])
    return call_tools([tool_named(word) for word in request.last_user_text.split()])


def tool_named(word: str) -> tuple[str, dict[str, Any]]:
    return HUMAN if word == "human" else (f"asking__{word}", {})


def project_of(
    path: Path, llm: ScriptedLlm, server: dict[str, Any], agent: Agent | None = None, **project: Any
) -> Project:
    agents = project.pop("agents", None) or {"user": agent or Agent(["asking"])}
    return write_project(path, agents, llm_url=llm.base_url, servers={"asking": server}, **project)


@asynccontextmanager
async def gateway_of(
    path: Path,
    server: dict[str, Any],
    agent: Agent | None = None,
    *,
    script: Script = calls_the_tool_it_is_told,
    **project: Any,
) -> AsyncIterator[Running]:
    async with scripted_llm(script) as llm, running(project_of(path, llm, server, agent, **project)) as served:
        yield served
        await until_idle(served)


def questions(served: Running, kind: str, outcome: str) -> float:
    return served.metric("pallas_questions_total", agent="user", kind=kind, outcome=outcome)


@asynccontextmanager
async def chain_of_agents(
    path: Path, url: str, *, gateway: dict[str, Any] | None = None, **settings: dict[str, Any]
) -> AsyncIterator[Running]:
    """`top` calls `boss`, which calls `user`, whose downstream asks."""
    agents = {
        "top": Agent(["boss"], settings={"depends_on": ["boss"], **settings.get("top", {})}),
        "boss": Agent(["user"], settings={"depends_on": ["user"], **settings.get("boss", {})}),
        "user": Agent(["asking"], settings=settings.get("user", {}), decorator="human_input=True"),
    }
    async with scripted_llm(calls_the_tool_it_is_told) as llm:
        project = write_project(path, agents, llm_url=llm.base_url, servers={"asking": {"url": url}}, gateway=gateway)
        async with running(project) as served:
            yield served
            await until_idle(served)


@asynccontextmanager
async def neighbours(
    path: Path, url: str, script: Script, **settings_of_one: Any
) -> AsyncIterator[tuple[Running, Running]]:
    """Two gateways with the same keys that forward requests to each other, as two workers do."""
    keys = {"state_keys": ["k" * 32]}
    with TemporaryDirectory() as folder:  # paths of sockets are short
        async with (
            gateway_of(path / "one", {"url": url}, gateway={**keys, **settings_of_one}, script=script) as one,
            gateway_of(path / "two", {"url": url}, gateway=keys, script=script) as two,
            forwarding_of(one, Path(folder)),
            forwarding_of(two, Path(folder)),
        ):
            yield one, two


@asynccontextmanager
async def forwarding_of(served: Running, folder: Path) -> AsyncIterator[WorkerForwarding]:
    """The requests between a gateway and others that have the same folder."""
    calls = served.gateway.calls
    alone, port = served.gateway.elsewhere, served.gateway.addresses.registry_port

    async def at_own_port(scope: Scope, receive: Receive, send: Send) -> None:
        assert alone.app is not None
        await alone.app({**scope, "server": (scope["server"][0], port)}, receive, send)

    forwarding = WorkerForwarding(folder, alone.process, lambda: calls.draining)
    forwarding.app = at_own_port
    served.gateway.sessions.elsewhere = forwarding
    async with forwarding:
        yield forwarding


@asynccontextmanager
async def asking_gateway(
    path: Path, agent: Agent | None = None, *, era: Era = "modern", server: Mapping[str, Any] | None = None, **more: Any
) -> AsyncIterator[tuple[Running, Asking]]:
    """The gateway of `user`, and the downstream that asks; `server` are more settings of that one."""
    async with (
        asking_downstream(era) as downstream,
        gateway_of(path, {"url": downstream.url, **(server or {})}, agent, **more) as served,
    ):
        yield served, downstream


@asynccontextmanager
async def asked_by(
    path: Path, person: Person, agent: Agent | None = None, *, mode: str = "legacy", **more: Any
) -> AsyncIterator[tuple[Client, Running, Asking]]:
    """A client of `user` by which `person` is asked, with the gateway and its downstream."""
    async with (
        asking_gateway(path, agent, **more) as (served, downstream),
        client_of(served.url("user"), person, mode) as client,
    ):
        yield client, served, downstream
