"""Which call is being worked on, for log records: a ContextVar, so whatever the call starts inherits it.

Deliberately no more than its ids: nothing may be decided by what stands here.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_NO_CALL: Mapping[str, str | None] = MappingProxyType({})
_ids: ContextVar[Mapping[str, str | None]] = ContextVar("pallas_ids_of_the_call", default=_NO_CALL)


def ids_of_the_call() -> Mapping[str, str | None]:
    """What every record of the running call carries; empty outside of calls."""
    return _ids.get()


@contextmanager
def working_on(
    *, agent: str, call_id: str, conversation_id: str | None = None, trace_id: str | None = None
) -> Iterator[None]:
    """Records written inside the block, and in tasks started in it, carry these; `trace_id` only if there is one."""
    ids = {"agent": agent, "call_id": call_id, "conversation_id": conversation_id}
    token = _ids.set({**ids, "trace_id": trace_id} if trace_id else ids)
    try:
        yield
    finally:
        _ids.reset(token)
