"""`pallas-gateway connect`: how other programs connect to the agents of a running gateway."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Annotated

import typer

from pallas_gateway.calls.tool_names import accepted
from pallas_gateway.client.address import UrlOption, gateway_url
from pallas_gateway.client.agent_client import message_tool
from pallas_gateway.client.gateway_client import (
    NOTHING_SHOWN,
    BearerOption,
    RemoteAgent,
    connected,
    fetch_agents,
    find_agent,
)
from pallas_gateway.client.output import problem, result, table
from pallas_gateway.client.programs import ALL_AGENTS_NAME, ConnectedProgram, Target, programs
from pallas_gateway.client.usage import UsageError
from pallas_gateway.config.problems import did_you_mean

_TOOL_OF_ALL = "agent-{name}"


def connect(
    client: Annotated[str | None, typer.Argument(help="The program to connect; without it, list them.")] = None,
    named: Annotated[
        str | None,
        typer.Argument(metavar="[AGENT]", help="Agent to connect to. Default: all agents as one server."),
    ] = None,
    url: UrlOption = None,
    bearer: BearerOption = None,
    agent: Annotated[str | None, typer.Option(help="The same as AGENT.")] = None,
) -> None:
    """Print how a program (Claude Code, Cursor, VS Code, ...) connects to a running gateway."""
    if client is None:
        table("CLIENT", "TITLE", rows=[(one.id, one.title) for one in programs()])
        return
    if named is not None and agent not in (None, named):
        raise UsageError(f"Name one agent: '{named}' or --agent {agent}.")
    wanted = _client(client, named)
    target = asyncio.run(_target(wanted, gateway_url(url), bearer, named or agent))
    problem(wanted.how)
    result(wanted.filled(target))
    if (link := wanted.link_to(target)) is not None:
        problem(f"Or open: {link}")


def _client(name: str, agent: str | None) -> ConnectedProgram:
    known = {one.id: one for one in programs()}
    if name not in known:
        meant, example = did_you_mean(name, known), agent if agent in known else next(iter(known))
        hint = "" if meant else f" If '{name}' is an agent, name it after the client: `connect {example} {name}`."
        raise UsageError(f"No client '{name}'{meant}. There are: {', '.join(known)}.{hint}")
    return known[name]


async def _target(client: ConnectedProgram, base_url: str, bearer: str | None, name: str | None) -> Target:
    agents = await fetch_agents(base_url, bearer)
    if not agents:
        raise UsageError(NOTHING_SHOWN[0].upper() + NOTHING_SHOWN[1:])
    one = find_agent(agents, name) if name is not None else agents[0]
    public, path = str(one.document["remotes"][0]["url"]), f"/agents/{one.name}/mcp"  # for clients that are elsewhere
    is_shared = public.endswith(path)
    base = public.removesuffix(path) if is_shared else base_url
    if name is None and not client.agents_only:
        if not is_shared:
            raise UsageError(
                f"Each agent of this gateway has a port of its own: name one, as in `connect {client.id} {one.name}`."
            )
        tool = accepted(_TOOL_OF_ALL.format(name=one.name))
        return Target(ALL_AGENTS_NAME, f"{base}/mcp", base, tool, needs_token=any(map(_needs_token, agents)))
    target = Target(one.name, public, base, needs_token=_needs_token(one))
    if not client.calls_a_tool:
        return target
    async with connected(one, bearer=bearer) as connection:
        return replace(target, tool=(await message_tool(connection, one.name)).name)


def _needs_token(agent: RemoteAgent) -> bool:
    return bool(agent.document["remotes"][0].get("headers"))
