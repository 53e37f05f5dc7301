"""`pallas-gateway agents`: what a running gateway serves."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated

import typer

from pallas_gateway.cli.output import problem, result, table
from pallas_gateway.cli.remote import DEFAULT_URL, NOTHING_SHOWN, BearerOption, UrlOption, fetch_agents


def agents(
    url: UrlOption = DEFAULT_URL,
    bearer: BearerOption = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print the registry's entries as JSON.")] = False,
) -> None:
    """List what a running gateway serves."""
    found = asyncio.run(fetch_agents(url, bearer))
    if as_json:
        result(json.dumps([agent.document for agent in found], indent=2))
        return
    if not found:
        problem(NOTHING_SHOWN[0].upper() + NOTHING_SHOWN[1:])
        return
    table("AGENT", "TITLE", "URL", "DESCRIPTION", rows=[(a.name, a.title, a.url, a.description) for a in found])
