"""A database as an older version of the gateway has left it."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from alembic import command
from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import AsyncConnection

from pallas_gateway.identity.secret import Secret
from pallas_gateway.shared.database import migrating
from pallas_gateway.shared.database.connections import Database

PICTURES = [{"data": "aGVsbG8=", "mime_type": "image/png"}]
_THREAD = text(
    "INSERT INTO pallas_threads (id, owner, agent, created_at, updated_at, turns) VALUES (:id, 'me', 'solo', 0, 0, :n)"
)
_TURN = text(
    "INSERT INTO pallas_turns (thread_id, number, status, question, question_images, answer, answer_images, usage,"
    " call_id, created_at) VALUES (:id, :number, :status, 'one', :pictures, :answer, '[]', '{}', 'call', 0)"
)


def migrations_up_to(version: str, folder: Path) -> Path:
    copy = folder / "migrations"
    shutil.copytree(Path(migrating.__file__).with_name("migrations"), copy)
    for file in (copy / "versions").glob("v*.py"):
        if file.name[1:5] > version:
            file.unlink()
    return copy


async def migrate_to(version: str, url: str, folder: Path) -> None:
    migrations = migrations_up_to(version, folder)

    def migrate(connection: Connection) -> None:
        config = migrating._config(connection)
        config.set_main_option("script_location", str(migrations))
        command.upgrade(config, "head")

    database = Database(Secret(url), folder)
    await database.write(lambda sql: sql.run_sync(migrate))
    await database.close()


async def write_as_of_0_1_0(url: str, ids: Sequence[str], turns: Sequence[tuple[str, str | None]]) -> None:
    """Write threads of `me` with `solo`, each with turns of a status and an answer, with pictures in the question."""

    async def written(sql: AsyncConnection) -> None:
        for id_ in ids:
            await sql.execute(_THREAD, {"id": id_, "n": len(turns)})
            for number, (status, answer) in enumerate(turns, start=1):
                pictures = json.dumps(PICTURES)
                values = {"id": id_, "number": number, "status": status, "answer": answer, "pictures": pictures}
                await sql.execute(_TURN, values)

    database = Database(Secret(url), Path("/"))
    await database.write(written)
    await database.close()
