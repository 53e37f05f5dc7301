"""The books of each call: one log line, counters, duration and tokens, for replies, failures and refusals."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from mcp_types import TextContent

from pallas_gateway.calls.call import Spent
from pallas_gateway.calls.permit import NO_PERMIT, CallEnd
from pallas_gateway.errors import AgentUnavailableError, CallFailedError, CallRefusedError
from pallas_gateway.hosting.running_call import LONGEST_TOOL, MOST_TOOLS, tokens_of
from pallas_gateway.ledger.protocol import REFUSED_BY_LEDGER, CallEntry, Decision

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pallas_gateway.calls.call import Call, Reply
    from pallas_gateway.calls.permit import Outcome
    from pallas_gateway.errors import GatewayError
    from pallas_gateway.hosting.running_call import RunningCall
    from pallas_gateway.hosting.running_calls import RunningCalls
    from pallas_gateway.telemetry.metrics import Metrics


LONGEST_ERROR = 300
OTHERS = "(others)"

_log = logging.getLogger("pallas.calls")


@contextmanager
def accounting(one: RunningCall, metrics: Metrics, running: RunningCalls) -> Iterator[None]:
    """Keep the books of a call, which sets its reply in the block or raises.

    Raises:
        CallFailedError: `cancelled`, in place of the cancellation by a request to end the call.
    """
    call = one.call
    outcome: Outcome = "error"
    reason = "internal_error"
    with running.calls.holding(one):
        try:
            yield
            if (reply := one.reply) is not None:
                outcome, reason = ("ok", reply.stop_reason) if reply.failure is None else ("error", reply.failure)
                for halt in reply.halted:
                    metrics.loops_aborted.labels(call.agent, halt).inc()
                log_reply(call, reply, seconds=one.seconds, tools_failed=one.spent.tools_failed)
        except (CallRefusedError, AgentUnavailableError) as refusal:
            metrics.calls_refused.labels(call.agent, refusal.reason).inc()
            log_refused(call, refusal, seconds=one.seconds)
            outcome, reason = "refused", refusal.reason
            if one.permit is NO_PERMIT and reason not in REFUSED_BY_LEDGER:  # otherwise it is noted there
                running.ledger.note(Decision("call", "refused", {**CallEntry.of(call).facts, "reason": reason}))
            raise
        except asyncio.CancelledError as cancelled:
            reason = "stopped" if running.draining and one.ended_by is None else "cancelled"
            log_unanswered(call, reason, one.spent, seconds=one.seconds, ended_by=one.ended_by)
            if one.ended_by is None:
                raise
            cancelled.__traceback__ = None  # its frames refer to the task, which keeps the error: a reference cycle
            raise CallFailedError(f"The call was ended by {one.ended_by}.", reason=reason) from None
        except BaseException:
            log_unanswered(call, reason, one.spent, seconds=one.seconds)
            raise
        finally:
            one.end(outcome, reason)
            _count(one, outcome, reason, metrics)
            running.usage.add(*one.used(outcome))


def _count(one: RunningCall, outcome: Outcome, reason: str, metrics: Metrics) -> None:
    """Count the end of a call, and note it in the ledger."""
    call, turns = one.call, one.spent.turns
    tokens = tokens_of(turns)
    one.permit.end(CallEnd(outcome, reason, round(one.seconds, 3), tokens))
    metrics.send_message.labels(call.agent, "ok" if outcome == "ok" else "error").inc()
    metrics.send_message_seconds.labels(call.agent).observe(one.seconds)
    for turn in turns:
        metrics.llm_turns.labels(call.agent, turn.model).inc()
        for kind, number in turn.by_kind().items():
            metrics.llm_tokens.labels(call.agent, turn.model, kind).inc(number)
        if turn.cost is not None:
            metrics.cost.labels(call.agent, turn.model).inc(turn.cost)
    if call.caller.kind == "key" and tokens:  # other names come from clients
        metrics.caller_tokens.labels(call.caller.principal, call.agent).inc(tokens)


def log_reply(call: Call, reply: Reply, *, seconds: float, tools_failed: tuple[str, ...] = ()) -> None:
    """Log a call with a reply, which may be a failure."""
    outcome: dict[str, Any] = {"outcome": "ok", "stop_reason": reply.stop_reason}
    if reply.failure is not None:
        outcome = {"outcome": "error", "reason": reply.failure, "error": _sentence(reply)}
    halted = {"halted": list(reply.halted)} if reply.halted else {}
    spent = _fields_of(Spent(reply.turns, reply.iterations, reply.tools, tools_failed))
    # Its fields: [one line for each call](observability.md#one-line-for-each-call).
    _log.info("call ended", extra={**_about(call, seconds), **outcome, **spent, **halted})


def log_unanswered(call: Call, reason: str, spent: Spent, *, seconds: float, ended_by: str | None = None) -> None:
    """Log a call that was started and has no reply: `cancelled`, `stopped` or `internal_error`."""
    outcome = {"outcome": "error", "reason": reason, **({"ended_by": ended_by} if ended_by else {})}
    _log.info("call ended", extra={**_about(call, seconds), **outcome, **_fields_of(spent)})


def log_refused(call: Call, refusal: GatewayError, *, seconds: float) -> None:
    """Log a call that was not started, in most cases because of an error of the caller."""
    outcome = {"outcome": "error", "reason": refusal.reason, "error": str(refusal)}
    # Its fields: [one line for each call](observability.md#one-line-for-each-call).
    _log.info("call refused", extra={**_about(call, seconds), **outcome})


def tools_used(names: Sequence[str]) -> dict[str, int]:
    """Count the uses of each tool, the most used first; the number and length of names are limited."""
    counted = Counter(name[:LONGEST_TOOL] for name in names).most_common()
    shown = dict(counted[:MOST_TOOLS])
    others = sum(count for _, count in counted[MOST_TOOLS:])
    return {**shown, OTHERS: others} if others else shown


def _fields_of(spent: Spent) -> dict[str, Any]:
    cost = {"cost": spent.cost} if spent.cost is not None else {}
    failed = {"tools_failed": tools_used(spent.tools_failed)} if spent.tools_failed else {}
    tools = {"tools": tools_used(spent.tools), **failed}
    return {"iterations": spent.iterations, "tokens": spent.usage.as_dict(), **cost, **tools}


def _about(call: Call, seconds: float) -> dict[str, Any]:
    about: dict[str, Any] = {
        "agent": call.agent,
        "call_id": call.call_id,
        "conversation_id": call.conversation_id,
        "caller": call.caller.principal,
        "duration_seconds": round(seconds, 3),
    }
    if call.trace_id:
        about["trace_id"] = call.trace_id
    if call.nesting:
        about["nesting"] = call.nesting
    if call.is_nested:
        about["parent_call_id"] = call.parent_call_id
    return about


def _sentence(reply: Reply) -> str:
    return next((block.text[:LONGEST_ERROR] for block in reply.content if isinstance(block, TextContent)), "")
