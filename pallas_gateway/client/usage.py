"""`pallas-gateway usage`: calls and tokens of the caller, or of all callers, now or over days, and the limits."""

from __future__ import annotations

import asyncio
import json
from datetime import date, timedelta
from typing import Annotated, Any, Literal

import typer

from pallas_gateway.calls.permit import duration_text
from pallas_gateway.client.address import UrlOption, gateway_url
from pallas_gateway.client.arguments import UsageError
from pallas_gateway.client.gateway_api import reading, request
from pallas_gateway.client.gateway_client import BearerOption
from pallas_gateway.client.output import problem, result, shown, table

type _Lines = list[tuple[str, ...]]
type _Tables = list[tuple[str, tuple[str, ...], _Lines]]

PATH = "/api/v1/usage"
_NUMBERS = ("CALLS", "REFUSED", "NESTED", "INPUT", "CACHED", "OUTPUT", "COST")
_TOTALS = ("TOTAL CALLS", "TOTAL TOKENS")
_NOTHING: dict[str, Any] = {
    "calls": 0, "refused": 0, "nestedCalls": 0, "estimatedTokens": 0, "cost": None,
    "tokens": {"input": 0, "cachedInput": 0, "cacheWrite": 0, "output": 0},
}  # fmt: skip
_LIMITS = ("RULE", "AGENTS", "LIMIT", "USED", "RESETS IN")
_UNITS = {"calls_per_minute": "calls per minute", "calls_at_once": "calls at once", "tokens_per_day": "tokens per day"}
_MOST_AGENTS = 5
"""Names of agents in one line of a limit."""


def usage(
    url: UrlOption = None,
    bearer: BearerOption = None,
    *,
    days: Annotated[int | None, typer.Option(min=1, help="Show the last days, which the gateway has stored.")] = None,
    by: Annotated[
        Literal["caller", "agent", "model", "day"] | None, typer.Option(help="With --days: a line for each of them.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the document of the gateway as JSON.")] = False,
) -> None:
    """Show your calls, tokens and limits today (UTC), by agent; with the grant view:calls also those of all callers."""
    base_url = gateway_url(url)
    if by is not None and days is None:
        raise UsageError("--by adds up days: give --days as well.")
    added = "agent" if by == "day" else by  # by the gateway, which sends each day for itself
    query = f"?days={days}{f'&by={added}' if added else ''}" if days is not None else ""
    document = asyncio.run(request("GET", base_url, PATH + query, bearer))
    if as_json:
        result(json.dumps(document, indent=2))
        return
    with reading(base_url, PATH):
        if days is not None and document.get("days"):
            tables, notes = _of_days(document, days, by)
        else:
            of_all = (added,) if added in {"caller", "agent"} else ("caller", "agent")
            why = "no days are stored" if days else "--days 1 shows all of today"
            tables, notes = _of_now(document, of_all)
            notes.append(f"Counted since the start, also for today; {why} (needs gateway.database, usage_days).")
    if any(cell.startswith("~") for *_, lines in tables for line in lines for cell in line):
        notes.append("~: estimated, because the provider sent no usage.")
    for heading, columns, lines in tables:
        result(heading)
        if lines:
            table(*map(str.upper, columns), rows=lines)
        else:
            problem("No call has ended yet.")
    for note in notes:
        problem(note)


def _of_now(document: dict[str, Any], of_all: tuple[str, ...]) -> tuple[_Tables, list[str]]:
    """Return heading, columns and lines of each table, and notes; the sums of all callers are by `of_all`."""
    caller, day, since = (shown(document[name]) for name in ("caller", "day", "since"))
    # What it has counted today is all of today only if it has run since midnight.
    heading = f"{caller} since {since}" if since >= day else f"{caller} on {day} (UTC), total since {since}"
    numbers = (*_NUMBERS, *_TOTALS)
    tables: _Tables = [(heading, ("agent", *numbers), _rows(document["own"], "agent"))]
    if limits := [_limit(one) for one in document["limits"]]:
        tables.append(("\nLimits", _LIMITS, limits))
    if "all" in document:
        tables.append(("\nAll callers", (*of_all, *numbers), _rows(document["all"], *of_all)))
    shared = "The gateway counts your calls with those of others, because it has too many callers."
    return tables, [] if document["own"]["complete"] else [shared]


