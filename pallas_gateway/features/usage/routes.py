"""`GET /api/v1/usage`: calls and tokens of the caller, today and since the gateway has started, and its limits.

With `view:calls` also those of all callers, by caller and agent. `?by=caller` or `?by=agent` adds them up. `?days=N`
adds what is stored of the last days, also of the agents that the caller owns, without the names of their callers.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from pallas_gateway.calls.used import Used
from pallas_gateway.core.offers import CallLimits
from pallas_gateway.doors.api.base import Api, operation
from pallas_gateway.doors.api.errors import ApiError
from pallas_gateway.doors.api.models import written
from pallas_gateway.doors.http import access, refusals
from pallas_gateway.features.usage import models
from pallas_gateway.features.usage.usage_table import date_of, in_parts
from pallas_gateway.identity.grants import VIEW_CALLS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

    from starlette.requests import Request

    from pallas_gateway.core.gateway import Gateway
    from pallas_gateway.core.offers import UsedLimit
    from pallas_gateway.features.usage.feature import UsageFeature
    from pallas_gateway.features.usage.stored_usage import UsedOfDay
    from pallas_gateway.features.usage.usage_table import Rows
    from pallas_gateway.identity.caller import Caller

PATH = "/api/v1/usage"
KINDS = ("calls_per_minute", "calls_at_once", "tokens_per_day")

type Json = dict[str, Any]


class UsageApi(Api):
    """The route of usage."""

    def __init__(self, gateway: Gateway, feature: UsageFeature) -> None:
        super().__init__(gateway)
        self._feature = feature

    @operation(
        "GET", PATH, "readUsage",
        "The calls, tokens and limits of the caller, or of all callers.",
        requires="a token, or `view:calls`", query=models.By, answer=models.CallerUsage,
        says="The usage over all workers.",
    )  # fmt: skip
    async def _usage(self, request: Request, asked: models.By) -> Response:
        caller = await access.caller_of(self._gateway, request.scope)
        sees_all = caller.grants.has(VIEW_CALLS)
        if not sees_all and not caller.authenticated:  # an address may have several anonymous callers
            return refusals.without_token(self._gateway, request.scope)
        if asked.by == "model" and asked.days is None:
            raise ApiError("'by=model' requires 'days'.")
        document = await self._own(caller)
        days = f', "days": {await self._days(caller, asked.days, asked.by)}' if asked.days is not None else ""
        # In ASCII: the subject of a token may hold half a surrogate pair.
        by = (asked.by,) if asked.by in {"caller", "agent"} else ("caller", "agent")
        everyone = f', "all": {await self._all(by)}' if sees_all else ""
        return Response(f"{json.dumps(document)[:-1]}{everyone}{days}}}", media_type="application/json")

    async def _own(self, caller: Caller) -> Json:
        usage = await self._feature.source.read(caller.account)
        return {
            "day": usage.day,
            "since": written(datetime.fromtimestamp(usage.since, UTC), "seconds"),
            "caller": caller.principal,
            "own": {
                "today": [row async for row in self._rows(usage.today, ("agent",))],
                "total": [row async for row in self._rows(usage.total, ("agent",))],
                "complete": usage.is_whole,
            },
            "limits": [*self._limits(caller, await self._used(caller))],
        }

    async def _all(self, by: tuple[str, ...]) -> str:
        """Return the JSON of all rows."""
        usage = await self._feature.source.read()
        today, total = [
            ", ".join([json.dumps(row) async for row in self._rows(rows, by)]) for rows in (usage.today, usage.total)
        ]
        return f'{{"today": [{today}], "total": [{total}]}}'

    async def _days(self, caller: Caller, days: int, by: str | None) -> str:
        """Return the JSON of what is stored; null if nothing is."""
        if (stored := self._feature.stored) is None or not stored.is_on:
            return "null"
        names = (by,) if by else ("caller", "agent", "model")
        unnamed = [name for name in names if name != "caller"]
        wanted: dict[str, tuple[Sequence[str], dict[str, Any]]] = {"own": (unnamed or names, {"caller": caller})}
        wanted["owned"] = (unnamed, {"owner": caller})
        if caller.grants.has(VIEW_CALLS):
            wanted["all"] = (names, {})
        parts, is_complete = [], True
        for part, (columns, only) in wanted.items():
            rows, is_whole = await stored.read(days, columns, **only)
            is_complete = is_complete and is_whole
            parts.append(f'"{part}": [{", ".join([json.dumps(row) async for row in self._of_days(rows, columns)])}]')
        since = date_of(max(await stored.first_day(), stored.today - days + 1))
        return f'{{"since": "{since}", {", ".join(parts)}, "complete": {json.dumps(is_complete)}}}'

    async def _of_days(self, rows: Sequence[UsedOfDay], names: Sequence[str]) -> AsyncIterator[Json]:
        has_prices = bool(self._gateway.configuration.deployment.gateway.prices)
        async for part in in_parts(rows):
            for row in part:
                numbers = _numbers(row.used, has_prices=has_prices or row.used.cost > 0)
                named = dict(zip(names, row.names, strict=True))
                yield {"day": date_of(row.day), **named, **numbers, "failures": row.failures}

    async def _rows(self, rows: Rows, by: tuple[str, ...]) -> AsyncIterator[Json]:
        """Yield the sums by caller, agent, or both, in the order of their names."""
        sums: dict[tuple[str, ...], Used] = {}
        async for some in in_parts(rows.items()):
            for key, used in some:
                total = sums.setdefault(tuple(getattr(key, name) for name in by), Used())
                total += used
        has_prices = bool(self._gateway.configuration.deployment.gateway.prices)
        async for part in in_parts(sorted(sums.items(), key=itemgetter(0))):
            for names, used in part:
                yield {**dict(zip(by, names, strict=True)), **_numbers(used, has_prices=has_prices)}

    def _visible(self, caller: Caller) -> list[str]:
        return [*caller.grants.viewed(self._gateway.agents)]

    async def _used(self, caller: Caller) -> dict[tuple[str, str, str], UsedLimit]:
        """Return what a caller has used of its limits, by rule, agent and kind."""
        if (limits := self._gateway.find(CallLimits)) is None:
            return {}
        rows = await limits.used(caller.principal, caller.account, self._visible(caller))
        return {(one.rule, one.agent, one.kind): one for one in rows}

    def _limits(self, caller: Caller, used: Mapping[tuple[str, str, str], UsedLimit]) -> Iterator[Json]:
        """Return the limits of a caller, without agents that it may not view."""
        visible = self._visible(caller)
        for number, rule in enumerate(self._gateway.configuration.deployment.gateway.limits.rules, 1):
            agents = [name for name in visible if fnmatchcase(name, rule.agent)]
            if not agents or not fnmatchcase(caller.principal, rule.caller):
                continue
            for counted in [agents] if rule.per == "caller" else [[name] for name in agents]:
                for kind in KINDS:
                    if (limit := getattr(rule, kind)) is not None:
                        name = rule.name or f"rule-{number}"
                        now = used.get((name, "" if rule.per == "caller" else counted[0], kind))
                        yield {
                            "rule": name,
                            "per": rule.per,
                            "agents": counted,
                            "kind": kind,
                            "limit": limit,
                            "used": now.used if now is not None else None,
                            "resetSeconds": now.reset_seconds if now is not None else None,
                            "enforced": rule.enforce,
                        }


def _numbers(used: Used, *, has_prices: bool) -> Json:
    return {
        "calls": used.calls,
        "refused": used.refused,
        "nestedCalls": used.nested,
        "tokens": {
            "input": used.input,
            "cachedInput": used.cache_read,
            "cacheWrite": used.cache_write,
            "output": used.output,
        },
        "estimatedTokens": used.estimated,
        "cost": round(used.cost, 6) if has_prices else None,
    }
