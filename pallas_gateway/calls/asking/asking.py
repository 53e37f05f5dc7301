"""Puts the questions of a call to its own caller only.

The gateway answers no question for a person: a question that cannot be put to the caller is declined at once. While a
question is open, its call holds no slot and its deadline is suspended.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import TYPE_CHECKING, Protocol

from pallas_gateway.calls.asking.pauses import Pauses
from pallas_gateway.calls.events.events import QuestionAsked, QuestionClosed
from pallas_gateway.calls.questions import EXPIRED, UNASKABLE, Answer
from pallas_gateway.calls.trail import facts_of
from pallas_gateway.limits import QuestionLimits

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from pallas_gateway.calls.asking.approvals import Approvals
    from pallas_gateway.calls.call import Call
    from pallas_gateway.calls.events.events import EventSink
    from pallas_gateway.calls.questions import Mode, Question
    from pallas_gateway.calls.trail import Trail
    from pallas_gateway.telemetry.metrics import Metrics

type OpenQuestions = dict[str, float]
"""The unanswered questions of an agent's calls: when each was asked, by its id and the monotonic clock."""
_log = logging.getLogger("pallas.questions")


class Asker(Protocol):
    """Puts questions to the caller of a call: an API, or the `Questions` of the call that made a nested one.

    An API receives messages that begin with the name of the asker.
    """

    @property
    def modes(self) -> Collection[Mode]:
        """The modes of questions that the caller supports; empty if it cannot be asked."""

    @property
    def client_may_leave(self) -> bool:
        """True if the asker itself ends questions that are too old, when its client returns."""

    async def put(self, question: Question) -> Answer:
        """Return the caller's answer, without a time limit."""


class _CannotAsk:
    """The `Asker` of a caller that cannot be asked. With modes, it is the asker of requests without a caller."""

    client_may_leave = False

    def __init__(self, modes: Collection[Mode] = ()) -> None:
        self.modes = modes

    async def put(self, question: Question) -> Answer:
        del question
        return UNASKABLE


CANNOT_ASK: Asker = _CannotAsk()


class WaitingCount:
    """The number of calls of this process that wait for answers of their clients, in all and by caller."""

    def __init__(self) -> None:
        self.count = 0
        self._of: Counter[str] = Counter()

    def refusal(self, caller: str | None, most: int) -> str | None:
        """Return why no further call of a caller may wait, as a clause; a known one has half of the places at most."""
        if self.count >= most:
            return "too many calls wait for answers"
        is_over = caller is not None and self._of[caller] >= (most + 1) // 2
        return "too many calls of this caller wait for answers" if is_over else None

    def add(self, caller: str | None, number: int) -> None:
        """Add a call, or remove one."""
        self.count += number
        if caller is not None:
            self._of[caller] += number
            self._of += Counter()  # drops callers without waiting calls


@dataclass(frozen=True, slots=True)
class AskRules:
    """The limits of the questions of one call.

    Attributes:
        seconds: for an answer.
        most_waiting: calls of this process that may wait for answers.
        waiting: those that wait.
        limits: sizes and numbers of questions.
        caller: identifies the caller, with `auth` also those without a token together; None without `auth`.
    """

    seconds: float = 300.0
    most_waiting: int = 256
    waiting: WaitingCount = field(default_factory=WaitingCount)
    limits: QuestionLimits = field(default_factory=QuestionLimits)
    caller: str | None = None


class QuestionEvents:
    """Reports the questions of one call: to its client, the log and the metrics.

    The unanswered questions of all calls of its agent are in `open_questions`.
    """

    def __init__(
        self, call: Call, sink: EventSink, metrics: Metrics, open_questions: OpenQuestions, trail: Trail
    ) -> None:
        self._call = call
        self._trail = trail
        self._agent, self._counted = call.agent, call.counted_as
        self._sink = sink
        self._metrics = metrics
        self._open = open_questions

    def asked(self, question: Question) -> None:
        """Notify the client of a question that has arisen, log it without its text, and count an open question."""
        self._open[question.id] = monotonic()
        self._metrics.questions_open.labels(self._counted).inc()
        self._sink.put(QuestionAsked(question, question.text_for(self._agent)))
        # `server` is null if the agent asks.
        _log.info("question asked", extra=_facts_of(question))

    def answered(self, question: Question, answer: Answer) -> None:
        """Log, note and count the question by its outcome; notify the client if it was open.

        A question that was declined at once was not asked.
        """
        self._metrics.questions.labels(self._counted, question.kind, answer.outcome).inc()
        asked_at = self._open.pop(question.id, None)
        seconds = 0.0 if asked_at is None else round(monotonic() - asked_at, 3)
        ended = {"outcome": answer.outcome, "seconds": seconds, "why": answer.why}
        # `why`: the limit for which it was declined.
        _log.info("question answered", extra={**_facts_of(question), **ended})
        action = "approve" if question.kind == "approval" else "answer"
        facts = {**facts_of(self._call), "kind": question.kind, "tool": question.tool}
        self._trail.record(action, answer.outcome, facts)
        if asked_at is not None:
            self._metrics.questions_open.labels(self._counted).dec()
            self._sink.put(QuestionClosed(question.id, answer.action))


def _facts_of(question: Question) -> dict[str, str | None]:
    facts = {"agent": question.agent, "server": question.server, "kind": question.kind, "question": question.id}
    return {**facts, "tool": question.tool} if question.tool else facts


