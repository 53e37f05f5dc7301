"""What the log says of calls: the ids on every record, and one line when a call ends."""

from __future__ import annotations

import logging
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from mcp_types import TextContent

from pallas_gateway.telemetry import redaction
from pallas_gateway.telemetry.current_call import working_on

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pallas_gateway.calls.call import Call, Reply
    from pallas_gateway.errors import GatewayError
    from pallas_gateway.identity.secret import Secret

MOST_TOOLS = 20
"""Names of tools in one line; the uses of all others are counted together."""
LONGEST_TOOL = 100
LONGEST_ERROR = 300
OTHERS = "(others)"

_log = logging.getLogger("pallas.calls")


@contextmanager
def records_of(call: Call, *tokens: Secret | None) -> Iterator[None]:
    """Records written inside the block, and in tasks started in it, carry the call's ids and none of its tokens."""
    revealed = [token.reveal() for token in (call.caller.bearer, *tokens) if token]
    with (
        working_on(
            agent=call.agent, call_id=call.call_id, conversation_id=call.conversation_id, trace_id=call.trace_id
        ),
        redaction.hiding(*revealed),
    ):
        yield


def log_reply(call: Call, reply: Reply, *, seconds: float) -> None:
    """The line of a call that was answered, or failed as its `Reply` says."""
    outcome: dict[str, Any] = {"outcome": "ok", "stop_reason": reply.stop_reason}
    if reply.failure is not None:
        outcome = {"outcome": "error", "reason": reply.failure, "error": _sentence(reply)}
    spent = {"iterations": reply.iterations, "tokens": reply.usage.as_dict(), "tools": tools_used(reply.tools)}
    halted = {"halted": list(reply.halted)} if reply.halted else {}
    _log.info("call ended", extra={**_about(call, seconds), **outcome, **spent, **halted})


def log_unanswered(call: Call, reason: str, *, seconds: float) -> None:
    """The line of a call that was started and has no reply: `cancelled`, `stopped`, `internal_error`."""
    _log.info("call ended", extra={**_about(call, seconds), "outcome": "error", "reason": reason})


def log_refused(call: Call, refusal: GatewayError, *, seconds: float) -> None:
    """The line of a call that was not started; as a rule it is the caller's to mend."""
    outcome = {"outcome": "error", "reason": refusal.reason, "error": str(refusal)}
    _log.info("call refused", extra={**_about(call, seconds), **outcome})


def tools_used(names: Sequence[str]) -> dict[str, int]:
    """How often each tool was used, the most used first; a bounded number of bounded names."""
    counted = Counter(name[:LONGEST_TOOL] for name in names).most_common()
    shown = dict(counted[:MOST_TOOLS])
    others = sum(count for _, count in counted[MOST_TOOLS:])
    return {**shown, OTHERS: others} if others else shown


def _about(call: Call, seconds: float) -> dict[str, Any]:
    about: dict[str, Any] = {
        "agent": call.agent,
        "call_id": call.call_id,
        "conversation_id": call.conversation_id,
        "caller": call.caller.name,
        "duration_seconds": round(seconds, 3),
    }
    if call.trace_id:
        about["trace_id"] = call.trace_id
    if call.is_nested:
        about |= {"nesting": call.nesting, "parent_call_id": call.parent_call_id}
    return about


def _sentence(reply: Reply) -> str:
    return next((block.text[:LONGEST_ERROR] for block in reply.content if isinstance(block, TextContent)), "")
