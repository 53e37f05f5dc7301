"""`pallas-gateway usage`: calls and tokens of the caller, or of all callers, and the caller's limits."""

from __future__ import annotations

import asyncio
import json
import math
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pallas_gateway.client.address import UrlOption, gateway_url
from pallas_gateway.client.calls_view import shown
from pallas_gateway.client.gateway_api import request
from pallas_gateway.client.gateway_client import BearerOption, UnreachableError
from pallas_gateway.client.output import problem, result, table

if TYPE_CHECKING:
    from collections.abc import Sequence

PATH = "/api/v1/usage"
_NUMBERS = ("CALLS", "REFUSED", "NESTED", "INPUT", "CACHED", "OUTPUT", "COST", "TOTAL CALLS", "TOTAL TOKENS")
_LIMITS = ("RULE", "AGENTS", "LIMIT", "USED", "RESETS IN")
_UNITS = {"calls_per_minute": "calls per minute", "calls_at_once": "calls at once", "tokens_per_day": "tokens per day"}
_MINUTE = 60
_MOST_AGENTS = 5
"""Names of agents in one line of a limit."""


def usage(
    url: UrlOption = None,
    bearer: BearerOption = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print the document of the gateway as JSON.")] = False,
) -> None:
    """Show your calls, tokens and limits today (UTC), by agent; with the grant view:calls also those of all callers."""
    base_url = gateway_url(url)
    document = asyncio.run(request("GET", base_url, PATH, bearer))
    if as_json:
        result(json.dumps(document, indent=2))
        return
    try:
        own = _rows(document["own"], "agent")
        everyone = _rows(document["all"], "caller", "agent") if "all" in document else None
        limits = [_limit(one) for one in document["limits"]]
        heading = (
            f"{shown(document['caller'])} on {shown(document['day'])} (UTC), total since {shown(document['since'])}"
        )
        is_complete = document["own"]["complete"]
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise UnreachableError(f"What answers at {base_url}{PATH} is no usage of a gateway.") from error
    result(heading)
    if not is_complete:
        problem("The gateway counts your calls with those of others, because it has too many callers.")
    _print(own, "AGENT")
    if limits:
        result("\nLimits")
        table(*_LIMITS, rows=limits)
    if everyone is not None:
        result("\nAll callers")
        _print(everyone, "CALLER", "AGENT")


def _rows(periods: dict[str, Any], *names: str) -> list[tuple[str, ...]]:
    """Join the rows of today and the totals; what was used today is in the totals, too."""
    today = {tuple(row[name] for name in names): row for row in periods["today"]}
    totals = {tuple(row[name] for name in names): row for row in periods["total"]}
    nothing = {
        "calls": 0, "refused": 0, "nestedCalls": 0, "estimatedTokens": 0, "cost": None,
        "tokens": {"input": 0, "cachedInput": 0, "cacheWrite": 0, "output": 0},
    }  # fmt: skip
    return [_line(key, today.get(key, nothing), row) for key, row in totals.items()]


def _line(names: tuple[str, ...], today: dict[str, Any], total: dict[str, Any]) -> tuple[str, ...]:
    tokens, cost = today["tokens"], today["cost"]
    estimated = "~" if today["estimatedTokens"] else ""
    return (
        *map(shown, names),
        *(f"{today[key]:,}" for key in ("calls", "refused", "nestedCalls")),
        f"{estimated}{tokens['input'] + tokens['cacheWrite']:,}",
        f"{tokens['cachedInput']:,}",
        f"{estimated}{tokens['output']:,}",
        "-" if cost is None else f"{cost:,.4f}",
        f"{total['calls']:,}",
        f"{sum(total['tokens'].values()):,}",
    )


def _print(lines: Sequence[tuple[str, ...]], *names: str) -> None:
    if lines:
        table(*names, *_NUMBERS, rows=lines)
    else:
        problem("No call has ended yet.")


def _limit(limit: dict[str, Any]) -> tuple[str, ...]:
    agents, used, seconds = limit["agents"], limit["used"], limit["resetSeconds"]
    named = ", ".join(map(shown, agents[:_MOST_AGENTS]))
    unit = f"{limit['limit']:,} {_UNITS.get(limit['kind'], shown(limit['kind']))}"
    return (
        shown(limit["rule"]),
        f"{named} and {len(agents) - _MOST_AGENTS} more" if len(agents) > _MOST_AGENTS else named,
        unit if limit["enforced"] else f"{unit} (counts only)",
        "-" if used is None else f"{used:,}",
        "-" if seconds is None else _duration(float(seconds)),
    )


def _duration(seconds: float) -> str:
    """Format a time as `12 s`, `4 min` or `8 h 27 min`, rounded up to the unit."""
    if seconds < _MINUTE:
        return f"{math.ceil(seconds)} s"
    hours, minutes = divmod(math.ceil(seconds / _MINUTE), 60)
    return f"{hours:,} h {minutes} min" if hours else f"{minutes} min"