class Questions:
    """The questions of one call of `agent`; itself the `Asker` of nested calls.

    `pauses` are what pauses while a question of this call, or of one nested in it, is open. `tool_call_id` is the tool
    call whose questions these are, if they are of one alone. `given` are answers to questions of a resumed call, by
    their ids, or answers that a request brings along, by the kinds of their questions: they count even if the caller
    cannot be asked (any more).
    """

    client_may_leave = False

    def __init__(  # noqa: PLR0913  all but the agent have defaults
        self,
        agent: str,
        asker: Asker = CANNOT_ASK,
        rules: AskRules | None = None,
        watch: QuestionEvents | None = None,
        *,
        tool_call_id: str | None = None,
        given: Mapping[str, Answer] | None = None,
    ) -> None:
        self.agent = agent
        self._tool_call = (tool_call_id,) if tool_call_id else ()
        self.approvals: Approvals | None = None
        self.pauses = Pauses()
        self._asker = asker
        self._rules = rules or AskRules()
        self._watch = watch
        self._above = asker if isinstance(asker, Questions) else None  # of the call that made this nested one
        self._put = 0
        self._open: dict[asyncio.Timeout, float] = {}  # since when, the oldest first
        self._given = dict(given or {})
        self._not_asked: dict[str, list[str]] = {}

    @property
    def modes(self) -> Collection[Mode]:
        return self._asker.modes

    @property
    def longest_wait(self) -> float:
        """Return the seconds that an answer can take: 0 if the caller cannot be asked."""
        if self._above is not None:
            return self._above.longest_wait
        # A client may leave again, for the full time, just before a question is too old.
        return self._rules.seconds * (2 if self._asker.client_may_leave else 1) if self.modes else 0.0

    async def ask(self, question: Question) -> Answer:
        """Return the caller's answer to a question that has arisen in this call."""
        question = replace(question, agent=question.agent or self.agent)
        known = self._given_to(question) or self.refusal(question)
        answer, began = Answer("cancelled"), monotonic()
        if known is None or known.was_asked_for:
            question = question.with_visible_surrogates()
            if self._watch is not None:
                self._watch.asked(question)
        try:
            answer = (known or await self.put(question)).checked_for(question)
        except asyncio.CancelledError:
            answer = EXPIRED if monotonic() - began >= self._rules.seconds else answer
            raise
        finally:  # also if the call ends meanwhile
            if self._watch is not None:
                self._watch.answered(question, answer)
        return answer

    def _given_to(self, question: Question) -> Answer | None:
        answer = self._given.pop(question.id, None) or self._given.pop(question.kind, None)
        fits = answer is not None and question.with_visible_surrogates().misfit(answer) is None
        return answer if fits else None

    def refusal(self, question: Question) -> Answer | None:
        """Return the answer to a question that is not put to the caller; None if the caller is asked."""
        if question.mode not in self.modes:
            return UNASKABLE
        if (why := self._limit_reached(question)) is not None:
            return Answer("declined", why=why)
        return self._above.refusal(question) if self._above is not None else None

    def _limit_reached(self, question: Question) -> str | None:
        rules, limits = self._rules, self._rules.limits
        if self.pauses.questions >= limits.at_once:
            return "too many questions of this call are open"
        if self._above is not None:
            return None  # the limits of the outermost call hold for the whole path
        if self._put >= limits.of_one_call:
            return f"this call has asked {self._put} questions already"
        too_many = rules.waiting.refusal(rules.caller, rules.most_waiting) if self.pauses.questions == 0 else None
        return too_many or question.too_large(limits)

    async def put(self, question: Question) -> Answer:
        """Return the caller's answer to a question of this call, or of a nested one, that has no `refusal`."""
        self._put += 1
        with self._waiting(), self.pauses.paused():
            try:
                has_deadline = self._above is None and not self._asker.client_may_leave
                async with asyncio.timeout(self._rules.seconds if has_deadline else None) as deadline:
                    self._open[deadline] = monotonic()
                    try:
                        return await self._asker.put(self._named(question))
                    finally:
                        del self._open[deadline]
                        del deadline  # a task that is cancelled here has this frame, and the deadline has the task
            except TimeoutError:
                return EXPIRED

    @property
    def oldest(self) -> float | None:
        """Return when the oldest open question was asked, in monotonic seconds; None if none is open."""
        return next(iter(self._open.values()), None)

    def close_oldest(self) -> None:
        """Close the oldest open question, as if its time had expired."""
        for deadline in list(self._open)[:1]:
            deadline.reschedule(asyncio.get_running_loop().time())

    def _named(self, question: Question) -> Question:
        """Return the question with its path, and with the name of the asker, which the outermost call adds."""
        question = replace(question, call_path=question.call_path + self._tool_call)
        return replace(question, message=question.text_for(self.agent)) if self._above is None else question

    def tell_model(self, tool_call_id: str, text: str) -> None:
        """Add `text` to the result of a tool call, for the model."""
        self._not_asked.setdefault(tool_call_id, []).append(text)

    def texts_for(self, tool_call_id: str) -> list[str]:
        """Return and remove the texts to add to the result of a tool call."""
        return self._not_asked.pop(tool_call_id, [])

    def unread_texts(self, tool_call_id: str) -> Sequence[str]:
        """Return the texts that were not added to a result."""
        return self._not_asked.get(tool_call_id, [])

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """Count a call as one that waits, from its first open question to its last."""
        rules = self._rules
        if self._above is None and self.pauses.questions == 0:
            rules.waiting.add(rules.caller, 1)
        try:
            yield
        finally:
            if self._above is None and self.pauses.questions == 0:
                rules.waiting.add(rules.caller, -1)


NO_QUESTIONS = Questions("")
"""For requests outside of calls: all questions are declined."""


def declaring(modes: Collection[Mode]) -> Questions:
    """Return questions for requests that list tools for callers that can be asked in these modes; all are declined."""
    return Questions("", _CannotAsk(modes)) if modes else NO_QUESTIONS
