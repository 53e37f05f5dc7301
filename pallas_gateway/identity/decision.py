"""The access rules for agents: one table for every API. Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from pallas_gateway.identity.grants import CREATE_AGENTS, Grants

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pallas_gateway.identity.caller import Caller


class Action(StrEnum):
    """The use that a request makes of an agent."""

    VIEW = "view"
    RUN = "run"
    READ_INSTRUCTION = "read_instruction"
    CREATE = "create"
    EDIT = "edit"
    HAND_OVER = "hand_over"
    DELETE = "delete"
    DELETE_THREADS = "delete_threads"


class Decision(StrEnum):
    """The answer to a request for an agent, with its HTTP status."""

    ALLOWED = "allowed"
    TOKEN_NEEDED = "token_needed"  # noqa: S105  401: a token may bring the grant
    HIDDEN = "hidden"  # 404: the caller may not know whether the agent exists
    NO_GRANT = "no_grant"  # 403: the caller sees the agent and may not make this use of it


def decide(caller: Caller, agent: str | None, action: Action, *, exists: bool) -> Decision:
    """Return what a caller may do with an agent; None names no agent.

    A caller with all grants is allowed everything, also for an agent that does not exist: the route answers that.
    `Action.CREATE` concerns no agent.
    """
    grants = caller.grants
    if grants.everything or (action is Action.CREATE and grants.has(CREATE_AGENTS)):
        return Decision.ALLOWED
    if action is Action.CREATE:
        return Decision.NO_GRANT if caller.authenticated else Decision.TOKEN_NEEDED
    if agent is None or not exists or not grants.may_view(agent):
        return Decision.HIDDEN if caller.authenticated else Decision.TOKEN_NEEDED
    if not _GRANTED[action](grants, agent):
        return Decision.NO_GRANT if caller.authenticated else Decision.TOKEN_NEEDED
    return Decision.ALLOWED


def decide_on_all(caller: Caller, agents: Iterable[str]) -> Decision:
    """Return what a caller may do with the endpoint of all `agents`: it requires a grant for one of them."""
    grants, agents = caller.grants, [*agents]
    if all(map(grants.may_run, agents)) or any(map(grants.may_view, agents)):
        return Decision.ALLOWED
    return Decision.NO_GRANT if caller.authenticated else Decision.TOKEN_NEEDED


_GRANTED = {
    Action.VIEW: Grants.may_view,
    Action.RUN: Grants.may_run,
    Action.READ_INSTRUCTION: Grants.may_view_instruction,
    Action.EDIT: Grants.may_edit,
    Action.HAND_OVER: Grants.may_hand_over,
    Action.DELETE: Grants.may_delete,
    Action.DELETE_THREADS: Grants.may_delete_threads,
}
