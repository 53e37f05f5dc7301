"""The query and the answer of usage; `routes.py` makes the answer."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired, TypedDict

from pydantic import Field

from pallas_gateway.doors.api.models import DIGITS, Count, Query, Time

MOST_DAYS = 4000
type Date = Annotated[str, Field(json_schema_extra={"format": "date"})]


class By(Query):
    """The query of usage."""

    by: Literal["caller", "agent", "model"] | None = None
    """Add up the rows of all callers by caller, or by agent; those of `days` also by model."""
    days: Annotated[int, Field(ge=1, le=MOST_DAYS), DIGITS] | None = None
    """The number of days, today included, whose rows are read in the database."""


class Tokens(TypedDict):
    """Tokens by kind."""

    input: Count
    cachedInput: Count
    cacheWrite: Count
    output: Count


class Numbers(TypedDict):
    """What calls have used."""

    calls: Count
    refused: Count
    nestedCalls: Count
    tokens: Tokens
    estimatedTokens: Count
    """Those of the tokens that are estimated."""
    cost: float | None
    """null: there are no prices."""


class UsageRow(Numbers):
    """The sums of a caller, an agent, or both."""

    caller: NotRequired[str]
    agent: NotRequired[str]


class UsageOfDay(UsageRow):
    """The sums of a day."""

    day: Date
    model: NotRequired[str]
    failures: Annotated[dict[str, Count], Field(description="Calls that failed or were refused, by their reasons.")]


class UsageOfDays(TypedDict):
    """The sums of each day over all gateways with this database, also before their restarts; the latest day first."""

    since: Annotated[Date, Field(description="The first of the days that is stored.")]
    own: list[UsageOfDay]
    owned: Annotated[
        list[UsageOfDay],
        Field(description="Of the agents that the caller owns, since they were made, without callers."),
    ]
    all: NotRequired[list[UsageOfDay]]
    complete: Annotated[bool, Field(description="false: there are more rows than an answer has.")]


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

    day: Date
    """The present day (UTC)."""
    since: Time
    """The begin of the totals."""
    caller: str
    """`key:NAME`, `token:NAME` or `anonymous`."""
    own: OwnUsage
    limits: list[CallerLimit]
    all: NotRequired[UsageRows]
    days: NotRequired[UsageOfDays | None]
    """null: nothing is stored, because there is no database, or `usage_days` is 0."""