def _of_days(document: dict[str, Any], asked: int, by: str | None) -> tuple[_Tables, list[str]]:
    """Return heading, columns and lines of each table of stored days, and notes."""
    days = document["days"]
    first = str(date.fromisoformat(document["day"]) - timedelta(asked - 1))
    stored = f", stored since {shown(days['since'])}" if days["since"] > first else ""
    period = f"from {first} to {shown(document['day'])} (UTC){stored}"
    of_own: tuple[str, ...] = (by or "agent",)
    wanted = [(f"{shown(document['caller'])} {period}", of_own, days["own"])]
    if days["owned"]:
        wanted.append(("\nYour agents, by all callers", () if by == "caller" else of_own, days["owned"]))
    if "all" in days:
        wanted.append(("\nAll callers", of_own if by else ("caller", "agent"), days["all"]))
    missing = "There are more rows than the gateway sends: earlier days are not in these sums. Ask for fewer days."
    tables = [(heading, (*names, *_NUMBERS, "FAILED"), _sums(rows, names)) for heading, names, rows in wanted]
    return tables, [] if days["complete"] else [missing]


def _sums(rows: list[dict[str, Any]], names: tuple[str, ...]) -> _Lines:
    """Add up the rows of all days."""
    sums: dict[tuple[str, ...], dict[str, Any]] = {}
    for row in rows:
        key = tuple(shown(row[name]) for name in names)
        total = sums.setdefault(key, _NOTHING | {"tokens": dict(_NOTHING["tokens"]), "failures": {}})
        for name in ("calls", "refused", "nestedCalls", "estimatedTokens"):
            total[name] += row[name]
        for kind in ("tokens", "failures"):
            for name, count in row[kind].items():
                total[kind][name] = total[kind].get(name, 0) + count
        if row["cost"] is not None:
            total["cost"] = (total["cost"] or 0) + row["cost"]
    return [
        (*key, *_cells(row), ", ".join(f"{count:,} {shown(why)}" for why, count in row["failures"].items()) or "-")
        for key, row in sorted(sums.items())
    ]


def _rows(periods: dict[str, Any], *names: str) -> _Lines:
    """Join the rows of today and the totals; what was used today is in the totals, too."""
    today = {tuple(row[name] for name in names): row for row in periods["today"]}
    totals = {tuple(row[name] for name in names): row for row in periods["total"]}
    return [
        (
            *map(shown, key),
            *_cells(today.get(key, _NOTHING)),
            f"{row['calls']:,}",
            f"{sum(row['tokens'].values()):,}",
        )
        for key, row in totals.items()
    ]


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    tokens, cost = row["tokens"], row["cost"]
    estimated = "~" if row["estimatedTokens"] else ""
    return (
        *(f"{row[key]:,}" for key in ("calls", "refused", "nestedCalls")),
        f"{estimated}{tokens['input'] + tokens['cacheWrite']:,}",
        f"{tokens['cachedInput']:,}",
        f"{estimated}{tokens['output']:,}",
        "-" if cost is None else f"{cost:,.{2 if cost >= 1 else 6}f}",
    )


def _limit(limit: dict[str, Any]) -> tuple[str, ...]:
    agents, used, seconds = limit["agents"], limit["used"], limit["resetSeconds"]
    named = ", ".join(map(shown, agents[:_MOST_AGENTS]))
    unit = f"{limit['limit']:,} {_UNITS.get(limit['kind'], shown(limit['kind']))}"
    return (
        shown(limit["rule"]),
        f"{named} and {len(agents) - _MOST_AGENTS} more" if len(agents) > _MOST_AGENTS else named,
        unit if limit["enforced"] else f"{unit} (counts only)",
        "-" if used is None else f"{used:,}",
        "-" if seconds is None else duration_text(float(seconds)),
    )
