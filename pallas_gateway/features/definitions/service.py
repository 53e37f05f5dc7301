"""Makes and changes agents of the database: all rules, and what is written, in one transaction.

A change is checked twice. Before the transaction, all problems are found at once, with those that only the runtime
knows. Within it, the rules about other agents are checked again, while no other process can change any.
"""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, override

from pallas_gateway.config.loading.cross_checks import AGENT_NAME
from pallas_gateway.core.offers import PossibleOwners
from pallas_gateway.features.definitions import rules, store
from pallas_gateway.features.definitions.definition import definition_of, parsed, patched
from pallas_gateway.features.definitions.records import (
    AgentInUseError,
    AgentNotFoundError,
    InvalidDefinitionError,
    NameTakenError,
    Place,
    VersionConflictError,
)
from pallas_gateway.features.definitions.rules import taker_of, why_no_name
from pallas_gateway.shared.database.errors import DatabaseUnavailableError
from pallas_gateway.telemetry.redaction import cleaned_data
from pallas_gateway.urls import Addresses

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from sqlalchemy.ext.asyncio import AsyncConnection

    from pallas_gateway.config.loading.configuration import Configuration
    from pallas_gateway.features.definitions.definition import Parsed
    from pallas_gateway.features.definitions.records import (
        Definition,
        DefinitionVersion,
        Ratings,
        Snapshot,
        StoredAgent,
    )
    from pallas_gateway.shared.database.service import GatewayDatabase

    type Sources = tuple[str | None, tuple[str, ...]]
    """Model and servers of a definition."""
    type Check = Callable[[str | None, tuple[str, ...]], Awaitable[Sequence[tuple[str, str]]]]
    """Returns the problems of a model and servers that only the runtime knows, with paths such as `servers.0`."""


