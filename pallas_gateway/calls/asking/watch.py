"""Reports of the questions of one call: to its client, the log and the metrics."""

from __future__ import annotations

import logging
from time import monotonic
from typing import TYPE_CHECKING

from pallas_gateway.calls.events.events import QuestionAsked, QuestionClosed
from pallas_gateway.calls.trail import facts_of

if TYPE_CHECKING:
    from pallas_gateway.calls.call import Call
    from pallas_gateway.calls.events.events import EventSink
    from pallas_gateway.calls.questions import Answer, Question
    from pallas_gateway.calls.trail import Trail
    from pallas_gateway.telemetry.metrics import Metrics

type OpenQuestions = dict[str, float]
"""The unanswered questions of an agent's calls: when each was asked, by its id and the monotonic clock."""
_log = logging.getLogger("pallas.questions")


class QuestionEvents:
    """The `QuestionWatch` of a call; the unanswered questions of all calls of its agent are in `open_questions`."""

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
        """Notify the client, log it without its text, and count an open question."""
        self._open[question.id] = monotonic()
        self._metrics.questions_open.labels(self._counted).inc()
        self._sink.put(QuestionAsked(question, question.text_for(self._agent)))
        # `server` is null if the agent asks.
        _log.info("question asked", extra=_facts(question))

    def answered(self, question: Question, answer: Answer) -> None:
        """Log, note and count the question by its outcome; notify the client if it was open."""
        self._metrics.questions.labels(self._counted, question.kind, answer.outcome).inc()
        asked_at = self._open.pop(question.id, None)
        seconds = 0.0 if asked_at is None else round(monotonic() - asked_at, 3)
        ended = {"outcome": answer.outcome, "seconds": seconds, "why": answer.why}
        # `why`: the limit for which it was declined.
        _log.info("question answered", extra={**_facts(question), **ended})
        action = "approve" if question.kind == "approval" else "answer"
        facts = {**facts_of(self._call), "kind": question.kind, "tool": question.tool}
        self._trail.record(action, answer.outcome, facts)
        if asked_at is not None:
            self._metrics.questions_open.labels(self._counted).dec()
            self._sink.put(QuestionClosed(question.id, answer.action))


def _facts(question: Question) -> dict[str, str | None]:
    facts = {"agent": question.agent, "server": question.server, "kind": question.kind, "question": question.id}
    return {**facts, "tool": question.tool} if question.tool else facts
