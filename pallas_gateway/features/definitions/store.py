"""Agents of the database, with their SQL statements. Each function runs in the transaction that it is given."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import and_, delete, func, insert, select, tuple_, update
from sqlalchemy.dialects.postgresql import insert as insert_or

from pallas_gateway.features.definitions.records import DefinitionVersion, RatedAnswer, Ratings, Snapshot, StoredAgent
from pallas_gateway.features.definitions.rules import key_of
from pallas_gateway.shared.database.tables import (
    ID_CHARACTERS,
    agent_changes,
    agent_versions,
    agents,
    callers,
    feedback,
    now,
    threads,
    turns,
)
from pallas_gateway.telemetry.redaction import storable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy.ext.asyncio import AsyncConnection

    from pallas_gateway.features.definitions.records import Definition
    from pallas_gateway.shared.database.tables import AnyRow

KEPT_VERSIONS = 100
"""The newest versions of an agent, which are kept: a version may have 256 KB, and owners make any number."""
NOTED_MILLISECONDS = 60_000
MOST_NOTES = MOST_CALLERS = 100
REMEMBERED_MILLISECONDS = 400 * 86_400_000
_IS_LIVING = agents.c.deleted_at.is_(None)
_COLUMNS = tuple(agents.c[key] for key in ("id", "name", "owner", "owner_name", "version", "created_at", "updated_at"))
_PRESENT = (
    select(*_COLUMNS, agent_versions.c.definition)
    .join(agent_versions, and_(agent_versions.c.agent_id == agents.c.id, agent_versions.c.version == agents.c.version))
    .where(_IS_LIVING)
)


@dataclass(frozen=True, slots=True)
class NewVersion:
    """What a change writes."""

    owner: str
    owner_name: str
    editor: str
    definition: Definition
    why: str | None = None


async def number(sql: AsyncConnection) -> int:
    """Return how many changes were made."""
    return int((await sql.execute(select(agent_changes.c.number))).scalar_one())


async def count_change(sql: AsyncConnection) -> None:
    """Count a change. First in each writing transaction: the others wait here until it has ended."""
    await sql.execute(update(agent_changes).values(number=agent_changes.c.number + 1))


async def snapshot(sql: AsyncConnection, before: Snapshot | None = None) -> Snapshot:
    """Return all agents; definitions are read only of versions that are not in `before`: they may have many MB."""
    # The number first: agents may be newer than it, and are read once more then.
    present = await number(sql)
    rows = (await sql.execute(select(*_COLUMNS).where(_IS_LIVING).order_by(agents.c.name))).all()
    known = {(one.id, one.version): one.definition for one in before.agents} if before is not None else {}
    if new := [place for row in rows if (place := (row.id, row.version)) not in known]:
        is_new = tuple_(agent_versions.c.agent_id, agent_versions.c.version).in_(new)
        for row in await sql.execute(select(agent_versions).where(is_new)):
            known[row.agent_id, row.version] = row.definition
    # A version that is missing was removed since, which has changed the number.
    found = (_agent_of(row, known[place]) for row in rows if (place := (row.id, row.version)) in known)
    return Snapshot(present, tuple(found))


async def find(sql: AsyncConnection, name: str) -> StoredAgent | None:
    is_it = and_(agents.c.key == key_of(name), agents.c.name == name)  # by the index of keys
    row = (await sql.execute(_PRESENT.where(is_it))).one_or_none()
    return None if row is None else _agent_of(row)


async def owners(sql: AsyncConnection) -> Mapping[str, str]:
    """Return the owner of each agent."""
    rows = await sql.execute(select(agents.c.name, agents.c.owner).where(_IS_LIVING))
    return {row.name: row.owner for row in rows}


async def sub_agents(sql: AsyncConnection) -> Mapping[str, Sequence[str]]:
    """Return all agents with their sub-agents."""
    rows = await sql.execute(select(agents.c.name, agents.c.sub_agents).where(_IS_LIVING).order_by(agents.c.name))
    return {row.name: tuple(row.sub_agents) for row in rows}


async def versions(sql: AsyncConnection, agent_id: str) -> Sequence[DefinitionVersion]:
    """Return the versions of an agent, the newest first."""
    found = select(agent_versions).where(agent_versions.c.agent_id == agent_id)
    rows = await sql.execute(found.order_by(agent_versions.c.version.desc()))
    return [_version_of(row) for row in rows]


async def version(sql: AsyncConnection, agent_id: str, wanted: int) -> DefinitionVersion | None:
    found = select(agent_versions).where(agent_versions.c.agent_id == agent_id, agent_versions.c.version == wanted)
    row = (await sql.execute(found)).one_or_none()
    return None if row is None else _version_of(row)


async def ratings(sql: AsyncConnection, agent_id: str) -> Ratings:
    """Return what callers think of an agent's answers, without who they are; the latest note first."""
    of_agent = feedback.join(threads, threads.c.id == feedback.c.thread_id)
    is_it, is_turn = threads.c.agent_id == agent_id, turns.c.number == feedback.c.turn
    counted = select(feedback.c.rating, func.count()).select_from(of_agent).where(is_it).group_by(feedback.c.rating)
    counts = {row[0]: row[1] for row in await sql.execute(counted)}
    columns = feedback.c.rating, feedback.c.note, feedback.c.rated_at, turns.c.question, turns.c.answer
    shown = select(*columns).select_from(of_agent.join(turns, and_(turns.c.thread_id == threads.c.id, is_turn)))
    shown = shown.where(is_it, feedback.c.for_owner.is_(True)).order_by(feedback.c.rated_at.desc()).limit(MOST_NOTES)
    rows = await sql.execute(shown)
    notes = (RatedAnswer(one.rating, one.note, _time(one.rated_at), one.question, one.answer or "") for one in rows)
    return Ratings(counts, tuple(notes))


