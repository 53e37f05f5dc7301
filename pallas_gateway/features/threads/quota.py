"""The quota of each owner: the bytes of its threads.

Messages, answers, images and steps count as they are stored, and each thread and each turn `ROW_BYTES` more. An
answer is always stored, so one turn may exceed the quota, as may requests that arrive at the same moment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import func, select

from pallas_gateway.features.threads.records import ThreadsFullError
from pallas_gateway.shared.database.tables import threads

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, ScalarSelect
    from sqlalchemy.ext.asyncio import AsyncConnection

ROW_BYTES = 1024


class Quota:
    """The most bytes of one owner, None for any number; a reload may change it."""

    def __init__(self, max_bytes: int | None = None) -> None:
        self.max_bytes = max_bytes

    async def refuse_beyond(
        self, sql: AsyncConnection, owner: str | ScalarSelect[str] | ColumnElement[str], more: int
    ) -> None:
        """Check that an owner may store so many more bytes.

        Raises:
            ThreadsFullError: it may not.
        """
        if self.max_bytes is None:
            return
        used = select(func.coalesce(func.sum(threads.c.bytes), 0)).where(threads.c.owner == owner)
        if (await sql.execute(used)).scalar_one() + more > self.max_bytes:
            raise ThreadsFullError(
                f"Your threads may have {self.max_bytes} bytes in all, and this would be more. Delete threads that you "
                "no longer need, or ask the operator for more (gateway.threads_max_bytes)."
            )
