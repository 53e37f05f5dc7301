"""The agents of a running gateway as a table."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from pallas_gateway.client.agents.agents_api import DATABASE, PATH
from pallas_gateway.client.calls_view import shown
from pallas_gateway.client.gateway_api import request
from pallas_gateway.client.gateway_client import NOTHING_SHOWN, RemoteAgent, fetch_agents, fetch_readiness
from pallas_gateway.client.output import problem, result, table
from pallas_gateway.errors import GatewayError

if TYPE_CHECKING:
    from collections.abc import Mapping

type Listed = tuple[RemoteAgent, str, str]
"""An agent, its state, and the reason for that."""
_STORED = ("source", "version", "owner")


def show(url: str, bearer: str | None, *, as_json: bool) -> None:
    """Print the agents of a gateway; for those of its database also their versions and owners."""
    found, stored, lacks_stored = asyncio.run(_fetch(url, bearer))
    if lacks_stored:
        problem(f"The database of {url} cannot be used now, so agents of it may be missing in the list.")
    if as_json:
        rows = [{**one.document, "state": state, **stored.get(one.name, {})} for one, state, _ in found]
        result(json.dumps(rows, indent=2))
        return
    if not found:
        problem(NOTHING_SHOWN[0].upper() + NOTHING_SHOWN[1:])
        return
    more = _STORED if stored else ()
    lines = [
        (
            one.name,
            state,
            *(shown(stored.get(one.name, {}).get(key, "")) for key in more),
            one.title,
            one.model,
            one.url,
            one.description,
        )
        for one, state, _ in found
    ]
    table("AGENT", "STATE", *map(str.upper, more), "TITLE", "MODEL", "URL", "DESCRIPTION", rows=lines)
    if reasons := [f"{agent.name}: {reason}" for agent, _, reason in found if reason]:
        result("\n".join(["", *reasons]))


async def _fetch(url: str, bearer: str | None) -> tuple[list[Listed], Mapping[str, Mapping[str, Any]], bool]:
    """Return the agents of the registry, what the API says about those of the database, and if some may be missing."""
    agents = await fetch_agents(url, bearer)
    stored, is_incomplete = await _stored(url, bearer)
    readiness = await fetch_readiness(url, bearer)
    found = [(agent, *readiness.state_of(agent)) for agent in agents]
    return found, stored, is_incomplete or readiness.lacks_stored_agents


async def _stored(url: str, bearer: str | None) -> tuple[Mapping[str, Mapping[str, Any]], bool]:
    try:
        document = await request("GET", url, PATH, bearer)
        rows = [one for one in document["agents"] if one.get("source") == DATABASE]
        return {one["name"]: {key: one.get(key) for key in _STORED} for one in rows}, bool(document.get("incomplete"))
    except (GatewayError, LookupError, TypeError, AttributeError):  # no database, or an older gateway
        return {}, False
