"""The query and the answer of usage; `routes.py` makes the answer."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired, TypedDict

from pydantic import Field

from pallas_gateway.doors.api.models import Count, Query, Time


class By(Query):
    """The query of usage."""

    by: Literal["caller", "agent"] | None = None
    """Add up the rows of all callers by caller, or by agent."""


class Tokens(TypedDict):
    """Tokens by kind."""

    input: Count
    cachedInput: Count
    cacheWrite: Count
    output: Count


class UsageRow(TypedDict):
    """The sums of a caller, an agent, or both."""

    caller: NotRequired[str]
    agent: NotRequired[str]
    calls: Count
    refused: Count
    nestedCalls: Count
    tokens: Tokens
    estimatedTokens: Count
    """Those of the tokens that are estimated."""
    cost: float | None
    """null: there are no prices."""


class UsageRows(TypedDict):
    """The sums of today, and since the begin of the totals."""

    today: list[UsageRow]
    total: list[UsageRow]


class OwnUsage(UsageRows):
    """The sums of the caller."""

    complete: bool
    """false: the caller has no rows of its own, because there are too many."""


class CallerLimit(TypedDict):
    """A limit of the caller, with what is used of it."""

    rule: str
    per: Literal["caller", "agent", "caller_and_agent"]
    agents: list[str]
    """Those that the caller may view."""
    kind: Literal["calls_per_minute", "calls_at_once", "tokens_per_day"]
    limit: Annotated[int, Field(ge=1)]
    used: int | None
    """null: not known, or the calls of other callers count as well."""
    resetSeconds: float | None
    enforced: bool


class CallerUsage(TypedDict):
    """The usage over all workers."""

    day: Annotated[str, Field(json_schema_extra={"format": "date"})]
    """The present day (UTC)."""
    since: Time
    """The begin of the totals."""
    caller: str
    """`key:NAME`, `token:NAME` or `anonymous`."""
    own: OwnUsage
    limits: list[CallerLimit]
    all: NotRequired[UsageRows]
