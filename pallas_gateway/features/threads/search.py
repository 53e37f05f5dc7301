"""A search in threads, without distinction of upper and lower case.

The database folds the case of letters in its own way, and takes a whole text at once. So texts are read in windows and
compared here in pieces, between which calls run.
"""

from __future__ import annotations

import asyncio
from collections import deque
from time import perf_counter
from typing import TYPE_CHECKING, Any

from sqlalchemy import and_, func, or_, select, tuple_

from pallas_gateway.features.threads.records import ThreadPage, thread_of
from pallas_gateway.features.threads.sizes import ROW_BYTES
from pallas_gateway.shared.database.tables import threads, turns
from pallas_gateway.tasks import give_way

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import ColumnElement, Select
    from sqlalchemy.ext.asyncio import AsyncConnection

    from pallas_gateway.features.threads.records import Position, ThreadRecord, WantedThreads
    from pallas_gateway.limits import ThreadLimits
    from pallas_gateway.shared.database.tables import AnyRow

WINDOW = 1024 * 1024
"""Characters of a text that are read at once, and bytes of several turns."""
PIECE = 64 * 1024
"""Characters that are compared at once."""
ROWS = 200
"""Turns whose sizes are read at once."""
_TEXTS = turns.c.question, turns.c.answer


class Search:
    """One page of a search; it ends after the threads, bytes and seconds of `limits`, also within a thread."""

    def __init__(self, sql: AsyncConnection, wanted: WantedThreads, limits: ThreadLimits) -> None:
        self._sql = sql
        self._text = (wanted.search or "").casefold()
        self._after = wanted.after
        self._most = wanted.limit
        self._threads = limits.searched_threads
        self._bytes = limits.searched_bytes
        self._latest = asyncio.get_running_loop().time() + limits.search_seconds
        self._seen = set[str]()
        self._found: dict[str, ThreadRecord] = {}

    async def page(self, its: Select[Any]) -> ThreadPage:
        """Return those of the threads `its`, in their order, whose title, messages or answers have the text."""
        while True:
            rows: deque[AnyRow] = deque((await self._sql.execute(_rows_behind(its, self._after).limit(ROWS))).all())
            is_last = len(rows) < ROWS
            while rows:
                if self._is_over(rows[0]):
                    return ThreadPage(tuple(self._found.values()), self._after)
                await self._read_next(rows)
                while rows and rows[0].id in self._found:
                    rows.popleft()
            if is_last:
                return ThreadPage(tuple(self._found.values()), None)

    def _is_over(self, following: AnyRow) -> bool:
        if not self._seen:  # each page goes on
            return False
        is_full = len(self._found) == self._most or self._bytes <= 0 or self._is_beyond(following)
        return is_full or asyncio.get_running_loop().time() >= self._latest

    def _is_beyond(self, following: AnyRow) -> bool:
        return len(self._seen) >= self._threads and following.id not in self._seen

    async def _read_next(self, rows: deque[AnyRow]) -> None:
        """Take the next rows, as many as are read at once, and look for the text in them."""
        group: list[AnyRow] = []
        size = 0
        while rows and not self._is_beyond(rows[0]) and (not group or size + rows[0].size <= min(WINDOW, self._bytes)):
            group.append(row := rows.popleft())
            self._seen.add(row.id)
            size += row.size + ROW_BYTES
        self._bytes -= ROW_BYTES * len(group)
        hits = await self._hits(group)
        for index, row in enumerate(group):
            if row.id in hits:
                self._found.setdefault(row.id, thread_of(row))
            place = row.updated_at, row.id
            self._after = place if row.id in hits else (*place, row.number or 0)
            if len(self._found) == self._most:
                rows.extendleft(reversed(group[index + 1 :]))
                return

    async def _hits(self, group: Sequence[AnyRow]) -> set[str]:
        """Return the ids of the threads of some rows that have the text."""
        hits = {row.id for row in group if self._text in (row.title or "").casefold()}
        ends, start, is_longer = dict[tuple[str, int, str], str](), 1, True
        while is_longer and (of_turns := _of_turns([row for row in group if row.number and row.id not in hits])):
            is_longer = False
            windows = (func.substr(column, start, WINDOW).label(column.name) for column in _TEXTS)
            wanted = select(turns.c.thread_id, turns.c.number, *windows).where(or_(*of_turns))
            for row in (await self._sql.execute(wanted)).all():
                for name, window in (("question", row.question or ""), ("answer", row.answer or "")):
                    key = row.thread_id, row.number, name
                    is_hit, ends[key] = await self._compared(window, ends.get(key, ""))
                    hits.update([row.thread_id] if is_hit else ())
                    is_longer = is_longer or len(window) == WINDOW
            start += WINDOW
        return hits

    async def _compared(self, window: str, end: str) -> tuple[bool, str]:
        """Return whether a window of a text, behind the end of the one before, has the text, and its end."""
        self._bytes -= len(window.encode())
        for start in range(0, len(window), PIECE):
            began = perf_counter()
            piece = end + window[start : start + PIECE].casefold()
            if self._text in piece:
                return True, ""
            end = piece[max(len(piece) - len(self._text) + 1, 0) :]
            await give_way(began)
        return False, end


def _of_turns(rows: Sequence[AnyRow]) -> Sequence[ColumnElement[bool]]:
    """Return a condition for each thread of some rows, which follow each other: its turns among them."""
    spans: dict[str, tuple[int, int]] = {}
    for row in rows:
        spans[row.id] = spans.get(row.id, (row.number, 0))[0], row.number
    # Not a list of pairs, for which SQLite reads the whole table.
    return [and_(turns.c.thread_id == id_, turns.c.number.between(*span)) for id_, span in spans.items()]


def _rows_behind(its: Select[Any], after: Position | None) -> Select[Any]:
    """Return a row for each turn, and one for a thread without turns, in the order in which they are looked through."""
    size = func.coalesce(turns.c.bytes - turns.c.steps_bytes, 0).label("size")
    rows = its.add_columns(turns.c.number, size).outerjoin(turns, turns.c.thread_id == threads.c.id)
    rows = rows.order_by(turns.c.number)
    if after is None:
        return rows
    place, before = tuple_(threads.c.updated_at, threads.c.id), tuple_(*after[:2])
    is_behind = place < before
    for number in after[2:]:  # the thread was looked through up to this turn
        is_behind = and_(place <= before, or_(is_behind, turns.c.number > number))
    return rows.where(is_behind)
