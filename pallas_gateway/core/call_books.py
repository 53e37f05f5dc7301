"""What each gateway notes of its calls: the log line and metrics. Features add gates and listeners of their own."""

from __future__ import annotations

import logging
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

from mcp_types import TextContent

from pallas_gateway.calls.call import Spent, cost_of, usage_of
from pallas_gateway.core.running_call import LONGEST_TOOL, MOST_TOOLS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pallas_gateway.calls.call import Call, Reply
    from pallas_gateway.calls.permit import CallEnd
    from pallas_gateway.calls.trail import Trail
    from pallas_gateway.core.calls import Listener
    from pallas_gateway.core.long_calls.records import Cancelled, ClaimedTask
    from pallas_gateway.core.running_call import RunningCall
    from pallas_gateway.identity.caller import Caller
    from pallas_gateway.shared.database.tables import AnyRow
    from pallas_gateway.telemetry.metrics import Metrics


LONGEST_ERROR = 300
OTHERS = "(others)"

_log = logging.getLogger("pallas.calls")


def note_end_of_task(trail: Trail, task: AnyRow | ClaimedTask, reason: str) -> None:
    """Note the end of a long call that no process runs: other ends are noted where it ran."""
    facts = {"caller": task.principal, "agent": task.agent, "api": task.api, "call_id": task.call_id}
    trail.record("call_end", "error", {**facts, "reason": reason})


def note_cancelled_task(trail: Trail, ended: Cancelled, caller: Caller, grant: str | None = None) -> None:
    """Note that a request has ended a long call."""
    task = ended.task
    facts = {"caller": caller.principal, "address": caller.address, "agent": task.agent, "api": task.api}
    trail.record("task_cancelled", "ok", {**facts, "call_id": task.call_id, "grant": grant})
    if ended.was_at_rest:
        note_end_of_task(trail, task, "cancelled")


def books(metrics: Metrics, of_features: Iterable[Listener] = ()) -> tuple[Listener, ...]:
    """Return the listeners of the end of calls: the log line, those of features, the metrics."""
    return log_end, *of_features, partial(_count, metrics)


def _count(metrics: Metrics, call: RunningCall, end: CallEnd) -> None:
    agent, caller = call.call.counted_as, call.call.caller
    metrics.send_message.labels(agent, "ok" if end.outcome == "ok" else "error").inc()
    metrics.send_message_seconds.labels(agent).observe(call.seconds)
    if end.outcome == "refused":
        metrics.calls_refused.labels(agent, end.reason).inc()
    for halt in call.reply.halted if call.reply is not None else ():
        metrics.loops_aborted.labels(agent, halt).inc()
    for turn in call.spent.turns:
        metrics.llm_turns.labels(agent, turn.model).inc()
        for kind, tokens in turn.by_kind().items():
            metrics.llm_tokens.labels(agent, turn.model, kind).inc(tokens)
        if turn.cost is not None:
            metrics.cost.labels(agent, turn.model).inc(turn.cost)
    if caller.kind == "key" and end.tokens:  # other names come from clients
        metrics.caller_tokens.labels(caller.principal, agent).inc(end.tokens)


def log_end(call: RunningCall, end: CallEnd) -> None:
    """Log the end of a call in one line."""
    if end.outcome == "refused":
        log_refused(call.call, end.reason, call.refusal, seconds=call.seconds)
    elif call.reply is not None:
        log_reply(call.call, call.reply, seconds=call.seconds, tools_failed=call.spent.tools_failed)
    else:
        log_unanswered(call.call, end.reason, call.spent, seconds=call.seconds, ended_by=call.ended_by)


def log_reply(call: Call, reply: Reply, *, seconds: float, tools_failed: tuple[str, ...] = ()) -> None:
    """Log a call with a reply, which may be a failure."""
    outcome: dict[str, Any] = {"outcome": "ok", "stop_reason": reply.stop_reason}
    if reply.failure is not None:
        outcome = {"outcome": "error", "reason": reply.failure, "error": _sentence(reply)}
    halted = {"halted": list(reply.halted)} if reply.halted else {}
    spent = _fields_of(Spent(reply.turns, reply.iterations, reply.tools, tools_failed))
    # See [one line for each call](observability.md#one-line-for-each-call).
    _log.info("call ended", extra={**_about(call, seconds), **outcome, **spent, **halted})


def log_unanswered(call: Call, reason: str, spent: Spent, *, seconds: float, ended_by: str | None = None) -> None:
    """Log a call that was started and has no reply: `cancelled`, `stopped` or `internal_error`."""
    outcome = {"outcome": "error", "reason": reason, **({"ended_by": ended_by} if ended_by else {})}
    _log.info("call ended", extra={**_about(call, seconds), **outcome, **_fields_of(spent)})


def log_refused(call: Call, reason: str, why: str, *, seconds: float) -> None:
    """Log a call that was not started, in most cases because of an error of the caller."""
    outcome = {"outcome": "error", "reason": reason, "error": why}
    # See [one line for each call](observability.md#one-line-for-each-call).
    _log.info("call refused", extra={**_about(call, seconds), **outcome})


def tools_used(names: Sequence[str]) -> dict[str, int]:
    """Count the uses of each tool, the most used first; the number and length of names are limited."""
    counted = Counter(name[:LONGEST_TOOL] for name in names).most_common()
    shown = dict(counted[:MOST_TOOLS])
    others = sum(count for _, count in counted[MOST_TOOLS:])
    return {**shown, OTHERS: others} if others else shown


def _fields_of(spent: Spent) -> dict[str, Any]:
    cost = cost_of(spent.turns)
    failed = {"tools_failed": tools_used(spent.tools_failed)} if spent.tools_failed else {}
    tools = {"tools": tools_used(spent.tools), **failed}
    tokens = usage_of(spent.turns).as_dict()
    return {"iterations": spent.iterations, "tokens": tokens, **({} if cost is None else {"cost": cost}), **tools}


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
