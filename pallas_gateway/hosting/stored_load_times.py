"""When configurations were loaded first, in the database: for all replicas on it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert

from pallas_gateway.database.tables import loaded_configurations as loaded
from pallas_gateway.database.tables import now

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

    from pallas_gateway.database.service import GatewayDatabase


class StoredLoadTimes:
    """The `LoadTimes` of gateways that share a database."""

    def __init__(self, database: GatewayDatabase) -> None:
        self._database = database

    async def first(self, digest: str, after: datetime | None) -> datetime:
        self._database.refuse_unless_open()
        later_than = int(after.timestamp() * 1000) if after is not None else -1

        async def noted(sql: AsyncConnection) -> int:
            new = insert(loaded).values(digest=digest, loaded_at=now())  # SQLite has the same clause
            comes_back = loaded.c.loaded_at <= later_than
            await sql.execute(
                new.on_conflict_do_update(index_elements=[loaded.c.digest], set_={"loaded_at": now()}, where=comes_back)
            )
            return int((await sql.execute(select(loaded.c.loaded_at).where(loaded.c.digest == digest))).scalar_one())

        moment = await self._database.connections.write(noted, share="services")
        return datetime.fromtimestamp(moment / 1000, UTC)