async def note_caller(sql: AsyncConnection, owner: str, name: str) -> None:
    """Keep that a caller has opened the console, and forget those that have not for long."""
    values = {"name": storable(name), "seen_at": now()}
    row = insert_or(callers).values(owner=owner, **values)
    await sql.execute(row.on_conflict_do_update(index_elements=["owner"], set_=values))
    await sql.execute(delete(callers).where(callers.c.seen_at < now() - REMEMBERED_MILLISECONDS))


async def seen_callers(sql: AsyncConnection) -> Mapping[str, str]:
    """Return the names of the callers that were seen last, by their `Caller.owner`."""
    rows = await sql.execute(select(callers).order_by(callers.c.seen_at.desc()).limit(MOST_CALLERS))
    return {row.owner: row.name for row in rows}


async def add(sql: AsyncConnection, name: str, new: NewVersion) -> StoredAgent:
    """Add an agent; its version follows those of deleted agents of the name."""
    id_, key = secrets.token_hex(ID_CHARACTERS // 2), key_of(name)
    earlier = (await sql.execute(select(func.max(agents.c.version)).where(agents.c.key == key))).scalar_one()
    values = {"id": id_, "name": name, "key": key, "version": (earlier or 0) + 1, **_columns(new)}
    moment = (await sql.execute(select(now()))).scalar_one()  # PostgreSQL's clock goes on within a statement
    await sql.execute(insert(agents).values(**values, created_at=moment, updated_at=moment, drops_threads=False))
    return await _with_version(sql, id_, new)


async def change(sql: AsyncConnection, agent: StoredAgent, new: NewVersion) -> StoredAgent:
    """Add a version to an agent."""
    values = {"version": agent.version + 1, **_columns(new)}
    await sql.execute(update(agents).where(agents.c.id == agent.id).values(**values, updated_at=now()))
    too_old = agent_versions.c.version <= agent.version + 1 - KEPT_VERSIONS
    await sql.execute(delete(agent_versions).where(agent_versions.c.agent_id == agent.id, too_old))
    return await _with_version(sql, agent.id, new)


async def remove(sql: AsyncConnection, agent: StoredAgent, *, drops_threads: bool) -> None:
    """Delete an agent and its versions. Its row stays, with its id and the number of its latest version."""
    await sql.execute(delete(agent_versions).where(agent_versions.c.agent_id == agent.id))
    values = {"deleted_at": now(), "drops_threads": drops_threads}
    await sql.execute(update(agents).where(agents.c.id == agent.id).values(**values))


async def with_threads_to_drop(sql: AsyncConnection) -> Sequence[str]:
    """Return the ids of deleted agents whose threads are still to be deleted."""
    return (await sql.execute(select(agents.c.id).where(agents.c.drops_threads))).scalars().all()


async def note_dropped(sql: AsyncConnection, id_: str) -> None:
    """Forget that the threads of an agent are to be deleted, a minute after it was deleted.

    Until then older releases at the same database, which still host it, may begin further ones.
    """
    is_known = agents.c.deleted_at < now() - NOTED_MILLISECONDS
    await sql.execute(update(agents).where(agents.c.id == id_, is_known).values(drops_threads=False))


async def _with_version(sql: AsyncConnection, id_: str, new: NewVersion) -> StoredAgent:
    row = (await sql.execute(select(agents.c.version, agents.c.updated_at).where(agents.c.id == id_))).one()
    what = {"why": new.why, "editor": storable(new.editor), "definition": dict(new.definition)}
    values = {**what, "created_at": row.updated_at}
    await sql.execute(insert(agent_versions).values(agent_id=id_, version=row.version, **values))
    return _agent_of((await sql.execute(_PRESENT.where(agents.c.id == id_))).one())


def _columns(new: NewVersion) -> dict[str, Any]:
    named = list(new.definition.get("agents", ()))
    return {"owner": new.owner, "owner_name": storable(new.owner_name), "sub_agents": named}


def _agent_of(row: AnyRow, definition: Definition | None = None) -> StoredAgent:
    values = {"definition": definition, **row._mapping}
    return StoredAgent(**{**values, "created_at": _time(row.created_at), "updated_at": _time(row.updated_at)})


def _version_of(row: AnyRow) -> DefinitionVersion:
    return DefinitionVersion(row.version, row.editor, _time(row.created_at), row.definition, row.why)


def _time(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)
