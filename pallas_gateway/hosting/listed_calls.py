"""Calls as lists show them, without their arguments and results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pallas_gateway.calls.call import Api
    from pallas_gateway.calls.permit import Outcome


@dataclass(frozen=True, slots=True)
class ToolTime:
    """A tool call: `start` is in seconds from the begin of its call; `ok` is None if it had not ended."""

    name: str
    start: float
    seconds: float
    ok: bool | None


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """The end of a call: `reason` is its stop reason, or why it failed. `tools_left_out` counts later tools."""

    outcome: Outcome
    reason: str
    tools: tuple[ToolTime, ...]
    tools_left_out: int


@dataclass(frozen=True, slots=True)
class ListedCall:
    """A call as lists show it.

    Attributes:
        parent: the id of the call that made it.
        caller: `key:NAME`, `token:NAME` or `anonymous`.
        owner: identifies an authenticated caller; None for others.
        began_at: seconds since the epoch.
        step: LLM turns begun.
        tokens: its own so far, of all kinds.
        waiting: a question to its caller is open.
        is_estimated: the provider sent no usage for a part of the tokens.
        end: None while it runs.
    """

    id: str
    parent: str | None
    agent: str
    caller: str
    owner: str | None
    api: Api
    began_at: float
    seconds: float
    step: int
    tokens: int
    waiting: bool = False
    is_estimated: bool = False
    end: CallOutcome | None = None
