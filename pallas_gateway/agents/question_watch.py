"""The questions of one call, as its client and the metrics are told of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pallas_gateway.calls.assistant_stream import QuestionAnswered, QuestionAsked

if TYPE_CHECKING:
    from pallas_gateway.calls.channel import EventSink
    from pallas_gateway.calls.questions import Answer, Question
    from pallas_gateway.telemetry.metrics import Metrics


class QuestionEvents:
    """The `QuestionWatch` of a call of `agent`."""

    def __init__(self, agent: str, channel: EventSink, metrics: Metrics) -> None:
        self._agent = agent
        self._channel = channel
        self._metrics = metrics
        self._open: set[str] = set()

    def asked(self, question: Question) -> None:
        """Notify the client, and count an open question."""
        self._open.add(question.id)
        self._metrics.questions_open.labels(self._agent).inc()
        self._channel.event(QuestionAsked(question.id, question.text_for(self._agent)))

    def answered(self, question: Question, answer: Answer) -> None:
        """Count the question by its outcome; notify the client if it was open."""
        self._metrics.questions.labels(self._agent, question.kind, answer.outcome).inc()
        if question.id in self._open:
            self._open.remove(question.id)
            self._metrics.questions_open.labels(self._agent).dec()
            self._channel.event(QuestionAnswered(question.id, answer.action))
