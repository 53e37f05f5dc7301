"""The call that a log record is written for: its ids and its secrets, inherited by every task that the call starts.

Only for records and messages: no decision may depend on it. What the runtime needs of a call is in
`runtime/scope.py`.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pallas_gateway.telemetry.redaction import KnownSecrets

_NO_IDS: Mapping[str, str | None] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class CurrentCall:
    """The running call.

    Attributes:
        ids: fields of every record; empty outside of calls.
        secrets: hidden in every record and message; one object for all tasks of the call, which may add to it.
    """

    ids: Mapping[str, str | None] = _NO_IDS
    secrets: KnownSecrets | None = None


current_call: ContextVar[CurrentCall] = ContextVar("pallas_current_call", default=CurrentCall())  # noqa: B039  frozen


@contextmanager
def working_on(
    *, agent: str, call_id: str, conversation_id: str | None = None, trace_id: str | None = None
) -> Iterator[None]:
    """Records written inside the block, and in tasks started in it, carry these; `trace_id` only if there is one."""
    ids = {"agent": agent, "call_id": call_id, "conversation_id": conversation_id}
    token = current_call.set(replace(current_call.get(), ids={**ids, "trace_id": trace_id} if trace_id else ids))
    try:
        yield
    finally:
        current_call.reset(token)


def renamed(*, call_id: str, conversation_id: str | None) -> None:
    """Use these ids in later records of the `working_on` block."""
    now = current_call.get()
    current_call.set(replace(now, ids={**now.ids, "call_id": call_id, "conversation_id": conversation_id}))
