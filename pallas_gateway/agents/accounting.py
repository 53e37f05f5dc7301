"""The account of a call, however it ends: one log line, its counters, its duration and its tokens."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING

from pallas_gateway.agents.call_log import Spent, log_refused, log_reply, log_unanswered
from pallas_gateway.errors import AgentUnavailableError, CallRefusedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pallas_gateway.calls.call import Call, Reply
    from pallas_gateway.calls.nesting import RunningCalls
    from pallas_gateway.runtime.protocols import Instance
    from pallas_gateway.telemetry.metrics import Metrics


class Account:
    """The account of one call; the agent puts the `reply` here when there is one."""

    def __init__(self, call: Call, metrics: Metrics) -> None:
        self.reply: Reply | None = None
        self.spent = Spent()
        self._agent = call.agent
        self._metrics = metrics

    @contextmanager
    def of(self, instance: Instance) -> Iterator[None]:
        """Count what `instance` spends in the block. The provider bills a call that fails or is cancelled too."""
        try:
            yield
        finally:
            self.spent.tell(instance)
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
