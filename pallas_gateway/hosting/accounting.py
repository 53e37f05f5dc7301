"""The account of each call: one log line, counters, duration and tokens, for replies, failures and refusals."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from contextlib import contextmanager
from time import monotonic, time
from typing import TYPE_CHECKING, Any

from mcp_types import TextContent

from pallas_gateway.calls.call import Spent
from pallas_gateway.calls.permit import NO_PERMIT, CallEnd
from pallas_gateway.errors import AgentUnavailableError, CallFailedError, CallRefusedError
from pallas_gateway.hosting.call_registry import CallOutcome, ListedCall, ToolTime
from pallas_gateway.ledger.protocol import REFUSED_BY_LEDGER, CallEntry, Decision
from pallas_gateway.ledger.usage import UsageKey, Used

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pallas_gateway.calls.call import Call, Reply, ToolUse, TurnUsage
    from pallas_gateway.calls.permit import Outcome
    from pallas_gateway.errors import GatewayError
    from pallas_gateway.hosting.running_calls import RunningCalls
    from pallas_gateway.questions.asking import Questions
    from pallas_gateway.runtime.protocols import Instance
    from pallas_gateway.telemetry.metrics import Metrics


MOST_TOOLS = 20
"""Names of tools in one line; uses of the others are counted together."""
LONGEST_TOOL = 100
LONGEST_ERROR = 300
OTHERS = "(others)"

_log = logging.getLogger("pallas.calls")


class Account:
    """The account of one call; the agent sets `reply`, `questions`, and the `permit` of an admitted call.

    Attributes:
        task: of the call, which a request can end; None for one that is refused at once, and after the end.
        ended_by: the name of the caller that has ended the call by a request of its own.
        outcome: of a call that has ended and was not refused.
    """

    def __init__(self, call: Call, metrics: Metrics) -> None:
        self.call = call
        self.reply: Reply | None = None
        self.permit = NO_PERMIT
        self.questions: Questions | None = None
        self.spent = call.spent
        self.ended_by: str | None = None
        self.outcome: CallOutcome | None = None
        self._metrics = metrics
        self._began, self._began_at = monotonic(), time()
        self._seconds: float | None = None
        self.task: asyncio.Task[Any] | None = None
        self._instance: Instance | None = None
        self._tools: Sequence[ToolUse] = ()

    @property
    def seconds(self) -> float:
        """The duration so far, or until the end."""
        return monotonic() - self._began if self._seconds is None else self._seconds

    def listed(self) -> ListedCall:
        """Return the call as lists show it. The LLM turns of a running call are only now read."""
        call, instance = self.call, self._instance
        turns, step = (
            (self.spent.turns, self.spent.iterations) if instance is None else (instance.turns, instance.iterations)
        )
        return ListedCall(
            call.call_id,
            call.parent_call_id,
            call.agent,
            call.caller.principal,
            call.caller.owner if call.caller.authenticated else None,
            call.api,
            self._began_at,
            self.seconds,
            step,
            _tokens(turns),
            waiting=self.outcome is None and self.questions is not None and self.questions.pauses.questions > 0,
            is_estimated=any(turn.usage.estimated for turn in turns),
            end=self.outcome,
        )

    def cancel(self, by: str) -> None:
        """End the call for the caller of this name; a call that is ended already keeps the first name."""
        if self.ended_by is None and self.task is not None:
            self.ended_by = by
            self.task.cancel()

    def end(self, outcome: Outcome, reason: str) -> None:
        """Count the end of the call, and note it in the ledger."""
        call, metrics = self.call, self._metrics
        self._seconds = seconds = self.seconds
        self.task = None  # which refers to this account
        tokens = _tokens(self.spent.turns)
        self.permit.end(CallEnd(outcome, reason, round(seconds, 3), tokens))
        if outcome != "refused":
            self.outcome = CallOutcome(outcome, reason, *self._tool_times())
        metrics.send_message.labels(call.agent, "ok" if outcome == "ok" else "error").inc()
        metrics.send_message_seconds.labels(call.agent).observe(seconds)
        if call.caller.kind == "key" and tokens:  # other names come from clients
            metrics.caller_tokens.labels(call.caller.principal, call.agent).inc(tokens)

    def used(self, outcome: Outcome) -> tuple[UsageKey, Used]:
        """Return the usage of the ended call, and whose it is: a nested call belongs to the outermost caller."""
        call, tokens = self.call, self.spent.usage
        counted = "nested" if call.is_nested else "refused" if outcome == "refused" else "calls"
        used = Used(
            input=tokens.input,
            cache_read=tokens.cache_read,
            cache_write=tokens.cache_write,
            output=tokens.output,
            estimated=_tokens(turn for turn in self.spent.turns if turn.usage.estimated),
            cost=self.spent.cost or 0.0,
        )
        setattr(used, counted, 1)
        return UsageKey.of(call.caller.principal, call.caller.account, call.agent), used

    @contextmanager
    def of(self, instance: Instance) -> Iterator[None]:
        """Count the turns, tools and tokens that `instance` uses in the block."""
        self._instance = instance
        try:
            yield
        finally:  # the provider bills failed and cancelled calls, too
            self._instance, self._tools = None, instance.tool_uses
            spent = self.spent
            spent.turns, spent.iterations = instance.turns, instance.iterations
            spent.tools = tuple(one.name for one in self._tools)
            failed = (one for one in self._tools if one.failure is not None)
            spent.tools_failed = tuple(f"{one.name[: LONGEST_TOOL - 20]} ({one.failure})" for one in failed)
            for turn in spent.turns:
                self._metrics.llm_turns.labels(self.call.agent, turn.model).inc()
                for kind, tokens in turn.by_kind().items():
                    self._metrics.llm_tokens.labels(self.call.agent, turn.model, kind).inc(tokens)
                if turn.cost is not None:
                    self._metrics.cost.labels(self.call.agent, turn.model).inc(turn.cost)

    def _tool_times(self) -> tuple[tuple[ToolTime, ...], int]:
        """Return the first tools with their times, and the number of the others."""
        uses, now = self._tools[:MOST_TOOLS], monotonic()
        times = (
            ToolTime(
                one.name[:LONGEST_TOOL],
                one.began - self._began,
                now - one.began if one.seconds is None else one.seconds,
                one.ok,
            )
            for one in uses
        )
        return tuple(times), len(self._tools) - len(uses)


@contextmanager
def accounting(call: Call, metrics: Metrics, running: RunningCalls) -> Iterator[Account]:
    """Account for the call of the block, which sets the reply of the account or raises.

    Raises:
        CallFailedError: `cancelled`, in place of the cancellation by a request to end the call.
    """
    account = Account(call, metrics)
    outcome: Outcome = "error"
    reason = "internal_error"
    with running.calls.holding(account):
        try:
            yield account
            if (reply := account.reply) is not None:
                outcome, reason = ("ok", reply.stop_reason) if reply.failure is None else ("error", reply.failure)
                for halt in reply.halted:
                    metrics.loops_aborted.labels(call.agent, halt).inc()
                log_reply(call, reply, seconds=account.seconds, tools_failed=account.spent.tools_failed)
        except (CallRefusedError, AgentUnavailableError) as refusal:
            metrics.calls_refused.labels(call.agent, refusal.reason).inc()
            log_refused(call, refusal, seconds=account.seconds)
            outcome, reason = "refused", refusal.reason
            if account.permit is NO_PERMIT and reason not in REFUSED_BY_LEDGER:  # otherwise it is noted there
                running.ledger.note(Decision("call", "refused", {**CallEntry.of(call).facts, "reason": reason}))
            raise
        except asyncio.CancelledError as cancelled:
            reason = "stopped" if running.draining and account.ended_by is None else "cancelled"
            log_unanswered(call, reason, account.spent, seconds=account.seconds, ended_by=account.ended_by)
            if account.ended_by is None:
                raise
            cancelled.__traceback__ = None  # its frames refer to the task, which keeps the error: a reference cycle
            raise CallFailedError(f"The call was ended by {account.ended_by}.", reason=reason) from None
        except BaseException:
            log_unanswered(call, reason, account.spent, seconds=account.seconds)
            raise
        finally:
            account.end(outcome, reason)
            running.usage.add(*account.used(outcome))


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


def _tokens(turns: Iterable[TurnUsage]) -> int:
    """Return the tokens of all kinds; those of reasoning are part of the output."""
    return sum(turn.usage.total for turn in turns)


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
