"""One call of an agent from its start to its end: its task, its client, and what it has used."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic, time
from typing import TYPE_CHECKING

from pallas_gateway.calls.asking.asking import CANNOT_ASK
from pallas_gateway.calls.cancellation import cut_off
from pallas_gateway.calls.events.queue import StreamOptions
from pallas_gateway.calls.permit import NO_PERMIT, CallEnd
from pallas_gateway.calls.used import Used

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence, Set

    from pallas_gateway.calls.asking.asking import Asker, Questions
    from pallas_gateway.calls.call import Api, Call, Reply, ToolUse, TurnUsage
    from pallas_gateway.calls.events.events import Event, EventSink
    from pallas_gateway.calls.permit import Outcome, Permit
    from pallas_gateway.calls.questions import Answer, Mode, Question
    from pallas_gateway.calls.recording import Journal
    from pallas_gateway.core.hosted_agent import HostedAgent
    from pallas_gateway.runtime.protocols import Instance

MOST_TOOLS = 20
"""Tools of a call that are listed by their names; the others are counted together."""
LONGEST_TOOL = 100


@dataclass(frozen=True, slots=True)
class ToolTime:
    """A tool call: `start` is in seconds from the start of its call; `ok` is None if it had not ended."""

    name: str
    start: float
    seconds: float
    ok: bool | None


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """The end of a call: `reason` is its stop reason, or why it failed. `tools_left_out` counts later tools."""

    outcome: Outcome
    reason: str
    tools: tuple[ToolTime, ...]
    tools_left_out: int


@dataclass(frozen=True, slots=True)
class ListedCall:
    """A call as lists show it.

    Attributes:
        parent: the id of the call that made it.
        caller: `key:NAME`, `token:NAME` or `anonymous`.
        owner: identifies an authenticated caller; None for others.
        began_at: seconds since the epoch.
        step: LLM turns begun.
        tokens: its own so far, of all kinds.
        waiting: a question to its caller is open.
        is_estimated: the provider sent no usage for a part of the tokens.
        end: None while it runs.
    """

    id: str
    parent: str | None
    agent: str
    caller: str
    owner: str | None
    api: Api
    began_at: float
    seconds: float
    step: int
    tokens: int
    waiting: bool = False
    is_estimated: bool = False
    end: CallOutcome | None = None


class Unread:
    """The `EventSink` of a call whose events nobody reads."""

    def put(self, event: Event) -> None:
        """Drop it."""


UNREAD = Unread()


class RunningCall:
    """One call of an agent.

    It runs in its own task, not in that of a request: the call can go on while its client has no request, and can clean
    up after its client has left.

    Attributes:
        agent: answers.
        call: what is asked; the call's id is in it.
        sink: receives the events of the call.
        options: the events that the client asks for.
        modes: of questions that the client supports.
        client_may_leave: see `Asker`.
        task: runs the call; None before `begin` and after the end.
        questions: of the call; None before its admission and after the end.
        permit: of the limits, for a call that they have admitted.
        is_admitted: no gate has refused it.
        is_audited: its line before it runs is in the audit log.
        is_task: its course is stored.
        reply: what the agent has answered; None if the call was refused, has failed or was cut off.
        spent: what it has used so far.
        refusal: the sentence for the caller, if the call was refused.
        refused_by: the rule of the limits that has refused it.
        closers: called at the end with the call and its end, the last one first.
        timeout_seconds: its longest duration; None for that of its agent.
        ask_seconds: time for an answer; None for that of the gateway.
        ended_by: the name of the caller that has ended the call by a request of its own.
        outcome: of a call that has ended and was not refused.
    """

    def __init__(
        self,
        agent: HostedAgent,
        call: Call,
        sink: EventSink = UNREAD,
        options: StreamOptions | None = None,
        asker: Asker = CANNOT_ASK,
    ) -> None:
        self.agent = agent
        self.call = call
        self.sink = sink
        self.options = options or StreamOptions()
        self.task: asyncio.Task[Reply] | None = None
        self.questions: Questions | None = None
        self.permit: Permit = NO_PERMIT
        self.is_admitted = self.is_audited = self.is_task = False
        self.reply: Reply | None = None
        self.spent = call.spent
        self.refusal = ""
        self.refused_by: str | None = None
        self.closers: list[Callable[[RunningCall, CallEnd], object]] = []
        self.timeout_seconds: float | None = None
        self.ask_seconds: float | None = None
        self.ended_by: str | None = None
        self.outcome: CallOutcome | None = None
        self.modes: Collection[Mode] = asker.modes
        self.client_may_leave = asker.client_may_leave
        self._asker = asker
        self._began, self._began_at = monotonic(), time()
        self._seconds: float | None = None
        self._instance: Instance | None = None
        self._tools: Sequence[ToolUse] = ()

    # Its questions

    @property
    def asker(self) -> Asker:
        """The asker of the call: itself if its client can be asked, unless the call that makes this one asks for it."""
        return self._asker if self.call.is_nested or not self.modes else self

    async def put(self, question: Question) -> Answer:
        """Return the client's answer; if a drain begins before it arrives, the call ends."""
        with self.agent.calls.ended_by_drain(self.cut):
            return await self._asker.put(question)

    # Its life

    def begin(self) -> asyncio.Task[Reply]:
        """Start the task of the call, and return it; it ends with the reply or with a `GatewayError`."""
        self.task = self.agent.shared.tasks.spawn(self.agent.answer(self), name=f"call {self.call.call_id}")
        return self.task

    async def answered(self) -> Reply:
        """Begin, and return the reply; if the waiting task is cancelled, the call ends.

        Raises:
            CallFailedError: the call was cut off, `cancelled`, or `stopped` because the gateway is stopping.
            GatewayError: it was refused.
        """
        work = self.begin()
        try:
            await asyncio.wait({work})
        finally:
            work.cancel()
        return self.result_of(work)

    def result_of(self, work: asyncio.Task[Reply]) -> Reply:
        """Return the reply of the task of this call, which has ended; see `answered`."""
        if work.cancelled():
            raise cut_off(stopping=self.agent.calls.draining)
        return work.result()

    def cut(self) -> None:
        """End the call because its client has left, or the gateway is stopping."""
        if self.task is not None:
            self.task.cancel()

    def cancel(self, by: str) -> None:
        """End the call for the caller of this name; a call that is ended already keeps the first name."""
        if self.ended_by is None and self.task is not None:
            self.ended_by = by
            self.task.cancel()

    @property
    def has_begun(self) -> bool:
        """False while the call waits for its slot, and if it was refused or cut off there."""
        return self._instance is not None or self.spent.iterations > 0

    def checkpoint(self, open_questions: Set[str]) -> str | None:
        """Return where the call waits for answers to questions of these ids, for another process to resume it.

        None for a call that cannot be resumed.
        """
        return self.journal.checkpoint(open_questions) if self.journal is not None else None

    @property
    def journal(self) -> Journal | None:
        """The course of the call so far; None for a call that has no instance, or cannot be resumed."""
        return self._instance.journal if self._instance is not None else None

    def extend(self, seconds: float) -> None:
        """Let the call go on for so many seconds from now, without the time of open questions."""
        if self._instance is not None:
            self._instance.extend(seconds)

    # Its books

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
            tokens_of(turns),
            waiting=self.questions is not None and self.questions.pauses.questions > 0,
            is_estimated=any(turn.usage.estimated for turn in turns),
            end=self.outcome,
        )

    def end(self, outcome: Outcome, reason: str) -> CallEnd:
        """Note the end, and return it; a refused call has no outcome, because it was not started."""
        self._seconds = self.seconds
        self.task = self.questions = None  # which refer to this call
        if outcome != "refused":
            self.outcome = CallOutcome(outcome, reason, *self._tool_times())
        return CallEnd(outcome, reason, round(self._seconds, 3), tokens_of(self.spent.turns))

    def used(self, outcome: Outcome) -> dict[str, Used]:
        """Return the usage of the ended call by model; the call counts for the first one, an empty text without any."""
        by_model: dict[str, Used] = {}
        for turn in self.spent.turns:
            used, tokens = by_model.setdefault(turn.model, Used()), turn.usage
            used += Used(
                input=tokens.input,
                cache_read=tokens.cache_read,
                cache_write=tokens.cache_write,
                output=tokens.output,
                estimated=tokens.total if tokens.estimated else 0,
                cost=turn.cost or 0.0,
            )
        first = next(iter(by_model.values()), None) or by_model.setdefault("", Used())
        setattr(first, "nested" if self.call.is_nested else "refused" if outcome == "refused" else "calls", 1)
        return by_model

    @contextmanager
    def using(self, instance: Instance) -> Iterator[None]:
        """Note in `spent` what `instance` uses in the block, also if the call fails: the provider bills it, too."""
        self._instance = instance
        try:
            yield
        finally:
            self._instance, self._tools = None, instance.tool_uses
            spent = self.spent
            spent.turns, spent.iterations = instance.turns, instance.iterations
            spent.tools = tuple(one.name for one in self._tools)
            failed = (one for one in self._tools if one.failure is not None)
            spent.tools_failed = tuple(f"{one.name[: LONGEST_TOOL - 20]} ({one.failure})" for one in failed)

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


def tokens_of(turns: Iterable[TurnUsage]) -> int:
    """Return the tokens of all kinds; those of reasoning are part of the output."""
    return sum(turn.usage.total for turn in turns)
