"""Why a change of an agent of the database is refused. The `reason` is the `error` of the HTTP API."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pallas_gateway.errors import GatewayError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pallas_gateway.features.definitions.records import Place


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
