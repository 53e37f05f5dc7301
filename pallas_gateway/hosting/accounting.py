"""The account of each call: one log line, counters, duration and tokens, for replies, failures and refusals."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Any

from mcp_types import TextContent

from pallas_gateway.calls.call import Spent
from pallas_gateway.errors import AgentUnavailableError, CallRefusedError
from pallas_gateway.ledger.protocol import NO_PERMIT, CallEnd

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pallas_gateway.calls.call import Call, Reply
    from pallas_gateway.errors import GatewayError
    from pallas_gateway.hosting.running_calls import RunningCalls
    from pallas_gateway.ledger.protocol import Outcome
    from pallas_gateway.runtime.protocols import Instance
    from pallas_gateway.telemetry.metrics import Metrics


MOST_TOOLS = 20
"""Names of tools in one line; uses of the others are counted together."""
LONGEST_TOOL = 100
LONGEST_ERROR = 300
OTHERS = "(others)"

_log = logging.getLogger("pallas.calls")


class Account:
    """The account of one call; the agent sets `reply`, and the `permit` of an admitted call."""

    def __init__(self, call: Call, metrics: Metrics) -> None:
        self.reply: Reply | None = None
        self.permit = NO_PERMIT
        self.spent = call.spent
        self._agent = call.agent
        self._metrics = metrics

    def end(self, outcome: Outcome, reason: str, seconds: float) -> None:
        """Note the end of the call in the ledger."""
        used = self.spent.usage
        tokens = used.input + used.cache_read + used.cache_write + used.output
        self.permit.end(CallEnd(outcome, reason, round(seconds, 3), tokens))

    @contextmanager
    def of(self, instance: Instance) -> Iterator[None]:
        """Count the turns, tools and tokens that `instance` uses in the block."""
        try:
            yield
        finally:  # the provider bills failed and cancelled calls, too
            spent = self.spent
            spent.turns, spent.iterations = instance.turns, instance.iterations
            spent.tools = tuple(one.name for one in instance.tool_uses)
            for turn in spent.turns:
                self._metrics.llm_turns.labels(self._agent, turn.model).inc()
                for kind, tokens in turn.by_kind().items():
                    self._metrics.llm_tokens.labels(self._agent, turn.model, kind).inc(tokens)


@contextmanager
def accounting(call: Call, metrics: Metrics, running: RunningCalls) -> Iterator[Account]:
    """Account for the call of the block, which sets the reply of the account or raises."""
    account, started = Account(call, metrics), monotonic()
    outcome: Outcome = "error"
    reason = "internal_error"
    try:
        yield account
        if (reply := account.reply) is not None:
            outcome, reason = ("ok", reply.stop_reason) if reply.failure is None else ("error", reply.failure)
            for reason in reply.halted:
                metrics.loops_aborted.labels(call.agent, reason).inc()
            log_reply(call, reply, seconds=monotonic() - started)
    except (CallRefusedError, AgentUnavailableError) as refusal:
        metrics.calls_refused.labels(call.agent, refusal.reason).inc()
        log_refused(call, refusal, seconds=monotonic() - started)
        reason = refusal.reason
        raise
    except BaseException as error:
        if isinstance(error, asyncio.CancelledError):
            reason = "stopped" if running.draining else "cancelled"
        log_unanswered(call, reason, account.spent, seconds=monotonic() - started)
        raise
    finally:
        account.end(outcome, reason, monotonic() - started)
        metrics.send_message.labels(call.agent, outcome).inc()
        metrics.send_message_seconds.labels(call.agent).observe(monotonic() - started)


def log_reply(call: Call, reply: Reply, *, seconds: float) -> None:
    """Log a call with a reply, which may be a failure."""
    outcome: dict[str, Any] = {"outcome": "ok", "stop_reason": reply.stop_reason}
    if reply.failure is not None:
        outcome = {"outcome": "error", "reason": reply.failure, "error": _sentence(reply)}
    halted = {"halted": list(reply.halted)} if reply.halted else {}
    spent = _fields_of(Spent(reply.turns, reply.iterations, reply.tools))
    _log.info("call ended", extra={**_about(call, seconds), **outcome, **spent, **halted})


def log_unanswered(call: Call, reason: str, spent: Spent, *, seconds: float) -> None:
    """Log a call that was started and has no reply: `cancelled`, `stopped` or `internal_error`."""
    outcome = {"outcome": "error", "reason": reason}
    _log.info("call ended", extra={**_about(call, seconds), **outcome, **_fields_of(spent)})


def log_refused(call: Call, refusal: GatewayError, *, seconds: float) -> None:
    """Log a call that was not started, in most cases because of an error of the caller."""
    outcome = {"outcome": "error", "reason": refusal.reason, "error": str(refusal)}
    _log.info("call refused", extra={**_about(call, seconds), **outcome})


def tools_used(names: Sequence[str]) -> dict[str, int]:
    """Count the uses of each tool, the most used first; the number and length of names are limited."""
    counted = Counter(name[:LONGEST_TOOL] for name in names).most_common()
    shown = dict(counted[:MOST_TOOLS])
    others = sum(count for _, count in counted[MOST_TOOLS:])
    return {**shown, OTHERS: others} if others else shown


def _fields_of(spent: Spent) -> dict[str, Any]:
    return {"iterations": spent.iterations, "tokens": spent.usage.as_dict(), "tools": tools_used(spent.tools)}


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
    if call.nesting:
        about["nesting"] = call.nesting
    if call.is_nested:
        about["parent_call_id"] = call.parent_call_id
    return about


def _sentence(reply: Reply) -> str:
    return next((block.text[:LONGEST_ERROR] for block in reply.content if isinstance(block, TextContent)), "")
