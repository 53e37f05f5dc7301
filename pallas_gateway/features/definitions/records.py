"""Agents of the database as values, and why a change of one is refused: `reason` is the `error` of the HTTP API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pallas_gateway.errors import GatewayError

type Definition = Mapping[str, Any]
"""An agent as stored: the keys of a declared agent in `agents.yaml` that agents of the database may have, without its
name; `params` stands for `default_params`. Values are JSON, and keys without a value are absent."""


@dataclass(frozen=True, slots=True)
class StoredAgent:
    """An agent of the database at its latest version.

    Attributes:
        id: never used again, also if the name returns.
        name: unique among the agents of the database that were not deleted.
        owner: the `Caller.owner` that it belongs to.
        owner_name: the owner's name, for people.
        version: 1, 2, …; goes on if a deleted name returns.
        definition: of that version.
        created_at: the time of the first version of this id.
        updated_at: the time of this version.
    """

    id: str
    name: str
    owner: str
    owner_name: str
    version: int
    definition: Definition
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class DefinitionVersion:
    """One version of an agent; `editor` is the name of the caller that made it, `why` its reason."""

    version: int
    editor: str
    updated_at: datetime
    definition: Definition
    why: str | None = None


@dataclass(frozen=True, slots=True)
class RatedAnswer:
    """An answer of an agent with a note that its owner may read."""

    rating: str
    note: str
    rated_at: datetime
    question: str
    answer: str


@dataclass(frozen=True, slots=True)
class Ratings:
    """How many answers of an agent were rated, by the rating, and the latest notes that its owner may read."""

    counts: Mapping[str, int]
    notes: tuple[RatedAnswer, ...]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All agents of the database, by name, at one time; `number` counts the changes before it."""

    number: int
    agents: tuple[StoredAgent, ...] = ()


@dataclass(frozen=True, slots=True)
class Place:
    """A problem of a definition: the path of the value, such as `servers.0`, and what is wrong with it."""

    path: str
    message: str


class AgentNotFoundError(GatewayError):
    """The database has no agent of that name, or no such version of it."""

    reason = "not_found"


class InvalidDefinitionError(GatewayError):
    """The definition breaks rules; `problems` has all of them."""

    reason = "invalid_definition"

    def __init__(self, problems: Sequence[Place]) -> None:
        super().__init__("; ".join(f"{one.path}: {one.message}" if one.path else one.message for one in problems))
        self.problems = tuple(problems)


class NameTakenError(GatewayError):
    """Another agent has the name, or one that differs from it only in case, `_` and `-`: `taker`."""

    reason = "name_taken"

    def __init__(self, message: str, taker: str) -> None:
        super().__init__(message)
        self.taker = taker


class AgentInUseError(GatewayError):
    """Other agents name the agent as their sub-agent; `users` are their names."""

    reason = "agent_in_use"

    def __init__(self, name: str, users: Sequence[str]) -> None:
        super().__init__(f"Agent '{name}' is a sub-agent of {', '.join(users)}. Change these agents first.")
        self.users = tuple(users)


class VersionConflictError(GatewayError):
    """The agent has another version than the request expects; `version` is the present one."""

    reason = "version_conflict"

    def __init__(self, name: str, version: int) -> None:
        super().__init__(f"Agent '{name}' is at version {version} now. Read it again, then repeat the change.")
        self.version = version
