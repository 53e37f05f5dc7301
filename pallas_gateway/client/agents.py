"""`pallas-gateway agents`: what a running gateway serves."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated

import typer

from pallas_gateway.client.address import UrlOption, gateway_url
from pallas_gateway.client.gateway_client import NOTHING_SHOWN, BearerOption, RemoteAgent, fetch_agents, fetch_states
from pallas_gateway.client.output import problem, result, table


def agents(
    url: UrlOption = None,
    bearer: BearerOption = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print the registry's entries as JSON.")] = False,
) -> None:
    """List the agents of a running gateway, with their states."""
    found = asyncio.run(_fetch(gateway_url(url), bearer))
    if as_json:
        result(json.dumps([{**agent.document, "state": state} for agent, state, _ in found], indent=2))
        return
    if not found:
        problem(NOTHING_SHOWN[0].upper() + NOTHING_SHOWN[1:])
        return
    rows = [(one.name, state, one.title, one.model, one.url, one.description) for one, state, _ in found]
    table("AGENT", "STATE", "TITLE", "MODEL", "URL", "DESCRIPTION", rows=rows)
    if reasons := [f"{agent.name}: {reason}" for agent, _, reason in found if reason]:
        result("\n".join(["", *reasons]))


async def _fetch(url: str, bearer: str | None) -> list[tuple[RemoteAgent, str, str]]:
    """Return each agent with its state and the reason for it."""
    agents = await fetch_agents(url, bearer)
    state_of = await fetch_states(url, bearer)
    return [(agent, *state_of(agent)) for agent in agents]
