"""`pallas-gateway connect`: how other programs connect to the agents of a running gateway."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from pallas_gateway.calls.tool_names import accepted
from pallas_gateway.client.address import UrlOption, gateway_url
from pallas_gateway.client.agent_client import message_tool
from pallas_gateway.client.arguments import UsageError
from pallas_gateway.client.gateway_client import (
    NOTHING_SHOWN,
    BearerOption,
    RemoteAgent,
    connected,
    fetch_agents,
    find_agent,
)
from pallas_gateway.client.output import problem, result, table
from pallas_gateway.config.problems import did_you_mean

_SOURCE = Path(__file__).parents[1] / "features" / "console" / "static" / "clients.json"
_IN_URLS = "%/:?#[]@!$&()*+,;=~"
ALL_AGENTS_NAME = "pallas"
"""The name by which programs know the server of all agents."""


@dataclass(frozen=True, slots=True)
class Target:
    """The MCP server to connect to.

    Attributes:
        name: of the server in the program's configuration; for OpenAI clients the model.
        url: its MCP endpoint.
        base: the gateway's base URL, without a trailing slash.
        tool: its message tool.
        needs_token: callers need a token.
    """

    name: str
    url: str
    base: str
    tool: str = "send_message"
    needs_token: bool = False


@dataclass(frozen=True, slots=True)
class ConnectedProgram:
    """One program, or library, and how it is connected.

    Attributes:
        agents_only: it knows agents and not the server of all of them.
        signs_in: it signs people in by itself where a gateway requires it, given its URL alone.
    """

    id: str
    title: str
    how: str
    language: str
    text: str
    with_token: str
    link: dict[str, str] | None = None
    agents_only: bool = False
    signs_in: bool = False

    @property
    def calls_a_tool(self) -> bool:
        """True if the text names the message tool."""
        return "<TOOL>" in self.text

    def filled(self, target: Target) -> str:
        """Return the text for one server."""
        return _filled(self.with_token if target.needs_token else self.text, target)

    def link_to(self, target: Target) -> str | None:
        """Return the link that opens the program with the server, None if it has none or the server needs a token."""
        if self.link is None or target.needs_token:
            return None
        config = _filled(self.link["config"], target)
        encoded = base64.b64encode(config.encode()).decode()
        link = (
            self.link["url"].replace("<BASE64>", quote(encoded, safe="")).replace("<ENCODED>", quote(config, safe=""))
        )
        return _filled(link, target)


@cache
def programs() -> tuple[ConnectedProgram, ...]:
    """Return all programs, in the order in which they are shown."""
    entries: list[dict[str, Any]] = json.loads(_SOURCE.read_text(encoding="utf-8"))
    texts = ("text", "with_token")
    return tuple(ConnectedProgram(**{**one, **{key: "\n".join(one[key]) for key in texts}}) for one in entries)


def _filled(text: str, target: Target) -> str:
    values = {
        "<NAME>": _word(target.name),
        "<TOOL>": _word(target.tool),
        # Without quotes and backslashes: the texts are commands and programs.
        "<URL>": quote(target.url, safe=_IN_URLS),
        "<BASE>": quote(target.base, safe=_IN_URLS),
    }
    return re.sub("<(?:NAME|TOOL|URL|BASE)>", lambda match: values[match[0]], text)


def _word(name: str) -> str:
    """A name as one word of a command, which is no option."""
    return re.sub(r"[^A-Za-z0-9_.-]", "-", name).lstrip("-") or "agent"


def connect(
    client: Annotated[str | None, typer.Argument(help="The program to connect; without it, list them.")] = None,
    agent: Annotated[str | None, typer.Argument(help="Agent to connect to. Default: all agents as one server.")] = None,
    url: UrlOption = None,
    bearer: BearerOption = None,
) -> None:
    """Print how a program (Claude Code, Cursor, VS Code, ...) connects to a running gateway."""
    if client is None:
        table("CLIENT", "TITLE", rows=[(one.id, one.title) for one in programs()])
        return
    wanted = _client(client, agent)
    target = asyncio.run(_target(wanted, gateway_url(url), bearer, agent))
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
        tool = accepted(f"agent-{one.name}")
        return Target(ALL_AGENTS_NAME, f"{base}/mcp", base, tool, needs_token=any(map(_needs_token, agents)))
    target = Target(one.name, public, base, needs_token=_needs_token(one))
    if not client.calls_a_tool:
        return target
    async with connected(one, bearer=bearer) as connection:
        return replace(target, tool=(await message_tool(connection, one.name)).name)


def _needs_token(agent: RemoteAgent) -> bool:
    return bool(agent.document["remotes"][0].get("headers"))
