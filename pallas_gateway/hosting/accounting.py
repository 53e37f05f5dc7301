"""The account of a call, however it ends: one log line, its counters, its duration and its tokens."""

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

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pallas_gateway.calls.call import Call, Reply
    from pallas_gateway.calls.nesting import RunningCalls
    from pallas_gateway.errors import GatewayError
    from pallas_gateway.runtime.protocols import Instance
    from pallas_gateway.telemetry.metrics import Metrics


MOST_TOOLS = 20
"""Names of tools in one line; the uses of all others are counted together."""
LONGEST_TOOL = 100
LONGEST_ERROR = 300
OTHERS = "(others)"

_log = logging.getLogger("pallas.calls")


class Account:
    """The account of one call; the agent puts the `reply` here when there is one."""

    def __init__(self, call: Call, metrics: Metrics) -> None:
        self.reply: Reply | None = None
        self.spent = call.spent
        self._agent = call.agent
        self._metrics = metrics

    @contextmanager
    def of(self, instance: Instance) -> Iterator[None]:
        """Count what `instance` spends in the block. The provider bills a call that fails or is cancelled too."""
        try:
            yield
        finally:
            spent = self.spent
            spent.turns, spent.iterations, spent.tools = instance.turns, instance.iterations, instance.tools
            self._count_turns()

    def _count_turns(self) -> None:
        for turn in self.spent.turns:
            self._metrics.llm_turns.labels(self._agent, turn.model).inc()
            for kind, tokens in turn.by_kind().items():
                self._metrics.llm_tokens.labels(self._agent, turn.model, kind).inc(tokens)


@contextmanager
def accounting(call: Call, metrics: Metrics, running: RunningCalls) -> Iterator[Account]:
    """Account for a call that runs in the block and puts its reply into the account, or raises."""
    account, started, outcome = Account(call, metrics), monotonic(), "error"
    try:
        yield account
        if (reply := account.reply) is not None:
            outcome = "ok" if reply.failure is None else "error"
            for reason in reply.halted:
                metrics.loops_aborted.labels(call.agent, reason).inc()
            log_reply(call, reply, seconds=monotonic() - started)
    except (CallRefusedError, AgentUnavailableError) as refusal:
        metrics.calls_refused.labels(call.agent, refusal.reason).inc()
        log_refused(call, refusal, seconds=monotonic() - started)
        raise
    except BaseException as error:
        log_unanswered(call, _why_unanswered(error, running), account.spent, seconds=monotonic() - started)
        raise
    finally:
        metrics.send_message.labels(call.agent, outcome).inc()
        metrics.send_message_seconds.labels(call.agent).observe(monotonic() - started)


def _why_unanswered(error: BaseException, running: RunningCalls) -> str:
    if not isinstance(error, asyncio.CancelledError):
        return "internal_error"
    return "stopped" if running.draining else "cancelled"


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
