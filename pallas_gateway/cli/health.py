"""`pallas-gateway health`: `get_health` of one agent or of all; the worst answer decides the exit code."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated, Any

import typer

from pallas_gateway.cli.output import result, table
from pallas_gateway.cli.remote import (
    DEFAULT_URL,
    BearerOption,
    RefusedError,
    RemoteAgent,
    UnreachableError,
    UrlOption,
    connected,
    fetch_agents,
    find_agent,
)


def health(
    agent: Annotated[str | None, typer.Argument(help="One agent; without it, all.")] = None,
    url: UrlOption = DEFAULT_URL,
    bearer: BearerOption = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answers as JSON.")] = False,
) -> None:
    """Ask agents of a running gateway how they are: exit 0 if all are ok, else 1."""
    answers = asyncio.run(_ask(agent, url, bearer))
    if as_json:
        result(json.dumps(answers, indent=2))
    else:
        rows = [(name, str(one.get("status")), str(one.get("message", ""))) for name, one in answers.items()]
        table("AGENT", "STATUS", "MESSAGE", rows=rows)
    if any(answer.get("status") != "ok" for answer in answers.values()):
        raise typer.Exit(1)


async def _ask(name: str | None, url: str, bearer: str | None) -> dict[str, dict[str, Any]]:
    agents = await fetch_agents(url, bearer)
    asked = agents if name is None else [find_agent(agents, name)]
    answers = await asyncio.gather(*(_health_of(agent, bearer) for agent in asked))
    return {agent.name: answer for agent, answer in zip(asked, answers, strict=True)}


async def _health_of(agent: RemoteAgent, bearer: str | None) -> dict[str, Any]:
    try:
        async with connected(agent, bearer=bearer) as client:
            answer = await client.call_tool("get_health", {})
    except (UnreachableError, RefusedError) as error:
        return {"status": "error", "message": str(error)}
    text = "".join(getattr(block, "text", "") for block in answer.content)
    try:
        document: dict[str, Any] = json.loads(text)
    except ValueError:
        return {"status": "error", "message": text}
    return document