NOTED_SECONDS = 3600
NOTING_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The `Caller.owner` that an agent belongs to, and its name for people."""

    owner: str
    name: str

    @property
    def principal(self) -> str:
        """The name with its kind, as `Caller.principal`."""
        kind, separator, _ = self.owner.partition(":")
        return f"{kind}{separator}{self.name}" if separator else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Editor:
    """The caller that makes a change.

    Attributes:
        owner: its `Caller.owner`.
        name: for people.
        may_run: returns True for agents that it may have as sub-agents.
        why: the reason, for the list of versions.
        permit: raises an error if it may not change an agent; asked within the transaction.
        gives_to: the agent's new owner, None to keep the present one.
    """

    owner: str
    name: str
    may_run: Callable[[str], bool]
    why: str | None = None
    permit: Callable[[StoredAgent], object] = lambda _: None
    gives_to: Owner | None = None


@dataclass(frozen=True, slots=True)
class _Change:
    """A change of an agent: makes the new version of the present one."""

    name: str
    editor: Editor
    make: Callable[[StoredAgent], Parsed]
    expected: int | None
    always: bool = False


class Definitions(PossibleOwners):
    """The agents of the database.

    Every method raises `DatabaseUnavailableError` if the database cannot be used. `dry_run` checks all and writes
    nothing. `expected` is the version that the client has read, None for any.
    """

    def __init__(self, database: GatewayDatabase, configuration: Callable[[], Configuration]) -> None:
        """Take the database, and what returns the present configuration."""
        self._database = database
        self._configuration = configuration
        self.check: Check | None = None
        """The check of the runtime."""
        self.on_change: Callable[[], None] = lambda: None
        """Called after each change that was written."""
        self._latest: Snapshot | None = None
        self._noted: dict[str, float] = {}
        self._writing = asyncio.Lock()

    async def number(self) -> int:
        """Return how many changes there were; another number means that something has changed."""
        return await self._read(store.number)

    async def snapshot(self) -> Snapshot:
        self._latest = await self._read(lambda sql: store.snapshot(sql, self._latest))
        return self._latest

    async def owners(self) -> Mapping[str, str]:
        """Return the `Caller.owner` of each agent."""
        return await self._read(store.owners)

    async def ratings(self, agent: StoredAgent) -> Ratings:
        return await self._read(lambda sql: store.ratings(sql, agent.id))

    async def callers(self) -> Mapping[str, str]:
        """Return the names of the callers that an agent may be handed over to, by their `Caller.owner`."""
        return await self._read(store.seen_callers)

    @override
    async def note_caller(self, owner: str, name: str) -> None:
        """Note that a caller has opened the console: once an hour in each process, if the database is available."""
        moment = asyncio.get_running_loop().time()
        if moment - self._noted.get(owner, -math.inf) < NOTED_SECONDS or not self._database.connections.is_available:
            return
        if len(self._noted) >= store.MOST_CALLERS:
            self._noted.clear()
        self._noted[owner] = moment
        with suppress(DatabaseUnavailableError):
            note = partial(store.note_caller, owner=owner, name=name)
            await self._database.connections.write(note, seconds=NOTING_SECONDS, share="services")

    async def find(self, name: str) -> StoredAgent:
        """Return an agent.

        Raises:
            AgentNotFoundError: there is none of this name.
        """
        return await self._read(lambda sql: _found(sql, name))

    async def versions(self, name: str) -> Sequence[DefinitionVersion]:
        """Return all versions of an agent, the newest first; raises as `find`."""

        async def read(sql: AsyncConnection) -> Sequence[DefinitionVersion]:
            return await store.versions(sql, (await _found(sql, name)).id)

        return await self._read(read)

    async def version(self, name: str, number: int) -> DefinitionVersion:
        """Return one version of an agent.

        Raises:
            AgentNotFoundError: there is no such agent or version.
        """

        async def read(sql: AsyncConnection) -> DefinitionVersion:
            return await _version(sql, await _found(sql, name), number)

        return await self._read(read)

    async def create(self, name: object, written: object, editor: Editor, *, dry_run: bool = False) -> StoredAgent:
        """Make an agent, which belongs to its editor.

        Args:
            name: as the client has written it.
            written: the definition without the name.
            editor: its owner.
            dry_run: only check.

        Raises:
            InvalidDefinitionError: with all problems; also if there are as many agents as there may be.
            NameTakenError: another agent has the name.
        """
        deployment = self._configuration().deployment
        why = why_no_name(name, deployment)
        definition = parsed(written)
        known = await self._read(store.sub_agents)
        found = [Place("name", why)] if why is not None else []
        found += await self._problems(str(name), definition, editor, (), known)
        found += await self._read(lambda sql: self._without_place(sql, editor.owner))
        if isinstance(name, str) and why is None:
            self._refuse_taken(name, known)
        self._refuse(found)

        async def written_(sql: AsyncConnection) -> StoredAgent:
            others = await store.sub_agents(sql)
            self._refuse_taken(str(name), others)
            found = self._rules(str(name), definition, editor, (), others)
            self._refuse([*found, *await self._without_place(sql, editor.owner)])
            new = store.NewVersion(editor.owner, editor.name, editor.name, definition.definition, editor.why)
            return await store.add(sql, str(name), new)

        return await self._written(written_, dry_run=dry_run)

    async def copy(
        self, source: str, name: object, changes: object, editor: Editor, *, dry_run: bool = False
    ) -> StoredAgent:
        """Make an agent as another declared one, of a file or of the database, with changes to it (a merge patch).

        The caller's right to read the other's instruction is checked before. Raises as `create`, with `copyOf` as the
        path if the other agent is not declared; and `AgentNotFoundError`.
        """
        return await self.create(name, await self._copied(source, changes), editor, dry_run=dry_run)

    async def replace(
        self,
        name: str,
        written: object,
        editor: Editor,
        *,
        expected: int | None,
        dry_run: bool = False,
    ) -> StoredAgent:
        """Give an agent another definition; an equal one makes no version.

        Raises:
            AgentNotFoundError: there is none of this name.
            VersionConflictError: it has another version than `expected`.
            InvalidDefinitionError: with all problems.
        """
        definition = parsed(written)
        return await self._changed(_Change(name, editor, lambda _: definition, expected), dry_run=dry_run)

    async def patch(
        self,
        name: str,
        patch: object,
        editor: Editor,
        *,
        expected: int | None,
        dry_run: bool = False,
    ) -> StoredAgent:
        """Change some keys of an agent (RFC 7396); raises as `replace`."""

        def make(present: StoredAgent) -> Parsed:
            return parsed(patched(present.definition, patch))

        return await self._changed(_Change(name, editor, make, expected), dry_run=dry_run)

    async def restore(
        self, name: str, number: int, editor: Editor, *, expected: int | None, dry_run: bool = False
    ) -> StoredAgent:
        """Make an earlier version the newest one; raises as `replace`, and if there is no such version."""
        agent = await self.find(name)
        earlier = parsed(dict((await self._read(lambda sql: _version(sql, agent, number))).definition))

        def make(present: StoredAgent) -> Parsed:
            if present.id != agent.id:  # the name was given to another agent meanwhile
                raise AgentNotFoundError(f"Agent '{name}' has no version {number}.")
            return earlier

        return await self._changed(_Change(name, editor, make, expected, always=True), dry_run=dry_run)

    async def remove(
        self,
        name: str,
        editor: Editor,
        *,
        expected: int | None,
        drops_threads: bool = False,
        dry_run: bool = False,
    ) -> StoredAgent:
        """Delete an agent, and return it; with `drops_threads` it is noted that its threads are to be deleted, too.

        Raises:
            AgentNotFoundError: there is none of this name.
            VersionConflictError: it has another version than `expected`.
            AgentInUseError: it is a sub-agent of others.
        """

        async def written(sql: AsyncConnection) -> StoredAgent:
            agent = await _permitted(sql, name, editor, expected)
            users = [one for one, named in (await store.sub_agents(sql)).items() if name in named]
            if users and name not in self._of_files():
                raise AgentInUseError(name, users)
            await store.remove(sql, agent, drops_threads=drops_threads)
            return agent

        return await self._written(written, dry_run=dry_run)

    async def drop_threads(self, drop: Callable[[str], Awaitable[None]]) -> None:
        """Delete the threads of deleted agents by `drop`, which is given an id; what it cannot delete stays noted."""
        for id_ in await self._read(store.with_threads_to_drop):
            await drop(id_)
            await self._database.connections.write(partial(store.note_dropped, id_=id_), share="services")

    async def _changed(self, change: _Change, *, dry_run: bool) -> StoredAgent:
        """Make a change; one that builds on the present version does so again if that has changed meanwhile."""
        checked: set[Sources] = set()
        while True:
            present, known = await self._read(lambda sql: _present(sql, change))
            definition = change.make(present)
            before = present.definition.get("agents", ())
            self._refuse(await self._problems(change.name, definition, change.editor, before, known))
            checked.add(_sources(definition.definition))
            written = await self._written(lambda sql: self._write(sql, change, checked), dry_run=dry_run)
            if written is not None:
                return written

    async def _write(self, sql: AsyncConnection, change: _Change, checked: set[Sources]) -> StoredAgent | None:
        """Write a change; nothing if it makes none, or if the runtime has not checked what it results in (None)."""
        present, others = await _present(sql, change)
        definition = change.make(present)
        if not definition.problems and _sources(definition.definition) not in checked:
            await sql.rollback()
            return None
        before = present.definition.get("agents", ())
        self._refuse(self._rules(change.name, definition, change.editor, before, others))
        owner = change.editor.gives_to or Owner(owner=present.owner, name=present.owner_name)
        if owner.owner != present.owner:
            self._refuse(await self._without_place(sql, owner.owner, "owner"))
        is_same = definition.definition == present.definition and owner.owner == present.owner
        if is_same and not change.always:
            await sql.rollback()
            return present
        editor = change.editor
        new = store.NewVersion(owner.owner, owner.name, editor.name, definition.definition, editor.why)
        return await store.change(sql, present, new)

    async def _problems(
        self,
        name: str,
        definition: Parsed,
        editor: Editor,
        before: Sequence[str],
        known: Mapping[str, Sequence[str]],
    ) -> list[Place]:
        """Return all problems of a definition, with those that only the runtime knows."""
        found = self._rules(name, definition, editor, before, known)
        paths = {place.path for place in found}
        if self.check is not None:
            of_runtime = await self.check(*_sources(definition.definition))
            placed = [definition.place(path, message) for path, message in of_runtime]
            found += [place for place in placed if place.path not in paths]
        return found

    def _rules(
        self,
        name: str,
        definition: Parsed,
        editor: Editor,
        before: Sequence[str],
        others: Mapping[str, Sequence[str]],
    ) -> list[Place]:
        """Return the problems of a definition among the other agents (with their sub-agents)."""
        configuration = self._configuration()
        known = {*self._of_files(), *others}
        visible = [one for one in sorted(known) if one in before or editor.may_run(one)]
        around = rules.Surroundings.of(configuration, visible)
        found = rules.problems(name, definition.definition, around)
        found += rules.circle(name, definition.definition, others, visible)
        found += rules.policies_of_no_server(definition.definition, {*configuration.fastagent.servers, *visible})
        placed = [definition.place(one.path, one.message) for one in found]
        given = {place.path for place in definition.problems}
        return [*definition.problems, *(place for place in placed if place.path not in given)]

    async def _without_place(self, sql: AsyncConnection, owner: str, path: str = "") -> list[Place]:
        settings = self._configuration().deployment.gateway
        return rules.without_place([*(await store.owners(sql)).values()], owner, settings, path)

    def _refuse(self, problems: Sequence[Place]) -> None:
        if problems:
            raise InvalidDefinitionError(problems)

    def _refuse_taken(self, name: str, others: Mapping[str, object]) -> None:
        taker = taker_of(name, (*self._of_files(), *others))
        if taker is not None:
            message = f"There is an agent '{taker}' already. Names that differ only in case, '_' and '-' are the same."
            raise NameTakenError(message, taker)
        absent = taker_of(name, Addresses(self._configuration()).absent().values())
        if absent is not None:  # agents of files would call the new agent, whoever makes it
            raise NameTakenError(f"A server of fastagent.config.yaml has the URL of an agent '{absent}'.", absent)

    def _of_files(self) -> Mapping[str, Any]:
        return self._configuration().file_agents

    async def declared(self, source: str) -> Definition:
        """Return the definition of an agent that is made of an instruction, of a file or of the database.

        Raises:
            AgentNotFoundError: there is none of this name.
            InvalidDefinitionError: it is made of a module or card, or the file with its instruction cannot be read.
        """
        configuration = self._configuration()
        if (of_file := configuration.file_agents.get(source)) is None:
            return (await self.find(source)).definition
        if not of_file.is_instructed:
            why = f"agent '{source}' has a {of_file.makings[0]}; only agents with an instruction can be copied"
            raise InvalidDefinitionError([Place("copyOf", why)])
        instruction = of_file.instruction or ""
        if of_file.instruction_file is not None:
            file = configuration.beside(of_file.instruction_file)
            try:
                instruction = (await asyncio.to_thread(file.read_text, encoding="utf-8-sig")).strip()
            except (OSError, UnicodeDecodeError):
                why = f"the file with the instruction of agent '{source}' cannot be read"
                raise InvalidDefinitionError([Place("copyOf", why)]) from None
        return definition_of(of_file, instruction)

    async def _copied(self, source: str, changes: object) -> object:
        """Return the definition of a copy; raises as `declared`, and if it would have a secret of the gateway.

        `agents.yaml` takes secrets from variables of the environment; in the database every reader would see them.
        """
        declared = await self.declared(source)
        copy = patched(declared, changes)
        if source in self._of_files() and patched(cleaned_data(declared), changes) != copy:
            why = f"agent '{source}' has secrets of the gateway in its definition, which a copy would show"
            raise InvalidDefinitionError([Place("copyOf", why)])
        return copy

    async def _read[T](self, work: Callable[[AsyncConnection], Awaitable[T]]) -> T:
        return await self._database.connections.read(work, share="services")

    async def _written[T](self, work: Callable[[AsyncConnection], Awaitable[T]], *, dry_run: bool) -> T:
        """Run `work` in a transaction, which it may roll back."""

        async def counted(sql: AsyncConnection) -> tuple[T, bool]:
            await store.count_change(sql)
            result = await work(sql)
            if dry_run:
                await sql.rollback()
            return result, sql.in_transaction()

        async with self._writing:  # many changes at once would leave no moment for the writers of threads
            result, is_written = await self._database.connections.write(counted, share="services")
        if is_written:
            self.on_change()
        return result


async def _found(sql: AsyncConnection, name: str) -> StoredAgent:
    # Not asked for a text that the database cannot hold, which would be an error of the database.
    agent = await store.find(sql, name) if AGENT_NAME.fullmatch(name) else None
    if agent is None:
        raise AgentNotFoundError(f"There is no agent '{name}' in the database.")
    return agent


async def _version(sql: AsyncConnection, agent: StoredAgent, number: int) -> DefinitionVersion:
    # A number that the database's type cannot hold would be an error of the database.
    found = await store.version(sql, agent.id, number) if 1 <= number <= agent.version else None
    if found is None:
        raise AgentNotFoundError(f"Agent '{agent.name}' has no version {number}.")
    return found


async def _permitted(sql: AsyncConnection, name: str, editor: Editor, expected: int | None) -> StoredAgent:
    agent = await _found(sql, name)
    editor.permit(agent)
    if expected is not None and agent.version != expected:
        raise VersionConflictError(name, agent.version)
    return agent


async def _present(sql: AsyncConnection, change: _Change) -> tuple[StoredAgent, Mapping[str, Sequence[str]]]:
    """Return the agent that a change is of, and the sub-agents of all."""
    agent = await _permitted(sql, change.name, change.editor, change.expected)
    return agent, await store.sub_agents(sql)


def _sources(definition: Definition) -> Sources:
    """Return what of a definition the runtime checks."""
    return definition.get("model"), tuple(definition.get("servers", ()))
