"""Messages about usage: changes of a worker for the parent, and the parent's answers to a worker.

A row is a JSON array of a `UsageKey` and a `Used`. A message has a limited number of rows, so that it fits into a line.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from itertools import batched
from typing import TYPE_CHECKING, Any

from pallas_gateway.ledger.usage import UsageKey, Used

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pallas_gateway.ledger.usage import Usage

MOST_ROWS = 100
"""Of one message: names have up to 200 characters, which take 12 bytes at most."""
_KEY_VALUES = 3

type Row = list[Any]
type Counted = tuple[UsageKey, Used]


@dataclass(frozen=True, slots=True)
class UsageChanges:
    """From a worker, every few seconds and at its end: what its calls have used on a day since the last time."""

    day: str
    rows: list[Row]


@dataclass(frozen=True, slots=True)
class UsageAsked:
    """From a worker: it asks for the usage of an account, or of all."""

    number: int
    account: str | None


@dataclass(frozen=True, slots=True)
class UsageAnswer:
    """To a worker: a part of the answer to the question with this number; rows of the day, and of the total."""

    number: int
    day: str
    since: float
    today: list[Row]
    total: list[Row]
    is_whole: bool
    is_last: bool


def changes_of(day: str, rows: Iterable[Counted]) -> Iterator[UsageChanges]:
    """Yield the changes of a day as messages."""
    for some in batched(rows, MOST_ROWS):
        yield UsageChanges(day, [*map(_encoded, some)])


def answers_of(number: int, usage: Usage) -> Iterator[UsageAnswer]:
    """Yield the answer to a question as messages, of which the last is marked."""
    for name in ("today", "total"):
        for some in batched(getattr(usage, name).items(), MOST_ROWS):
            rows: dict[str, list[Row]] = {"today": [], "total": [], name: [*map(_encoded, some)]}
            yield UsageAnswer(number, usage.day, usage.since, **rows, is_whole=usage.is_whole, is_last=False)
    yield UsageAnswer(number, usage.day, usage.since, [], [], usage.is_whole, is_last=True)


def counted(rows: Iterable[Row]) -> Iterator[Counted]:
    """Decode rows."""
    for row in rows:
        yield UsageKey(*row[:_KEY_VALUES]), Used(*row[_KEY_VALUES:])


def _encoded(one: Counted) -> Row:
    key, used = one
    return [*astuple(key), *astuple(used)]
