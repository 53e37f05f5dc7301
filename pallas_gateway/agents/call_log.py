"""What the log says of calls: the ids on every record, and one line when a call ends."""

from __future__ import annotations

import logging
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mcp_types import TextContent

from pallas_gateway.calls.call import Usage
from pallas_gateway.telemetry import redaction
from pallas_gateway.telemetry.current_call import working_on

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pallas_gateway.calls.call import Call, Reply, TurnUsage
    from pallas_gateway.errors import GatewayError
    from pallas_gateway.identity.secret import Secret
    from pallas_gateway.runtime.protocols import Instance

MOST_TOOLS = 20
"""Names of tools in one line; the uses of all others are counted together."""
LONGEST_TOOL = 100
LONGEST_ERROR = 300
OTHERS = "(others)"

_log = logging.getLogger("pallas.calls")


@dataclass(slots=True)
class Spent:
    """What a call has used; nothing until its instance tells, and then whatever becomes of the call."""

    turns: tuple[TurnUsage, ...] = ()
    iterations: int = 0
    tools: tuple[str, ...] = ()

    def tell(self, instance: Instance) -> None:
        """Keep what `instance` has used so far."""
        self.turns, self.iterations, self.tools = instance.turns, instance.iterations, instance.tools


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
    halted = {"halted": list(reply.halted)} if reply.halted else {}
    spent = _fields_of(Spent(reply.turns, reply.iterations, reply.tools))
    _log.info("call ended", extra={**_about(call, seconds), **outcome, **spent, **halted})


def log_unanswered(call: Call, reason: str, spent: Spent, *, seconds: float) -> None:
    """The line of a call that was started and has no reply: `cancelled`, `stopped`, `internal_error`."""
    outcome = {"outcome": "error", "reason": reason}
    _log.info("call ended", extra={**_about(call, seconds), **outcome, **_fields_of(spent)})


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


def _fields_of(spent: Spent) -> dict[str, Any]:
    tokens = sum((turn.usage for turn in spent.turns), Usage()).as_dict()
    return {"iterations": spent.iterations, "tokens": tokens, "tools": tools_used(spent.tools)}


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
