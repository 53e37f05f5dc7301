"""Who may do what with an agent of a request: decided by `identity/decision.py` from what is stored now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from pallas_gateway.doors.api.errors import ApiError
from pallas_gateway.doors.http import refusals
from pallas_gateway.identity.decision import Action, Decision, decide

if TYPE_CHECKING:
    from starlette.requests import Request

    from pallas_gateway.core.gateway import Gateway
    from pallas_gateway.features.definitions.records import StoredAgent
    from pallas_gateway.identity.caller import Caller

_GRANTS = {
    Action.READ_INSTRUCTION: "view:instructions:{name}",
    Action.CREATE: "create:agents",
    Action.EDIT: "edit:agents:{name}",
    Action.DELETE: "delete:agents:{name}",
    Action.DELETE_THREADS: "delete:agents",
}
"""The grants that allow a use to callers that do not own the agent; no single one allows to hand it over."""


@dataclass(frozen=True, slots=True)
class Asked:
    """An agent of a request, and its caller; `stored` is None for an agent of a file."""

    name: str
    caller: Caller
    stored: StoredAgent | None

    @classmethod
    def of(cls, name: str, caller: Caller, stored: StoredAgent | None) -> Asked:
        """Return the agent with its caller, who has the rights on the stored agent as it is now."""
        return cls(name, caller.among({name: stored.owner} if stored is not None else {}), stored)

    @property
    def of_database(self) -> StoredAgent:
        """The stored agent, for requests that concern one."""
        if self.stored is None:
            raise LookupError(f"agent '{self.name}' is not in the database")
        return self.stored

    def may(self, action: Action) -> bool:
        return decide(self.caller, self.name, action, exists=True) is Decision.ALLOWED


class RightsGate:
    """Lets a request pass, or refuses it, by the access rules."""

    def __init__(self, gateway: Gateway, request: Request) -> None:
        self._gateway = gateway
        self._scope = request.scope

    def require(self, action: Action, caller: Caller, name: str | None, *, exists: bool = True) -> None:
        """Return if the caller may make this use of an agent; None names no agent.

        Raises:
            RefusedError: 401 or 403; it is counted, logged and in the audit log.
            ApiError: `not_found`, as for an agent that does not exist.
        """
        match decide(caller, name, action, exists=exists):
            case Decision.TOKEN_NEEDED:
                raise refusals.RefusedError(refusals.without_token(self._gateway, self._scope, name))
            case Decision.HIDDEN:
                why = f"the token has no grant for agent '{name}'" if exists else "there is no such agent"
                known = name if exists else None
                refusals.record(self._gateway, self._scope, "no_grant", why, caller, agent=known)
                raise ApiError(refusals.no_agent(name), reason="not_found")
            case Decision.NO_GRANT:
                self._refuse_without_grant(action, caller, name)

    def _refuse_without_grant(self, action: Action, caller: Caller, name: str | None) -> NoReturn:
        grant = _GRANTS[action].format(name=name) if action in _GRANTS else None
        why = f"the token has no grant {grant}" if grant is not None else f"agent '{name}' is not the caller's"
        refusals.record(self._gateway, self._scope, "insufficient_scope", why, caller, agent=name, grant=grant)
        if grant is None:
            message = "Only the owner, or a caller with edit:agents and delete:agents, can hand an agent over."
            raise ApiError(message, reason="not_owner")
        otherwise = ", or the owner of the agent" if "{name}" in _GRANTS[action] else ""
        raise refusals.RefusedError(refusals.insufficient(self._gateway, grant, name, otherwise))
